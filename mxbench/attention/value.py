"""V-Smooth: group tokens so that V is alike inside blocks of 128, and quantise what is left of their means.

Source: VC-Attention, arXiv:2609.15810, section 3. The grouping itself is a choice, since the paper publishes none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from mxbench.attention.qk import contiguous_fp32, mean_of
from mxbench.attention.site import Site
from mxbench.attention.spec import VSmooth
from mxbench.errors import UserError
from mxbench.formats.block import quantise
from mxbench.formats.groups import ROWS
from mxbench.formats.quantizer import Quantizer

__all__ = [
    "GroupingState",
    "Lloyd",
    "SmoothedValue",
    "active_steps",
    "arrange",
    "first_centres",
    "lloyd",
    "smooth_value",
]

CUBE = (2, 8, 8)
_CHUNK = 1 << 26  # distances held at once


@dataclass(slots=True)
class _Grouping:
    order: torch.Tensor  # int64 [B,H,N]
    centres: torch.Tensor | None  # FP32 [B,H,k,D]


Lloyd = Callable[[torch.Tensor, int, int, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]
"""Lloyd's algorithm, as :func:`lloyd` is."""


@dataclass(slots=True)
class GroupingState:
    """Groupings that outlive a call; one object a render, owned by whoever runs the denoising loop.

    A grouping belongs to an (expert, layer, kind, guidance branch, shape) and is dropped at step 0.

    Attributes:
        groupings: by what they belong to.
        lloyd: what makes clusters; None for :func:`lloyd`.
    """

    groupings: dict[tuple[Hashable, ...], _Grouping] = field(default_factory=dict)
    lloyd: Lloyd | None = None


