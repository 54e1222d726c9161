"""The kernels of Lloyd's algorithm: each token to its nearest centre, and what each centre's tokens add up to.

Products are those of BF16 pieces that hold all bits of an element, summed in FP32. Few channels are looked at in a go,
so that any width finds room in shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.prepass_jit import loaded
from mxbench.kernels.quantise_jit import in_bf16

__all__ = ["assign_kernel", "total_kernel"]

UPPER = tl.constexpr(-0x10000)  # mask of the bits of an FP32 that BF16 keeps


@triton.jit
def _upper(x):
    """The eight leading bits of an FP32's significand, as FP32: a BF16 value, never rounded up to infinity."""
    return (x.to(tl.int32, bitcast=True) & UPPER).to(tl.float32, bitcast=True)


@triton.jit
def _pieces(x):
    """Three BF16 values that an FP32 is the sum of."""
    first = _upper(x)
    x -= first
    second = _upper(x)
    return in_bf16(first), in_bf16(second), in_bf16(x - second)


@triton.jit(do_not_specialize=["H", "N", "chunks"])
def assign_kernel(
    v_ptr,
    centres_ptr,
    squares_ptr,
    labels_ptr,
    stride_b,
    stride_h,
    stride_n,
    stride_d,
    H,
    N,
    chunks,
    K: tl.constexpr,
    BK: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    PART: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """A program labels ``TILES`` tiles of ``TILE`` tokens of a head, ``PART`` channels at a time.

    ``centres_ptr``: FP32 ``[B,H,K,D]``; ``squares_ptr``: their squared lengths, FP32 ``[B,H,K]``. ``labels_ptr``: uint8
    ``[B,H,N]``, the nearest centre, the lowest of equals.
    """
    pid = tl.program_id(0)
    bh, chunk = (pid // chunks).to(tl.int64), pid % chunks
    label = tl.arange(0, BK)
    squares = tl.load(squares_ptr + bh * K + label, mask=label < K, other=float("inf"))
    for i in range(TILES):
        rows = (chunk.to(tl.int64) * TILES + i) * TILE + tl.arange(0, TILE)
        near = tl.zeros([TILE, BK], tl.float32)
        for part in range(0, BD, PART):
            cols = part + tl.arange(0, PART)
            real = (rows < N)[:, None] & (cols < D)[None, :]
            x = loaded(v_ptr, bh, rows, cols, real, stride_b, stride_h, stride_n, stride_d, H)
            there = (label < K)[None, :] & (cols < D)[:, None]
            centres = tl.load(centres_ptr + (bh * K + label)[None, :] * D + cols[:, None], mask=there, other=0.0)
            c1, c2, c3 = _pieces(centres)
            x1, x2, x3 = _pieces(x)
            if v_ptr.dtype.element_ty != tl.bfloat16:  # smallest products first
                near = tl.dot(x3, c1, near, input_precision="ieee")
                near = tl.dot(x2, c2, near, input_precision="ieee")
                near = tl.dot(x2, c1, near, input_precision="ieee")
            near = tl.dot(x1, c3, near, input_precision="ieee")
            near = tl.dot(x1, c2, near, input_precision="ieee")
            near = tl.dot(x1, c1, near, input_precision="ieee")
        nearest = tl.argmin(squares[None, :] - 2.0 * near, axis=1, tie_break_left=True)
        nearest = tl.minimum(nearest, K - 1)  # of a row that is not finite
        tl.store(labels_ptr + bh * N + rows, nearest.to(tl.uint8), mask=rows < N)


@triton.jit(do_not_specialize=["H", "N", "chunks"])
def total_kernel(
    v_ptr,
    labels_ptr,
    totals_ptr,
    counts_ptr,
    stride_b,
    stride_h,
    stride_n,
    stride_d,
    H,
    N,
    chunks,
    K: tl.constexpr,
    BK: tl.constexpr,
    D: tl.constexpr,
    PART: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """A program sums ``PART`` channels of ``TILES`` tiles of a head by label, in an order that never changes.

    ``totals_ptr``: FP32 ``[B,H,chunks,K,D]``; ``counts_ptr``: int32 ``[B,H,chunks,K]``, of the first part's programs.
    """
    pid, part = tl.program_id(0), tl.program_id(1)
    bh, chunk = (pid // chunks).to(tl.int64), pid % chunks
    cols, label = part * PART + tl.arange(0, PART), tl.arange(0, BK)
    total = tl.zeros([BK, PART], tl.float32)
    count = tl.zeros([BK], tl.int32)
    for i in range(TILES):
        rows = (chunk.to(tl.int64) * TILES + i) * TILE + tl.arange(0, TILE)
        real = (rows < N)[:, None] & (cols < D)[None, :]
        x = loaded(v_ptr, bh, rows, cols, real, stride_b, stride_h, stride_n, stride_d, H)
        own = tl.load(labels_ptr + bh * N + rows, mask=rows < N, other=0).to(tl.int32)
        member = (own[None, :] == label[:, None]) & (rows < N)[None, :]
        count += tl.sum(member.to(tl.int32), axis=1)
        member = in_bf16(member.to(tl.float32))
        x1, x2, x3 = _pieces(x)
        if v_ptr.dtype.element_ty != tl.bfloat16:
            total = tl.dot(member, x3, total, input_precision="ieee")
            total = tl.dot(member, x2, total, input_precision="ieee")
        total = tl.dot(member, x1, total, input_precision="ieee")
    at = (bh * chunks + chunk) * K + label
    if part == 0:
        tl.store(counts_ptr + at, count, mask=label < K)
    tl.store(totals_ptr + at[:, None] * D + cols[None, :], total, mask=(label < K)[:, None] & (cols < D)[None, :])
