"""Launch of the fused attention kernel: which specialisation a method and its held operands ask for, and which tiles.

Imports Triton: import this module where a kernel is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from mxbench.attention.spec import AttentionSpec
from mxbench.errors import UserError
from mxbench.formats.groups import ROWS
from mxbench.formats.scale import boundary
from mxbench.kernels.fused_config import CONFIGS, Config, config_for
from mxbench.kernels.fused_jit import fused_kernel
from mxbench.kernels.held import Held, Hold
from mxbench.kernels.key_order import interleaved, quartered, quartered_columns
from mxbench.kernels.quantise_jit import INTERPRETED, tile_fields

__all__ = ["CONFIGS", "Config", "choice", "config_for", "constants", "fused", "owed_suits", "packable", "unsuited"]

HOLDS: dict[Hold, Any] = {
    "float32": tl.float32,
    "bfloat16": tl.bfloat16,
    "e5m2": tl.float8e5,
    "e4m3": tl.float8e4nv,
    "int8": tl.int8,
}
"""Triton's type of P for a hold of P and V."""

_HALF = 0x01000100  # half a spacing of E2M1·2^-14 in pairs of FP16
_FLOOR = 0x66006600  # 1536 in pairs of FP16


def unsuited(spec: AttentionSpec, width: int) -> str | None:
    """Why the fused kernels cannot compute ``spec`` at a head dimension, in a clause; None where they can."""
    if width > 256:
        return f"the head dimension is {width}, and the fused kernels go up to 256"
    if spec.kv_tile not in (32, 64, 128, 256):
        return f"kv_tile is {spec.kv_tile}, and the fused kernels know 32, 64, 128 and 256"
    return None


def fused(held: Held, spec: AttentionSpec, out_dtype: torch.dtype, *, config: Config | None = None) -> torch.Tensor:
    """What ``mxbench.attention.reference.walk`` computes, on held operands, by one kernel.

    Args:
        held: the operands, on a CUDA device (or anywhere in Triton's interpreter).
        spec: the method; its quantisers of Q, K and V have been applied already.
        out_dtype: of the output.
        config: tiles, in place of the entry of ``CONFIGS``.

    Returns:
        ``[B,H,Nq,Dv]``.

    Raises:
        UserError: what the kernel cannot compute (see ``unsuited``), or a device that it does not run on.
    """
    b, h, nq, d = held.q.shape
    nk, dv = held.k.shape[-2], held.v.shape[-2 if _narrow(held.hold_pv) else -1]
    clause = unsuited(spec, max(d, dv))
    if clause is not None:
        raise UserError(clause, "use impl 'reference'")
    if not INTERPRETED and (held.q.device.type != "cuda" or torch.version.hip is not None):
        raise UserError(f"the fused kernels need an NVIDIA GPU, and this is {held.q.device}", "use impl 'reference'")
    given = [held.q, held.k, held.v, held.q_scale, held.k_scale, held.v_scale, held.mean, held.owed]
    if not all(x.is_contiguous() for x in given if x is not None):
        raise ValueError("held operands are contiguous")
    able = packable(held.q.device)
    config = config or choice(spec, held, packable=able)
    fields = constants(spec, held, config, packable=able)
    k, v = interleaved(held.k) if fields["INTERLEAVED"] else held.k, held.v
    if fields["QUARTERED"]:
        k, v = quartered(k, spec.kv_tile), (quartered_columns if _narrow(held.hold_pv) else quartered)(v, spec.kv_tile)
    out = held.q.new_empty(b, h, nq, dv, dtype=out_dtype)
    operands: list[Any] = [held.q, k, v]
    mean: Any = held.mean
    owed: Any = held.owed
    if config.descriptors and dv % 4 == 0 and all(_aligned(x) for x in operands):
        fields["DESCRIBED"] = True
        bm, bn, wide = fields["BM"], fields["BN"], fields["DV_PAD"]
        boxes = [[bm, fields["D_PAD"]], [bn, fields["D_PAD"]], [wide, bn] if _narrow(held.hold_pv) else [bn, wide]]
        operands = [_descriptor(x, box) for x, box in zip(operands, boxes, strict=True)]
        if config.overlap and mean is not None:
            mean = _descriptor(mean, [1, wide])
        if held.owed is not None and _aligned(held.owed) and owed_suits(fields):
            owed, fields["OWED_DESCRIBED"] = _descriptor(held.owed, [1, bn]), True
    with torch.cuda.device_of(held.q):
        fused_kernel[(triton.cdiv(nq, config.block_m) * b * h,)](
            *operands,
            held.q_scale,
            held.k_scale,
            held.v_scale,
            mean,
            owed,
            out,
            nq,
            nk,
            k.shape[-2],
            v.shape[-1 if _narrow(held.hold_pv) else -2],
            math.log2(math.e) / math.sqrt(d),
            _HALF,
            _FLOOR,
            0,
            **fields,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            maxnreg=config.registers,
        )
    return out


def choice(spec: AttentionSpec, held: Held, *, packable: bool) -> Config:
    """The launch in the table of ``fused_config``; ``packable`` as in ``constants``."""
    channels = held.v.shape[-2 if _narrow(held.hold_pv) else -1]
    case = held.hold_pv, max(held.q.shape[-1], channels), spec.kv_tile, held.hold_qk
    fields = constants(spec, held, config_for(*case), packable=packable)
    return config_for(*case, packed=fields["PACKED"] and (not fields["OWED_ROWS"] or owed_suits(fields)))


