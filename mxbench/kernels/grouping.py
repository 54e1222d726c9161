"""Lloyd's algorithm on a CUDA device: what ``mxbench.attention.value.lloyd`` computes, by a kernel.

Imports Triton: import this module where a kernel is asked for.
"""

from __future__ import annotations

import torch
import triton

from mxbench.attention.value import first_centres
from mxbench.kernels.grouping_jit import assign_kernel

__all__ = ["lloyd", "suits"]

_TILE = 128  # tokens of a tile
_TILES = 8  # tiles of a program
_MOST = 256  # channels, and clusters: labels are bytes


def suits(v: torch.Tensor, clusters: int) -> bool:
    """Whether the kernel computes it: float16, bfloat16 or float32, with at most 256 channels and clusters."""
    kept = v.dtype in (torch.float16, torch.bfloat16, torch.float32)
    return kept and v.shape[-1] <= _MOST and min(clusters, v.shape[-2]) <= _MOST


def lloyd(
    v: torch.Tensor, clusters: int, iterations: int, centres: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lloyd's algorithm on the rows of V, per (batch, head), in FP32; the same at every call.

    Labels are those of ``mxbench.attention.value.lloyd`` but where two centres are as near to a rounding. Sums of a
    cluster are of 1,024 tokens in FP32 each, and of those in FP64.

    Args:
        v: ``[B,H,N,D]``, any strides.
        clusters: k is ``min(clusters, N)``.
        iterations: rounds of assign and update.
        centres: FP32 ``[B,H,k,D]`` to start from.

    Returns:
        uint8 labels ``[B,H,N]`` and FP32 centres ``[B,H,k,D]``.
    """
    centres = first_centres(v, clusters) if centres is None else centres
    with torch.cuda.device_of(v):
        for _ in range(iterations):
            _, total, count = _round(v, centres, sums=True)
            assert total is not None
            assert count is not None
            count = count.sum(2, dtype=torch.int64)[..., None]
            moved = (total.sum(2, dtype=torch.float64) / count.clamp(min=1)).float()
            centres = torch.where(count > 0, moved, centres)
        return _round(v, centres, sums=False)[0], centres


def _round(
    v: torch.Tensor, centres: torch.Tensor, *, sums: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Labels, and with ``sums`` the sums and numbers of every program's tokens by label."""
    b, h, n, d = v.shape
    k = centres.shape[-2]
    chunks = triton.cdiv(n, _TILE * _TILES)
    labels = torch.empty(b, h, n, dtype=torch.uint8, device=v.device)
    total = count = None
    if sums:
        total = torch.empty(b, h, chunks, k, d, dtype=torch.float32, device=v.device)
        count = torch.empty(b, h, chunks, k, dtype=torch.int32, device=v.device)
    assign_kernel[(b * h * chunks,)](
        v,
        centres.contiguous(),
        centres.square().sum(-1),
        labels,
        total,
        count,
        *v.stride(),
        h,
        n,
        chunks,
        K=k,
        BK=max(16, triton.next_power_of_2(k)),
        D=d,
        BD=max(16, triton.next_power_of_2(d)),
        TILE=_TILE,
        TILES=_TILES,
        SUM=sums,
        num_warps=8,
    )
    return labels, total, count
