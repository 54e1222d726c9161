"""Lloyd's algorithm on a CUDA device: what ``mxbench.attention.value.lloyd`` computes, by a kernel.

Imports Triton: import this module where a kernel is asked for.
"""

from __future__ import annotations

import torch
import triton

from mxbench.attention.value import first_centres
from mxbench.kernels.grouping_jit import assign_kernel, total_kernel

__all__ = ["lloyd", "suits"]

_TOKENS = 1024  # of a program
_PART = 64  # channels in a go
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
            total, count = _totals(v, _assigned(v, centres), centres.shape[-2])
            count = count.sum(2, dtype=torch.int64)[..., None]
            moved = (total.sum(2, dtype=torch.float64) / count.clamp(min=1)).float()
            centres = torch.where(count > 0, moved, centres)
        return _assigned(v, centres), centres


def _assigned(v: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Labels, uint8 ``[B,H,N]``."""
    b, h, n, d = v.shape
    k, width = centres.shape[-2], max(16, triton.next_power_of_2(d))
    chunks = triton.cdiv(n, _TOKENS)
    labels = torch.empty(b, h, n, dtype=torch.uint8, device=v.device)
    assign_kernel[(b * h * chunks,)](
        v,
        centres.contiguous(),
        centres.square().sum(-1),
        labels,
        *v.stride(),
        h,
        n,
        chunks,
        BD=width,
        PART=min(_PART, width),
        **_constants(k, d),
    )
    return labels


def _totals(v: torch.Tensor, labels: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums and numbers of every chunk's tokens by label, FP32 ``[B,H,chunks,k,D]`` and int32 ``[B,H,chunks,k]``."""
    b, h, n, d = v.shape
    chunks = triton.cdiv(n, _TOKENS)
    total = torch.empty(b, h, chunks, k, d, dtype=torch.float32, device=v.device)
    count = torch.empty(b, h, chunks, k, dtype=torch.int32, device=v.device)
    part = min(_PART, max(16, triton.next_power_of_2(d)))
    total_kernel[(b * h * chunks, triton.cdiv(d, part))](
        v, labels, total, count, *v.stride(), h, n, chunks, PART=part, **_constants(k, d)
    )
    return total, count


def _constants(k: int, d: int) -> dict[str, int]:
    """What both kernels are compiled for, and how they are launched; one stage, for products of wide tiles."""
    wide = max(16, triton.next_power_of_2(k))
    tile = 128 if wide <= 64 else 64
    found = {"K": k, "BK": wide, "D": d, "TILE": tile, "TILES": _TOKENS // tile}
    return found | {"num_warps": 8, "num_stages": 1}
