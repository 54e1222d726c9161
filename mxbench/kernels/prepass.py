"""The pre-pass: what ``mxbench.attention.reference.prepare`` computes, by kernels, in a type of the matrix units.

An operand is read once and written once. What needs all of its tokens first (K's mean, the scale of a tensor or of a
channel, NVFP4's second level) takes one reading pass before, as do means of other blocks of Q than 128 rows. The term
that those means owe the scores is a product of theirs with K. E5M2 holds MXFP4 of everyday sizes as it is; where it
does not, the operand is held anew, moved by powers of two: a row of Q, a head of K, a channel of V each by its own.

Imports Triton: import this module where a kernel is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec, Hadamard, KMean, QBlockMean
from mxbench.attention.value import GroupingState, arrange
from mxbench.errors import UserError
from mxbench.formats.block import NVFP4_RANGE, divided
from mxbench.formats.quantizer import Quantizer
from mxbench.formats.scale import mx_exponent, power_of_two
from mxbench.kernels.held import Held, Hold
from mxbench.kernels.prepass_launch import TILE, Source, apart, is_apart, largest, owed, quantised, sums
from mxbench.kernels.prepass_plan import E5M2_LIFT, E5M2_TOP, holds, reason

__all__ = ["hold", "reason"]

_MOST_CHANNELS = 256
_SUM_ROWS = 1024  # tokens of K that one program sums

_APART = 4  # counters of 16 bytes: pointers that Triton makes one program for

Role = Literal["q", "k", "v"]


@torch.no_grad()
def hold(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    path: str,
    *,
    site: Site | None = None,
    state: GroupingState | None = None,
    tag: Hashable = None,
) -> Held:
    """Transform and quantise Q, K and V for a path of the fused kernels.

    Args:
        q: ``[B,H,Nq,D]``, float16, bfloat16 or float32, any strides; not changed. Likewise ``k`` and ``v``.
        k: ``[B,H,Nk,D]``.
        v: ``[B,H,Nk,Dv]``.
        spec: the method.
        path: ``conformance``: BF16, which holds every quantised value. ``fast``: the 8-bit types. ``float32``: like
            ``conformance`` in FP32, and for every method.
        site: where in a render the call happens, for methods with state.
        state: the render's groupings, for methods with state.
        tag: tells calls of one site apart.

    Raises:
        UserError: the path cannot hold the method (see ``reason``), or the channels do not suit it.
    """
    clause = reason(spec, path, q.dtype)
    if clause is not None:
        raise UserError(f"the {path} path cannot hold this method: {clause}", "use impl 'reference'")
    if (d := max(q.shape[-1], v.shape[-1])) > _MOST_CHANNELS:
        raise UserError(f"the kernels take {_MOST_CHANNELS} channels, and there are {d}", "use impl 'reference'")
    hold_qk, hold_pv = holds(spec, path)
    rotate, smooth = spec.stage(Hadamard), spec.stage(QBlockMean)
    with torch.cuda.device_of(q):
        order, means = _order(v, spec, site, state, tag)
        k_mean = None
        if spec.stage(KMean) is not None:
            k_mean = (sums(k, _SUM_ROWS).sum(-2, keepdim=True) / k.shape[-2]).float()
        source_q = Source(q, rotate=rotate)
        if smooth is not None:
            source_q = _less_block_means(source_q, smooth.rows)
        pad = math.lcm(spec.kv_tile, 16)
        asked: list[_Asked] = [
            _Asked(apart(source_q), spec.q, "q", hold_qk),
            _Asked(apart(Source(k, order, k_mean, k.shape[-2], rotate)), spec.k, "k", hold_qk),
            _Asked(Source(v, order, own_mean=means and spec.v is not None), spec.v, "v", hold_pv, pad),
        ]
        lost = None
        if "e5m2" in (hold_qk, hold_pv):
            lost = torch.zeros(3, _APART, dtype=torch.int32, device=q.device)
        held = [_operand(one, None if lost is None else lost[i], lift=False) for i, one in enumerate(asked)]
        if lost is not None:
            for i, gone in enumerate(lost[:, 0].tolist()):
                if gone:
                    lost[i] = 0
                    held[i] = _operand(asked[i], lost[i], lift=True)
            lost = lost[:, 0].sum(dtype=torch.int32)[None]
        held_q, held_k, held_v = held
        term, owed_tile = None, 0
        if smooth is not None:
            q_mean = held_q.mean if source_q.own_mean else source_q.mean
            assert q_mean is not None
            owed_tile = spec.kv_tile if hold_qk == "bfloat16" and spec.kv_tile % 16 == 0 else 0
            term = owed(Source(k, order, k_mean, k.shape[-2]), q_mean, owed_tile)
    return Held(
        q=held_q.values,
        k=held_k.values,
        v=held_v.values,
        q_scale=_row_factors(held_q, held_k),
        k_scale=held_k.rows,
        v_scale=held_v.scale,
        mean=held_v.mean,
        owed=term,
        owed_rows=smooth.rows if smooth is not None else 1,
        hold_qk=hold_qk,
        hold_pv=hold_pv,
        lost=lost,
        owed_tile=owed_tile,
    )


def _order(
    v: torch.Tensor, spec: AttentionSpec, site: Site | None, state: GroupingState | None, tag: Hashable
) -> tuple[torch.Tensor | None, bool]:
    """The order of the tokens, and whether V's block means are set apart."""
    if spec.v_smooth is None:
        return None, False
    order, means = arrange(v, spec.v_smooth, site, state, tag)
    return (order.contiguous() if order is not None else None), means


