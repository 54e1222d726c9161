"""The reference: every point of the method space in plain torch, tile by tile as a fused kernel walks it.

It is the oracle that kernels are tested against. It needs neither Triton nor a GPU, keeps no state of its own and
never materialises more of the score matrix than a chunk of rows by one key tile.

Source of the recurrence: FlashAttention-2, as written in the MXAttention paper, equations 3 to 8, 16, 17, 47 and 48.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import torch

from mxbench.attention.exponential import expcast_values_
from mxbench.attention.probability import quantise_tile_
from mxbench.attention.qk import contiguous_fp32, prepare_qk
from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState, arrange, smooth_value
from mxbench.formats.block import quantise
from mxbench.formats.groups import ROWS
from mxbench.formats.quantizer import Quantizer

__all__ = ["Operands", "prepare", "reference", "walk"]

_CHUNK = 1 << 18  # scores of one key tile worked on at once by a thread of a CPU: what stays in its cache
_CHUNK_DEVICE = 1 << 26  # and by an accelerator: enough work for a launch


@dataclass(frozen=True, slots=True)
class Operands:
    """What the tiles read, all FP32 and already quantised.

    Scales that a whole row or tensor shares stay outside the product of Q and K, as they do in a kernel: what is left
    are short numbers, whose sums are exact or nearly so, and a code of P beside a tie depends on no order of a sum.

    Attributes:
        q: ``[B,H,Nq,D]``, in units of ``q_scale``.
        k: ``[B,H,Nk,D]``, in units of ``k_scale``.
        v: ``[B,H,Nk,D]``, less the block means where there are any.
        q_scale: ``[B,H,Nq,1]``, times the scale of K where that is one for all keys; or None for 1.
        k_scale: ``[B,H,Nk,1]``, or None for 1.
        mean: ``[B,H,ceil(Nk/128),D]`` or None.
        owed: ``[B,H,ceil(Nq/owed_rows),Nk]`` or None, see ``mxbench.attention.qk``.
        owed_rows: rows that share a row of ``owed``.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_scale: torch.Tensor | None
    k_scale: torch.Tensor | None
    mean: torch.Tensor | None
    owed: torch.Tensor | None
    owed_rows: int

    def factored(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Q and K, times their scales."""
        return (
            self.q if self.q_scale is None else self.q * self.q_scale,
            self.k if self.k_scale is None else self.k * self.k_scale,
        )


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    *,
    key_mask: torch.Tensor | None = None,
    site: Site | None = None,
    state: GroupingState | None = None,
) -> torch.Tensor:
    """Attention by ``spec``.

    Args:
        q: ``[B,H,Nq,D]``; not changed, any strides, any float dtype. Likewise ``k`` and ``v``, ``[B,H,Nk,D]``.
        k: keys.
        v: values.
        spec: the method.
        key_mask: bool ``[B,Nk]``, True for real keys. The real keys, compacted in their order, are all that the method
            sees; a batch element without any gives zeros.
        site: where in a render this call happens, for methods with state.
        state: the render's groupings, for methods with state.

    Returns:
        ``[B,H,Nq,D]`` in q's dtype.
    """
    if key_mask is None:
        return walk(prepare(q, k, v, spec, site=site, state=state), spec).to(q.dtype)
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    for b in range(q.shape[0]):
        keys = key_mask[b]
        if bool(keys.any()):
            one = prepare(
                q[b : b + 1], k[b : b + 1, :, keys], v[b : b + 1, :, keys], spec, site=site, state=state, tag=b
            )
            out[b : b + 1] = walk(one, spec)
    return out


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    *,
    site: Site | None = None,
    state: GroupingState | None = None,
    tag: Hashable = None,
) -> Operands:
    """Everything before the first tile: means, rotation, order of the tokens, quantised operands."""
    ready = prepare_qk(q, k, spec)
    k_ready, v_ready, owed, means = ready.k, contiguous_fp32(v), ready.owed, False
    if spec.v_smooth is not None:
        order, means = arrange(v_ready, spec.v_smooth, site, state, tag)
        if order is not None:
            k_ready, v_ready = _reordered(k_ready, order), _reordered(v_ready, order)
            owed = owed.gather(-1, order[..., None, :].expand_as(owed)) if owed is not None else None
    value = smooth_value(v_ready, spec.v, means=means)
    q_values, q_scale = _split(ready.q, spec.q, "q")
    k_values, k_scale = _split(k_ready, spec.k, "k")
    if k_scale is not None and k_scale.shape[-2] != k_values.shape[-2]:  # one for all keys
        if q_scale is not None:
            # Scores beyond FP32 are infinite anyway, but zeros times infinity would be NaN.
            k_scale = (q_scale * k_scale).clamp(max=torch.finfo(torch.float32).max)
        q_scale, k_scale = k_scale, None
    return Operands(
        q=q_values,
        k=k_values,
        v=value.residual,
        q_scale=None if q_scale is None else q_scale.expand(*q_values.shape[:-1], 1),
        k_scale=k_scale,
        mean=value.mean,
        owed=owed,
        owed_rows=ready.owed_rows,
    )


def _split(
    x: torch.Tensor, quantizer: Quantizer | None, role: Literal["q", "k"]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The quantised values of Q or K, and the scale of their rows ``[B,H,N,1]`` or of all of them ``[B,H,1,1]``."""
    if quantizer is None:
        return x, None
    z = quantise(x, quantizer, role=role)
    if quantizer.granularity == "channel":  # a factor of each term
        return z.dequantise(), None
    if quantizer.form.block is not None:
        scale = z.tensor_scale
        return z.groups.restore(z.elements * z.scale), None if scale is None else scale.reshape(*x.shape[:2], 1, 1)
    values = z.groups.restore(z.elements)
    if quantizer.granularity == "tensor":
        return values, z.scale.reshape(*x.shape[:2], 1, 1)
    return values, z.groups.restore(z.scale.expand_as(z.elements))[..., :1]


def _reordered(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """The rows of ``[B,H,N,D]`` in an order ``[B,H,N]``."""
    b, h, n, d = x.shape
    first = torch.arange(0, b * h * n, n, device=x.device).view(b, h, 1)
    return x.reshape(-1, d).index_select(0, (order + first).flatten()).view(x.shape)


def _padded(x: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 0, 0, rows)) if rows else x


def walk(operands: Operands, spec: AttentionSpec) -> torch.Tensor:
    """The online softmax over ascending key tiles.

    Returns:
        FP32 ``[B,H,Nq,D]``.
    """
    b, h, nq, d = operands.q.shape
    nk, dv, tile = operands.k.shape[-2], operands.v.shape[-1], spec.kv_tile
    pad = -nk % tile
    q = operands.q.reshape(b * h, nq, d)
    kt = _padded(operands.k.reshape(b * h, nk, d), pad).transpose(-1, -2).contiguous()
    # P comes multiplied by its prescale, and rounding may raise it: V gives way by a power of two, or values near the
    # limit of FP32 would overflow.
    headroom = 1.0 if spec.p is None else 2.0 ** max(1, 1 + math.ceil(math.log2(spec.p.prescale)))
    v = _padded(operands.v.reshape(b * h, nk, dv) / headroom, pad)
    mean = operands.mean.reshape(b * h, -1, dv) / headroom if operands.mean is not None else None
    q_scale = operands.q_scale.reshape(b * h, nq, 1) if operands.q_scale is not None else None
    k_scale = None
    if operands.k_scale is not None:
        k_scale = torch.nn.functional.pad(operands.k_scale.reshape(b * h, 1, nk), (0, pad), value=1.0)
    owed = None
    if operands.owed is not None:
        owed = torch.nn.functional.pad(operands.owed.reshape(b * h, -1, nk), (0, pad))
    out = q.new_empty(b * h, nq, dv)
    chunk = _CHUNK * torch.get_num_threads() if q.device.type == "cpu" else _CHUNK_DEVICE
    heads = max(1, min(b * h, chunk // (tile * min(nq, 256))))
    step = max(1, chunk // (tile * heads))
    if owed is not None and step < nq:
        step = max(1, step // operands.owed_rows) * operands.owed_rows
    for lo in range(0, b * h, heads):
        some = slice(lo, lo + heads)
        for row in range(0, nq, step):
            rows = slice(row, row + step)
            out[some, rows] = _rows(
                q[some, rows],
                kt[some],
                v[some],
                q_scale[some, rows] if q_scale is not None else None,
                k_scale[some] if k_scale is not None else None,
                mean[some] if mean is not None else None,
                owed[some, row // operands.owed_rows :] if owed is not None else None,
                operands.owed_rows,
                nk,
                spec,
            )
    return out.mul_(headroom).view(b, h, nq, dv)


def _rows(
    q: torch.Tensor,
    kt: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor | None,
    k_scale: torch.Tensor | None,
    mean: torch.Tensor | None,
    owed: torch.Tensor | None,
    owed_rows: int,
    nk: int,
    spec: AttentionSpec,
) -> torch.Tensor:
    """One chunk of rows over all tiles: q ``[G,R,D]``, kt ``[G,D,N]``, v ``[G,N,Dv]``, padded keys masked."""
    g, r, d = q.shape
    tile, prescale = spec.kv_tile, 1.0 if spec.p is None else spec.p.prescale
    to_log2 = math.log2(math.e) / math.sqrt(d)
    last: float | torch.Tensor = to_log2
    if q_scale is not None and owed is None:
        last, q_scale = q_scale * to_log2, None
    s, scratch = q.new_empty(g, r, tile), q.new_empty(g, r, tile)
    m = q.new_full((g, r, 1), float("-inf"))
    l, o = q.new_zeros(g, r, 1), q.new_zeros(g, r, v.shape[-1])  # noqa: E741 - the field's names
    for start in range(0, kt.shape[-1], tile):
        keys = slice(start, start + tile)
        torch.bmm(q, kt[..., keys], out=s)
        if k_scale is not None:
            s.mul_(k_scale[..., keys])
        if q_scale is not None:
            s.mul_(q_scale)
        if owed is not None:
            s.add_(owed[..., keys].repeat_interleave(owed_rows, dim=-2)[:, :r])
        # Scaled here: as an argument of the product it goes into an operand, which breaks ties between equal scores.
        s.mul_(last)
        if start + tile > nk:
            s[..., nk - start :] = float("-inf")
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        alpha = (m - m_new).exp2_()
        m = m_new
        s.sub_(m)
        if spec.exponential == "expcast":
            exact = s.exp2().mul_(prescale).sum(-1, keepdim=True) if spec.row_sum == "exact" else None
            p = expcast_values_(s)
        else:
            p = s.exp2_()
            if prescale != 1.0:
                p.mul_(prescale)
            exact = p.sum(-1, keepdim=True) if spec.row_sum == "exact" or spec.p is None else None
            if spec.p is not None:
                quantise_tile_(p, spec.p, scratch)
        own = exact if exact is not None else p.sum(-1, keepdim=True)
        l = l.mul_(alpha).add_(own)  # noqa: E741
        o.mul_(alpha).baddbmm_(p, v[:, keys])
        if mean is not None:
            o.addcmul_(own, mean[:, start // ROWS, None, :])
    # A NaN score makes the maximum NaN, and with it alpha: ExpCast's integer codes cannot hide it.
    return o.div_(l)
