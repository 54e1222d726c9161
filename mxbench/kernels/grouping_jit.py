"""The kernel of Lloyd's algorithm: each token to its nearest centre, and what each centre's tokens add up to.

V is read once a round. Products are those of BF16 pieces that hold all bits of an element, summed in FP32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.prepass_jit import loaded
from mxbench.kernels.quantise_jit import INTERPRETED

__all__ = ["assign_kernel"]

UPPER = tl.constexpr(-0x10000)  # mask of the bits of an FP32 that BF16 keeps


@triton.jit
def _upper(x):
    """The eight leading bits of an FP32's significand, as FP32: a BF16 value, never rounded up to infinity."""
    return (x.to(tl.int32, bitcast=True) & UPPER).to(tl.float32, bitcast=True)


@triton.jit
def _held(x):
    """BF16 values, in BF16; the interpreter, which does not multiply it, keeps FP32."""
    if not INTERPRETED:
        x = x.to(tl.bfloat16)
    return x


@triton.jit
def _pieces(x):
    """Three BF16 values that an FP32 is the sum of."""
    first = _upper(x)
    x -= first
    second = _upper(x)
    return _held(first), _held(second), _held(x - second)


@triton.jit(do_not_specialize=["H", "N", "chunks"])
def assign_kernel(
    v_ptr,
    centres_ptr,
    squares_ptr,
    labels_ptr,
    sums_ptr,
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
    BD: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    SUM: tl.constexpr,
):
    """A program labels ``TILES`` tiles of ``TILE`` tokens of a head.

    ``centres_ptr``: FP32 ``[B,H,K,D]``; ``squares_ptr``: their squared lengths, FP32 ``[B,H,K]``. ``labels_ptr``: uint8
    ``[B,H,N]``, the nearest centre, the lowest of equals. With SUM, ``sums_ptr``: FP32 ``[B,H,chunks,K,D]`` and
    ``counts_ptr``: int32 ``[B,H,chunks,K]`` of the program's own tokens, in an order that never changes.
    """
    pid = tl.program_id(0)
    bh, chunk = (pid // chunks).to(tl.int64), pid % chunks
    cols, label = tl.arange(0, BD), tl.arange(0, BK)
    there = (label < K)[:, None] & (cols < D)[None, :]
    centres = tl.load(centres_ptr + (bh * K + label)[:, None] * D + cols[None, :], mask=there, other=0.0)
    squares = tl.load(squares_ptr + bh * K + label, mask=label < K, other=float("inf"))
    c1, c2, c3 = _pieces(centres)
    c1, c2, c3 = tl.trans(c1), tl.trans(c2), tl.trans(c3)
    total = tl.zeros([BK, BD], tl.float32)
    count = tl.zeros([BK], tl.int32)
    for i in range(TILES):
        rows = (chunk.to(tl.int64) * TILES + i) * TILE + tl.arange(0, TILE)
        real = (rows < N)[:, None] & (cols < D)[None, :]
        x = loaded(v_ptr, bh, rows, cols, real, stride_b, stride_h, stride_n, stride_d, H)
        x1, x2, x3 = _pieces(x)
        near = tl.zeros([TILE, BK], tl.float32)
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
        if SUM:
            member = (nearest[None, :] == label[:, None]) & (rows < N)[None, :]
            count += tl.sum(member.to(tl.int32), axis=1)
            member = _held(member.to(tl.float32))
            if v_ptr.dtype.element_ty != tl.bfloat16:
                total = tl.dot(member, x3, total, input_precision="ieee")
                total = tl.dot(member, x2, total, input_precision="ieee")
            total = tl.dot(member, x1, total, input_precision="ieee")
    if SUM:
        at = (bh * chunks + chunk) * K + label
        tl.store(counts_ptr + at, count, mask=label < K)
        tl.store(sums_ptr + at[:, None] * D + cols[None, :], total, mask=there)