def _less_block_means(source: Source, rows: int) -> Source:
    """Q without the means of its blocks: made in the tile where a tile is one, else in a pass before."""
    if rows == TILE and not is_apart(source):
        return replace(source, own_mean=True)
    total, n = sums(source.x, rows), source.x.shape[-2]
    counts = total.new_full((total.shape[-2],), float(rows))
    counts[-1] = n - rows * (len(counts) - 1)
    return replace(source, mean=(total / counts[:, None]).float(), mean_rows=rows)


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand as held.

    Attributes:
        values: what the matrix units read.
        rows: FP32 ``[B,H,N]``, a factor a row; or None.
        scale: FP32 factor ``[B,H,1]`` of Q or K, ``[B,H,D]`` of V; or None.
        mean: FP32 ``[B,H,G,D]`` that was subtracted, or None; V's as the tiles add it back.
    """

    values: torch.Tensor
    rows: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    mean: torch.Tensor | None = None


def _row_factors(q: _Operand, k: _Operand) -> torch.Tensor | None:
    """Q's factors, and K's with them where it has one for all keys: a factor a key costs a product a score."""
    scale = q.rows if q.rows is not None else q.scale
    if scale is not None and k.scale is not None:
        # Scores beyond FP32 are infinite anyway, but zeros times infinity would be NaN.
        scale = (scale * k.scale).clamp(max=torch.finfo(torch.float32).max)
    elif k.scale is not None:
        scale = k.scale
    return scale.expand(q.values.shape[:3]).contiguous() if scale is not None else None


@dataclass(frozen=True, slots=True)
class _Asked:
    """An operand to hold: from where, by which quantiser, in which type, and V with how many tokens at least."""

    source: Source
    quantizer: Quantizer | None
    role: Role
    hold: Hold
    pad: int = 1


def _operand(asked: _Asked, lost: torch.Tensor | None, *, lift: bool) -> _Operand:
    """Hold one operand: the reading pass that its scales ask for, and the pass that writes it.

    ``lift``: in E5M2, move it by powers of two.
    """
    source, quantizer, role, hold = asked.source, asked.quantizer, asked.role, asked.hold
    scale, power, dequantise = None, None, False
    if quantizer is None:
        pass
    elif quantizer.form.block is None:
        if quantizer.granularity in ("tensor", "channel"):
            scale, source = _scale(source, quantizer)
            dequantise = role != "v" and quantizer.granularity == "channel"
    elif quantizer.tensor_scale:
        bits, source = largest(source)
        g = divided(bits.amax(-1, keepdim=True).view(torch.float32), NVFP4_RANGE)
        scale = torch.where(g == 0, torch.ones_like(g), g)
    elif lift and hold == "e5m2" and role != "q":
        bits, source = largest(source, finite=True)
        amax = (bits if role == "v" else bits.amax(-1, keepdim=True)).view(torch.float32)
        by = (E5M2_TOP - mx_exponent(amax, quantizer.scale_rule)).clamp_(max=E5M2_LIFT)
        power = power_of_two(by).expand(*by.shape[:2], source.x.shape[-1]).contiguous()
    values, rows, mean = quantised(
        source,
        quantizer,
        role,
        hold,
        pad=asked.pad,
        scale=scale,
        power=power,
        lift=lift,
        dequantise=dequantise,
        lost=lost,
    )
    if power is not None:
        scale = 1.0 / (power if role == "v" else power[..., :1])
    if dequantise:
        scale = None
    if role != "v":
        return _Operand(values, rows, scale, mean)
    if scale is not None:
        scale = scale.expand(*scale.shape[:2], source.x.shape[-1]).contiguous()
    return _Operand(values, rows, scale, _stored_mean(mean, quantizer, scale))


def _scale(source: Source, quantizer: Quantizer) -> tuple[torch.Tensor, Source]:
    """The FP32 scale of the tensor ``[B,H,1]`` or of its channels ``[B,H,D]``; NaN where an element is not finite."""
    bits, source = largest(source)
    amax = (bits.amax(-1, keepdim=True) if quantizer.granularity == "tensor" else bits).view(torch.float32)
    scale = divided(amax, quantizer.form.element.max) + quantizer.eps
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return scale.masked_fill(~amax.isfinite(), float("nan")), source


def _stored_mean(
    mean: torch.Tensor | None, quantizer: Quantizer | None, scale: torch.Tensor | None
) -> torch.Tensor | None:
    """V's block means as ``smooth_value`` stores them, in units of the scale."""
    if mean is None or quantizer is None:
        return None
    if quantizer.form.block is None:  # one scale a channel: what is stored is the mean divided by it
        assert scale is not None
        return (mean / scale[:, :, None, :]).bfloat16().float()
    mean = mean.bfloat16().float()
    return mean if scale is None else mean / scale[:, :, None, :]