def active_steps(smooth: VSmooth, n_steps: int) -> list[int]:
    """The steps in which grouping and means are active, ascending.

    ``leading``: the first ceil(window·T). ``uniform``: as many, the i-th at floor(i·T/n). ``every``: all. A grouping is
    made anew at every ``refresh``-th active step (at each one for ``every``).
    """
    if smooth.placement == "every":
        return list(range(n_steps))
    n = math.ceil(Fraction(str(smooth.window)) * n_steps)  # 0.14 of 50 steps is 7, not 8
    if smooth.placement == "leading":
        return list(range(n))
    return [i * n_steps // n for i in range(n)]


def arrange(
    v: torch.Tensor,
    smooth: VSmooth,
    site: Site | None,
    state: GroupingState | None,
    tag: Hashable = None,
) -> tuple[torch.Tensor | None, bool]:
    """The order of the tokens at this site, and whether block means are subtracted here.

    Args:
        v: ``[B,H,N,D]`` in token order, any float dtype and strides.
        smooth: the fields of the method.
        site: None groups afresh, with means.
        state: where groupings are kept between calls; needed with a site.
        tag: tells calls of one site apart (the batch element, under a key mask).

    Returns:
        int64 ``[B,H,N]`` such that ``v[order]`` is the new order, or None for the order as it is; and the flag.
    """
    if site is None:
        return _group(v, smooth, None, 0, None, lloyd).order, True
    if state is None:
        raise UserError("V-Smooth at a site keeps its grouping from step to step", "pass a GroupingState as state")
    key = (site.expert, site.layer, site.kind, site.branch, tuple(v.shape), tag)
    if site.step == 0:  # a new render: what another expert holds is of the last one too
        state.groupings.pop(key, None)
        state.groupings = {k: g for k, g in state.groupings.items() if k[0] == site.expert}
    steps = active_steps(smooth, site.n_steps)
    known = state.groupings.get(key)
    if site.step not in steps:
        return (known.order if known is not None else None), False
    refresh = 1 if smooth.placement == "every" else smooth.refresh
    if known is None or steps.index(site.step) % refresh == 0:
        centres = known.centres if known is not None else None
        known = _group(v, smooth, site.grid, site.first, centres, state.lloyd or lloyd)
        state.groupings[key] = known
    return known.order, True


def _group(
    v: torch.Tensor,
    smooth: VSmooth,
    grid: tuple[int, int, int] | None,
    first: int,
    centres: torch.Tensor | None,
    lloyd: Lloyd,
) -> _Grouping:
    """Order the video tokens, which begin at ``first``; the others of joint attention stay behind them in order."""
    b, h, n, _ = v.shape
    video = min(n - first, math.prod(grid)) if grid is not None else n
    if smooth.layout == "cluster":
        labels, centres = lloyd(v[..., first : first + video, :], smooth.clusters, smooth.iterations, centres)
        order = labels.argsort(dim=-1, stable=True)
    else:
        if smooth.layout == "cube":
            if grid is None:
                raise UserError(
                    "the cube layout needs the latent grid", "call it through attach(), or pass a site with a grid"
                )
            if video < math.prod(grid):
                raise UserError(
                    f"the cube layout needs all {math.prod(grid)} tokens of the latent grid, and there are {n}",
                    "use layout: cluster, or leave cross-attention and masked tokens out",
                )
            order = _cube_order(grid).to(v.device)
        else:
            order = torch.arange(video, device=v.device)
        order, centres = order.expand(b, h, video), None
    others = torch.cat([torch.arange(first, device=v.device), torch.arange(first + video, n, device=v.device)])
    return _Grouping(torch.cat([order + first, others.expand(b, h, n - video)], dim=-1), centres)


def _cube_order(grid: tuple[int, int, int]) -> torch.Tensor:
    """Tokens by their 2×8×8 cube, ragged at the edges: raster order of cubes, and inside a cube."""
    f, h, w = (torch.arange(size) for size in grid)
    cells = torch.cartesian_prod(f, h, w)
    cube = cells // torch.tensor(CUBE)
    counts = [-(-size // edge) for size, edge in zip(grid, CUBE, strict=True)]
    rank = (cube[:, 0] * counts[1] + cube[:, 1]) * counts[2] + cube[:, 2]
    return rank.argsort(stable=True)


def first_centres(v: torch.Tensor, clusters: int) -> torch.Tensor:
    """The rows of V that Lloyd's algorithm starts at, FP32 ``[B,H,k,D]``: floor(i·(N-1)/(k-1)), k at most N."""
    n = v.shape[-2]
    k = min(clusters, n)
    return v[:, :, [i * (n - 1) // max(k - 1, 1) for i in range(k)], :].float()


def lloyd(
    v: torch.Tensor, clusters: int, iterations: int, centres: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lloyd's algorithm on the rows of V, per (batch, head), in FP32.

    Starts at ``first_centres`` unless centres are given; assigns and updates ``iterations`` times, then assigns once
    more. Ties go to the lowest label; an empty cluster keeps its centre.

    Args:
        v: ``[B,H,N,D]``, any float dtype and strides.
        clusters: k is ``min(clusters, N)``.
        iterations: rounds of assign and update.
        centres: FP32 ``[B,H,k,D]`` to start from.

    Returns:
        int64 labels ``[B,H,N]`` and FP32 centres ``[B,H,k,D]``.
    """
    v = contiguous_fp32(v)
    b, h, n, d = v.shape
    k = min(clusters, n)
    if centres is None:
        centres = first_centres(v, clusters)
    flat, points = centres.reshape(b * h, k, d), v.reshape(b * h, n, d)
    labels = torch.empty(b * h, n, dtype=torch.int64, device=v.device)
    moved = torch.empty_like(flat)
    chunk = max(1, _CHUNK // (n * k))
    for lo in range(0, b * h, chunk):
        x, c = points[lo : lo + chunk], flat[lo : lo + chunk]
        for _ in range(iterations):
            total, count = _members(x, _nearest(x, c), k)
            c = torch.where(count > 0, total.div_(count.clamp(min=1.0)), c)
        labels[lo : lo + chunk], moved[lo : lo + chunk] = _nearest(x, c), c
    return labels.view(b, h, n), moved.view(b, h, k, d)


def _members(x: torch.Tensor, labels: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum and number of the rows with each label: ``[G,k,D]`` and ``[G,k,1]``."""
    g, n, d = x.shape
    if x.device.type == "cpu":
        flat = (labels + torch.arange(0, g * k, k)[:, None]).flatten()
        total = x.new_zeros(g * k, d).index_add_(0, flat, x.reshape(-1, d))
        return total.view(g, k, d), torch.bincount(flat, minlength=g * k).to(x.dtype).view(g, k, 1)
    # Elsewhere index_add_ sums in an order of its own; a product with the indicator does not.
    member = x.new_zeros(g, k, n).scatter_(-2, labels[:, None, :], 1.0)
    return member @ x, member.sum(-1, keepdim=True)


def _nearest(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Label of the nearest centre: |x - c|² less the |x|² that all centres share."""
    return torch.baddbmm(c.square().sum(-1)[:, None, :], x, c.transpose(-1, -2), alpha=-2.0).argmin(-1)


@dataclass(frozen=True, slots=True)
class SmoothedValue:
    """V as the tiles see it: V ≈ residual + mean of its block.

    Attributes:
        residual: FP32 ``[B,H,N,D]``, quantised and dequantised.
        mean: FP32 ``[B,H,ceil(N/128),D]`` as stored (BF16, divided by the channel scale for 8-bit formats), or None.
    """

    residual: torch.Tensor
    mean: torch.Tensor | None


def smooth_value(v: torch.Tensor, quantizer: Quantizer | None, *, means: bool) -> SmoothedValue:
    """Quantise V, without the means of its blocks of 128 rows where ``means`` asks for it.

    Args:
        v: FP32 ``[B,H,N,D]`` in the method's order.
        quantizer: None keeps V exact, and then there is no mean to set apart.
        means: subtract block means.
    """
    if quantizer is None:
        return SmoothedValue(v, None)
    if not means:
        return SmoothedValue(quantise(v, quantizer, axis=-2, role="v").dequantise(), None)
    n = v.shape[-2]
    blocks = torch.nn.functional.pad(v, (0, 0, 0, -n % ROWS)).unflatten(-2, (-1, ROWS))
    counts = v.new_full((blocks.shape[-3],), float(ROWS))
    counts[-1] = n - ROWS * (len(counts) - 1)
    mean = mean_of(blocks, counts[:, None])
    residual = quantise((blocks - mean[..., None, :]).flatten(-3, -2)[..., :n, :], quantizer, axis=-2, role="v")
    if quantizer.form.block is None:  # one scale a channel: the means are stored divided by it
        mean = (mean / residual.scale).bfloat16().float() * residual.scale
    else:
        mean = mean.bfloat16().float()
    return SmoothedValue(residual.dequantise(), mean)
