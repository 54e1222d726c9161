"""Operands as the fused kernels read them: quantised values held in a type of the matrix units, and FP32 factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

__all__ = ["Held", "Hold"]

Hold = Literal["float32", "bfloat16", "e5m2", "e4m3", "int8"]
"""What an operand is held in. ``float32`` is multiplied in full precision, and is what the interpreter can run."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the tiles read. Scores are ``(q·k)·q_scale·k_scale``, plus ``owed``; values are ``v·v_scale``.

    All tensors are contiguous.

    Attributes:
        q: ``[B,H,Nq,D]``, in its hold's dtype.
        k: ``[B,H,Nk,D]``, of the same hold.
        v: ``[B,H,Nk,Dv]``; keys contiguous in the 8-bit holds: ``[B,H,Dv,Nk']``, Nk' being Nk padded with
            zeros to a multiple of the key tile.
        q_scale: FP32 ``[B,H,Nq]``, or None for 1.
        k_scale: FP32 ``[B,H,Nk]``, or None for 1.
        v_scale: FP32 ``[B,H,Dv]``, or None for 1; a factor of the output.
        mean: FP32 ``[B,H,ceil(Nk/128),Dv]`` in units of ``v_scale``: what V-Smooth adds back, or None.
        owed: FP32 ``[B,H,ceil(Nq/owed_rows),Nk]``, added to the scores before their factor log2(e)/sqrt(D), or None.
        owed_rows: rows that share a row of ``owed``.
        owed_tile: 0, or ``owed`` is ``[B,H,ceil(Nq/owed_rows),Nk']``, Nk' being Nk rounded up to a multiple of this,
            and the keys of every ``owed_tile`` stand as ``key_order.quartered_columns`` stores them.
        hold_qk: of q and k.
        hold_pv: of P and v.
        lost: int32 ``[1]``: elements that the hold cannot keep as they are; None where it holds every value.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_scale: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    mean: torch.Tensor | None
    owed: torch.Tensor | None
    owed_rows: int
    hold_qk: Hold
    hold_pv: Hold
    lost: torch.Tensor | None = None
    owed_tile: int = 0
