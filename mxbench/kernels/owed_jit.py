"""The kernel of what means of Q owe the scores: their product with K, the exact sum rounded once.

Rows of both are moved below 2 by powers of two and cut into four BF16 pieces, multiples of 2^-7, 2^-16, 2^-25 and
2^-34. Products of pieces of one order are then multiples of one number, and their sum is exact in FP32 whatever the
matrix unit does: four sums, each some five hundred times smaller than the one before. What is left out is some
2^-34 of the largest products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.prepass_jit import HIGHEST, LOWEST, as_float, located, prepared_tile
from mxbench.kernels.quantise_jit import EXPONENT, INTERPRETED, in_bf16, inverse_power, largest_bits

__all__ = ["endless_kernel", "owed_kernel", "pieces_kernel"]

# What is added to a number below 2 loses the bits below 2^-7, 2^-16, 2^-25 and 2^-34.
FIRST = tl.constexpr(1.5 * 2.0**16)
SECOND = tl.constexpr(1.5 * 2.0**7)
THIRD = tl.constexpr(1.5 * 2.0**-2)
FOURTH = tl.constexpr(1.5 * 2.0**-11)


@triton.jit
def _top(x):
    """The power of two ``[R, 1]`` at or below the largest magnitude of each row, as bits."""
    return tl.minimum(tl.maximum(largest_bits(x, 1) & EXPONENT, LOWEST), HIGHEST)


@triton.jit
def _cut(x, top):
    """Four pieces, FP32 values that BF16 holds, of rows times the inverse of ``top``."""
    x = x * inverse_power(top)
    first = (x + FIRST) - FIRST
    x -= first
    second = (x + SECOND) - SECOND
    x -= second
    third = (x + THIRD) - THIRD
    x -= third
    return first, second, third, (x + FOURTH) - FOURTH


@triton.jit
def _dot(a, b, acc):
    return tl.dot(a, tl.trans(b), acc, input_precision="ieee")


@triton.jit(do_not_specialize=["R"])
def pieces_kernel(x_ptr, pieces_ptr, top_ptr, R, D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr):
    """Rows FP32 ``[R,D]`` in pieces: BF16 ``[4,R,D]``, and the powers of two they were moved by, FP32 ``[R]``."""
    row, cols = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, BD)
    real = (row < R)[:, None] & (cols < D)[None, :]
    at = row[:, None] * D + cols[None, :]
    x = tl.load(x_ptr + at, mask=real, other=0.0)
    top = _top(x)
    first, second, third, fourth = _cut(x, top)
    rest = R.to(tl.int64) * D
    tl.store(pieces_ptr + at, first.to(tl.bfloat16), mask=real)
    tl.store(pieces_ptr + rest + at, second.to(tl.bfloat16), mask=real)
    tl.store(pieces_ptr + 2 * rest + at, third.to(tl.bfloat16), mask=real)
    tl.store(pieces_ptr + 3 * rest + at, fourth.to(tl.bfloat16), mask=real)
    tl.store(top_ptr + row[:, None], top.to(tl.float32, bitcast=True), mask=(row < R)[:, None])


@triton.jit(do_not_specialize=["H", "N", "mean_groups", "tiles", "groups"])
def owed_kernel(
    x_ptr,
    order_ptr,
    mean_ptr,
    rotation_ptr,
    made_ptr,
    pieces_ptr,
    top_ptr,
    out_ptr,
    flags_ptr,
    stride_b,
    stride_h,
    stride_n,
    stride_d,
    H,
    N,
    mean_rows,
    mean_groups,
    tiles,
    groups,
    TILE_MEAN: tl.constexpr,
    NORM: tl.constexpr,
    PIECES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    TILE: tl.constexpr,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):
    """FP32 ``[B,H,groups,N]``: means of Q ``[B,H,groups,D]``, in pieces, times the K that ``prepared_tile`` makes."""
    bh, tile = located(tiles, HEADS_FIRST)
    rows = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    x = prepared_tile(
        x_ptr,
        order_ptr,
        mean_ptr,
        rotation_ptr,
        made_ptr,
        bh,
        tile,
        rows,
        stride_b,
        stride_h,
        stride_n,
        stride_d,
        H,
        N,
        mean_rows,
        mean_groups,
        TILE_MEAN,
        NORM,
        PIECES,
        D,
        BD,
        TILE,
    )
    top = _top(x)
    k1, k2, k3, k4 = _cut(x, top)
    k1, k2, k3, k4 = in_bf16(k1), in_bf16(k2), in_bf16(k3), in_bf16(k4)
    power = tl.reshape(top.to(tl.float32, bitcast=True), [1, TILE])
    cols = tl.arange(0, BD)
    whole = (tl.num_programs(0) // tiles).to(tl.int64) * groups * D  # a piece of all means
    poison = tl.zeros([GROUPS, TILE], tl.float32)
    begin, end = 0, groups
    if INTERPRETED:  # it takes no tensors as bounds, with NumPy from 2.4 on, and makes one of every plain assignment
        begin, end = 0, end.handle.data.item()
    for start in tl.range(begin, end, GROUPS, num_stages=STAGES):
        group = start + tl.arange(0, GROUPS)
        real = (group < groups)[:, None] & (cols < D)[None, :]
        at = pieces_ptr + (bh * groups + group)[:, None] * D + cols[None, :]
        m1 = tl.load(at, mask=real, other=0.0)
        m2 = tl.load(at + whole, mask=real, other=0.0)
        m3 = tl.load(at + 2 * whole, mask=real, other=0.0)
        m4 = tl.load(at + 3 * whole, mask=real, other=0.0)
        if INTERPRETED:
            m1, m2, m3, m4 = as_float(m1), as_float(m2), as_float(m3), as_float(m4)
        zero = tl.zeros([GROUPS, TILE], tl.float32)
        small = _dot(m4, k1, _dot(m3, k2, _dot(m2, k3, _dot(m1, k4, zero))))
        small += _dot(m3, k1, _dot(m2, k2, _dot(m1, k3, zero)))
        middle = _dot(m2, k1, _dot(m1, k2, zero))
        large = _dot(m1, k1, zero)
        own = tl.load(top_ptr + bh * groups + group, mask=group < groups, other=1.0)
        owed = (large + (middle + small)) * own[:, None] * power
        poison += owed * 0.0
        to = out_ptr + (bh * groups + group)[:, None] * N + rows[None, :]
        tl.store(to, owed, mask=(group < groups)[:, None] & (rows < N)[None, :])
    tl.store(flags_ptr + tl.program_id(0), tl.max(tl.ravel(poison != poison).to(tl.int32), 0))


@triton.jit(do_not_specialize=["H", "N", "mean_groups", "tiles", "groups"])
def endless_kernel(
    x_ptr,
    order_ptr,
    mean_ptr,
    rotation_ptr,
    made_ptr,
    q_mean_ptr,
    out_ptr,
    flags_ptr,
    stride_b,
    stride_h,
    stride_n,
    stride_d,
    H,
    N,
    mean_rows,
    mean_groups,
    tiles,
    groups,
    TILE_MEAN: tl.constexpr,
    NORM: tl.constexpr,
    PIECES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    TILE: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):
    """What is not finite in tiles that ``owed_kernel`` flagged, by plain sums: pieces make NaN of infinities."""
    if tl.load(flags_ptr + tl.program_id(0)) != 0:
        bh, tile = located(tiles, HEADS_FIRST)
        rows = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
        x = prepared_tile(
            x_ptr,
            order_ptr,
            mean_ptr,
            rotation_ptr,
            made_ptr,
            bh,
            tile,
            rows,
            stride_b,
            stride_h,
            stride_n,
            stride_d,
            H,
            N,
            mean_rows,
            mean_groups,
            TILE_MEAN,
            NORM,
            PIECES,
            D,
            BD,
            TILE,
        )
        cols = tl.arange(0, BD)
        begin, end = 0, groups
        if INTERPRETED:
            begin, end = 0, end.handle.data.item()
        for group in range(begin, end):
            mean = tl.load(q_mean_ptr + (bh * groups + group) * D + cols, mask=cols < D, other=0.0)
            owed = tl.sum(x.to(tl.float64) * mean.to(tl.float64)[None, :], 1).to(tl.float32)
            to = out_ptr + (bh * groups + group) * N + rows
            tl.store(to, owed, mask=(rows < N) & ~(tl.abs(owed) < float("inf")))
