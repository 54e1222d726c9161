"""FP4 attention for devices whose matrix units multiply FP4: operands packed two codes a byte, and the launch.

Imports Triton: import this module where a kernel is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton

from mxbench.attention.qk import contiguous_fp32, prepare_qk
from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState, arrange
from mxbench.errors import UserError
from mxbench.formats.block import quantise
from mxbench.formats.groups import ROWS
from mxbench.kernels.native_jit import native_kernel
from mxbench.kernels.quantise_jit import tile_fields

__all__ = ["NativeHeld", "hold_native", "native", "native_constants", "native_unsuited"]


@dataclass(frozen=True, slots=True)
class NativeHeld:
    """Operands as codes. Scores are the scaled dot times ``score_factor``, plus ``owed``.

    Attributes:
        q: uint8 ``[B,H,Nq,D/2]``, E2M1 codes, the first of two in the low half of a byte; likewise ``k``.
        q_scale: uint8 ``[B,H,Nq,D/block]``, E8M0 or E4M3 codes; likewise ``k_scale``.
        k: uint8 ``[B,H,Nk,D/2]``.
        k_scale: uint8 ``[B,H,Nk,D/block]``.
        v: uint8 ``[B,H,Dv,Nk'/2]``, Nk' being Nk padded with zeros to a multiple of the key tile.
        v_scale: uint8 ``[B,H,Dv,Nk'/block]``.
        score_factor: FP32 ``[B,H]``, or None for 1; ``value_factor`` multiplies the output. Both or neither.
        value_factor: FP32 ``[B,H]``, or None.
        mean: FP32 ``[B,H,ceil(Nk/128),Dv]``: what V-Smooth adds back, or None.
        owed: FP32 ``[B,H,ceil(Nq/owed_rows),Nk]``, or None.
        owed_rows: rows that share a row of ``owed``.
        keys: Nk.
    """

    q: torch.Tensor
    q_scale: torch.Tensor
    k: torch.Tensor
    k_scale: torch.Tensor
    v: torch.Tensor
    v_scale: torch.Tensor
    score_factor: torch.Tensor | None
    value_factor: torch.Tensor | None
    mean: torch.Tensor | None
    owed: torch.Tensor | None
    owed_rows: int
    keys: int


def native_unsuited(spec: AttentionSpec, d: int, dv: int) -> str | None:
    """Why the native kernel cannot compute ``spec``, in a clause; None where it can."""
    formats = {z.format if z is not None else "none" for z in (spec.q, spec.k, spec.v, spec.p)}
    if len(formats) > 1 or formats - {"mxfp4", "nvfp4"}:
        return f"Q, K, V and P are {', '.join(sorted(formats))}, and the matrix units take one FP4 format for all"
    if spec.kv_tile not in (64, 128, 256):
        return f"kv_tile is {spec.kv_tile}, and the native kernel knows 64, 128 and 256"
    for width in (d, dv):
        if width not in (64, 128, 256):
            return f"the head dimension is {width}, and the native kernel knows 64, 128 and 256"
    return None


@torch.no_grad()
def hold_native(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    *,
    site: Site | None = None,
    state: GroupingState | None = None,
) -> NativeHeld:
    """What ``mxbench.attention.reference.prepare`` computes, as codes.

    Args:
        q: ``[B,H,Nq,D]``; not changed. Likewise ``k`` and ``v``, ``[B,H,Nk,D]``.
        k: keys.
        v: values.
        spec: the method.
        site: where in a render the call happens, for methods with state.
        state: the render's groupings.

    Raises:
        UserError: a method that the native kernel does not compute.
    """
    clause = native_unsuited(spec, q.shape[-1], v.shape[-1])
    if clause is not None:
        raise UserError(clause, "use impl 'reference'")
    assert spec.q is not None and spec.k is not None and spec.v is not None
    ready, n = prepare_qk(q, k, spec), k.shape[-2]
    k_ready, v_ready, owed, mean = ready.k, contiguous_fp32(v), ready.owed, None
    if spec.v_smooth is not None:
        order, means = arrange(v_ready, spec.v_smooth, site, state)
        if order is not None:
            k_ready, v_ready = (x.take_along_dim(order[..., None], -2) for x in (k_ready, v_ready))
            owed = owed.take_along_dim(order[..., None, :], -1) if owed is not None else None
        if means:
            blocks = torch.nn.functional.pad(v_ready, (0, 0, 0, -n % ROWS)).unflatten(-2, (-1, ROWS))
            counts = torch.full(blocks.shape[-3:-2], float(ROWS), device=v.device)
            counts[-1] = n - ROWS * (len(counts) - 1)
            mean = blocks.sum(-2) / counts[:, None]
            v_ready = (blocks - mean[..., None, :]).flatten(-3, -2)[..., :n, :]
    padded = torch.nn.functional.pad(v_ready, (0, 0, 0, -n % spec.kv_tile))
    packed = [
        quantise(ready.q, spec.q, role="q").pack(),
        quantise(k_ready, spec.k, role="k").pack(),
        quantise(padded, spec.v, axis=-2, role="v").pack(),
    ]
    # Code and scale of a group stand in dimensions of their own: [.., rows, groups, codes].
    codes = [x.codes.flatten(-2).contiguous() for x in packed]
    scales = [x.scale.squeeze(-1).contiguous() for x in packed]
    factors = [x.tensor_scale for x in packed]
    score = value = None
    if any(f is not None for f in factors):
        ones = torch.ones(q.shape[:2], device=q.device)
        parts = [f.reshape(q.shape[:2]) if f is not None else ones for f in factors]
        score, value = parts[0] * parts[1], parts[2].contiguous()
    mean = mean.bfloat16().float() if mean is not None else None
    if mean is not None and value is not None:
        mean = mean / value[:, :, None, None]
    return NativeHeld(
        codes[0], scales[0], codes[1], scales[1], codes[2], scales[2], score, value, mean, owed, ready.owed_rows, n
    )


def native(held: NativeHeld, spec: AttentionSpec, out_dtype: torch.dtype, *, block_m: int = 128) -> torch.Tensor:
    """Attention on packed operands; on a device without FP4 units Triton carries the products out in BF16.

    Args:
        held: see ``hold_native``.
        spec: the method.
        out_dtype: of the output.
        block_m: query rows of a program.

    Returns:
        ``[B,H,Nq,Dv]``.
    """
    b, h, nq, half = held.q.shape
    out = torch.empty(b, h, nq, held.v.shape[-2], dtype=out_dtype, device=held.q.device)
    constants = native_constants(
        spec, 2 * half, held.v.shape[-2], block_m, held.owed_rows if held.owed is not None else 0
    )
    with torch.cuda.device_of(held.q):
        native_kernel[(triton.cdiv(nq, block_m) * b * h,)](
            held.q,
            held.q_scale,
            held.k,
            held.k_scale,
            held.v,
            held.v_scale,
            held.score_factor,
            held.value_factor,
            held.mean,
            held.owed,
            out,
            nq,
            held.keys,
            2 * held.v.shape[-1],
            math.log2(math.e) / math.sqrt(2 * half),
            0.0,
            **constants,
            HAS_MEAN=held.mean is not None,
            HAS_FACTORS=held.score_factor is not None,
            num_warps=4,
            num_stages=2,
        )
    return out


def native_constants(spec: AttentionSpec, d: int, dv: int, block_m: int, owed_rows: int) -> dict[str, Any]:
    """The constexpr arguments of the kernel that follow from the method and the shapes."""
    assert spec.p is not None
    fields = tile_fields(spec.p)
    return {
        "D": d,
        "DV": dv,
        "BM": block_m,
        "BN": spec.kv_tile,
        "BLOCK": spec.p.form.block,
        "QUANTISED_SUM": spec.row_sum == "quantised",
        "PRESCALE": spec.p.prescale,
        "OWED_ROWS": owed_rows,
        **{name: fields[name] for name in ("FORMAT", "MX_ADD", "SATURATE", "EXACT")},
    }