def constants(spec: AttentionSpec, held: Held, config: Config, *, packable: bool) -> dict[str, Any]:
    """The constexpr arguments of the kernel, ``DESCRIBED`` False.

    Args:
        spec: the method.
        held: its operands; values are not read.
        config: tiles and their switches.
        packable: the device knows the instructions of ``packed_jit``.
    """
    d, dv = held.q.shape[-1], held.v.shape[-2 if _narrow(held.hold_pv) else -1]
    p, expcast, quantised = spec.p, spec.exponential == "expcast", spec.p is not None and spec.row_sum == "quantised"
    prescale = p.prescale if p is not None else 1.0
    k_scale = "none"
    if held.k_scale is not None:
        # A scale for 128 keys is one for the tile, unless something stands beside the product. It then meets Q's scale
        # before the score, not after as in the reference.
        whole = spec.k is not None and spec.k.granularity == "rows" and ROWS % spec.kv_tile == 0 and held.owed is None
        k_scale = "tile" if whole and _narrow(held.hold_pv) else "key"
    rule = _rule(spec)
    fields = tile_fields(p)
    packed = packable and config.packed and _has_packed(spec, held.hold_pv, rule["AT_ZERO"] and k_scale == "tile")
    # A quarter of the tile's keys in a thread: then no thread needs another's for a block.
    block = {"mxfp4": 32, "nvfp4": 16}.get(p.format if p is not None else "", 0)
    quarters = packed and block > 0 and spec.kv_tile % (4 * block) == 0
    return {
        "D": d,
        "DV": dv,
        "D_PAD": max(32, triton.next_power_of_2(d)),
        "DV_PAD": max(32, triton.next_power_of_2(dv)),
        "BM": config.block_m,
        "BN": spec.kv_tile,
        "HOLD": HOLDS[held.hold_pv],
        "EXPCAST": expcast,
        "QUANTISED_SUM": quantised,
        "PRESCALE": prescale,
        "LOG2_PRE": math.log2(prescale),
        "UNIT": _unit(held.hold_pv, prescale),
        **fields,
        "PACKED": packed,
        "QUARTERED": quarters,
        **rule,
        "K_SCALE": k_scale,
        "OWED_ROWS": held.owed_rows if held.owed is not None else 0,
        "OWED_TILE": held.owed_tile,
        "OWED_DESCRIBED": False,
        "HAS_Q_SCALE": held.q_scale is not None,
        "HAS_V_SCALE": held.v_scale is not None,
        "HAS_MEAN": held.mean is not None,
        "INTERLEAVED": (_narrow(held.hold_pv) if config.interleave is None else config.interleave) and not quarters,
        "BEHIND": config.overlap,
        "DESCRIBED": False,
        "STAGES": config.num_stages if config.overlap and (held.mean is not None or held.owed is not None) else None,
    }


def owed_suits(fields: Mapping[str, Any]) -> bool:
    """Whether a tile of what is owed is a row of it, in an order that the kernel undoes."""
    whole = fields["OWED_TILE"] in (0, fields["BN"])
    return fields["OWED_ROWS"] % fields["BM"] == 0 and whole and not fields["INTERLEAVED"]


def _narrow(hold: Hold) -> bool:
    """Whether V is held transposed, in 8 bits."""
    return hold in ("e5m2", "e4m3", "int8")


def _unit(hold: Hold, prescale: float) -> float:
    """What ``_plain`` multiplies P by. E5M2 is used from its top; where V can be large P leaves it room instead.

    Rounding may raise P, and the row's P add up: the reference takes as much off V. Below, BF16 ends at
    2^-133, and MXFP4's smallest P is 2^-128.
    """
    bits = math.ceil(math.log2(prescale))
    if hold == "e5m2":
        return 2.0 ** (15 - bits)
    return 1.0 if _narrow(hold) else 2.0 ** -max(1, 1 + bits)


def _rule(spec: AttentionSpec) -> dict[str, Any]:
    """A scale rule as ``packed_mx`` reads it."""
    if spec.p is None or spec.p.format != "mxfp4":
        return {"ADD": 0.0, "DOWN": False, "AT_ZERO": False}
    q = boundary(spec.p.scale_rule)
    if q is None:
        return {"ADD": -2.0, "DOWN": True, "AT_ZERO": True}
    return {"ADD": -math.log2(q), "DOWN": False, "AT_ZERO": q in (4, 8)}


def _has_packed(spec: AttentionSpec, hold: Hold, varying: bool) -> bool:
    """Whether ``packed_jit`` has P of this method in this hold."""
    p, quantised = spec.p, spec.row_sum == "quantised"
    if p is None:
        return False
    if p.format == "mxfp4":
        return hold in ("e5m2", "bfloat16") and p.prescale == 1 and not varying
    if p.format == "nvfp4":
        return hold == "bfloat16" and not quantised
    if p.format != "e4m3" or hold != "e4m3":
        return False
    return quantised == (spec.exponential == "expcast")


def packable(device: torch.device) -> bool:
    """Whether it knows the instructions of ``packed_jit``."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _aligned(x: torch.Tensor) -> bool:
    """Whether its rows start where a tensor descriptor may start them."""
    return x.data_ptr() % 16 == 0 and x.shape[-1] * x.element_size() % 16 == 0


def _descriptor(x: torch.Tensor, box: list[int]) -> TensorDescriptor:
    """``[B,H,M,N]`` as ``[B·H,M,N]`` by boxes of one (batch, head)."""
    return TensorDescriptor.from_tensor(x.flatten(0, 1), [1, *box])
