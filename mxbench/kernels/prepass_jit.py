"""Kernels of the pre-pass: a tile of 128 tokens with its means taken off and rotated; sums; largest magnitudes.

Offsets are int64: an operand of a long video has more than 2^31 elements.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.quantise_jit import EXPONENT, abs_bits, inverse_power, largest_bits

__all__ = [
    "HIGHEST",
    "LOWEST",
    "as_float",
    "largest_kernel",
    "located",
    "prepared_kernel",
    "prepared_tile",
    "sums_kernel",
]

GRID = tl.constexpr(1.5 * 2.0**13)  # what is added to it loses the bits below 2^-10
LOWEST = tl.constexpr(0x00800000)  # 2^-126
HIGHEST = tl.constexpr(0x7E800000)  # 2^126, whose inverse is normal too


@triton.jit
def as_float(x):
    """FP32 of float16, bfloat16 or float32. BF16 by its bits: the interpreter's own conversion loses subnormals."""
    if x.dtype == tl.bfloat16:
        x = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        x = x.to(tl.float32)
    return x


@triton.jit
def located(tiles, HEADS_FIRST: tl.constexpr):
    """(batch, head) index, int64, and tile of this program: neighbours in memory are neighbours in time."""
    pid = tl.program_id(0)
    if HEADS_FIRST:
        heads = tl.num_programs(0) // tiles
        bh, tile = pid % heads, pid // heads
    else:
        bh, tile = pid // tiles, pid % tiles
    return bh.to(tl.int64), tile


@triton.jit
def loaded(x_ptr, bh, rows, cols, real, stride_b, stride_h, stride_n, stride_d, H):
    """FP32 rows of one head, 0 outside. Rows are int64."""
    base = x_ptr + (bh // H) * stride_b + (bh % H) * stride_h
    at = rows[:, None] * stride_n + cols.to(tl.int64)[None, :] * stride_d
    return as_float(tl.load(base + at, mask=real, other=0.0))


@triton.jit
def rotated(x, rotation_ptr, NORM: tl.constexpr, PIECES: tl.constexpr, BD: tl.constexpr):
    """``x @ signs``, the exact sum rounded once, then one factor.

    A row is moved below 2 by a power of two and cut into FP16 pieces. The first are multiples of one number, so that
    their sums are exact whatever the matrix unit does, and two thousand times as large as what remains; the rest is
    summed by itself.

    The columns of ``signs`` stand where matrix units keep a quarter of a row in one thread.

    PIECES: that hold all bits of an element together: 2 of BF16 and FP16, 3 of FP32.
    """
    i = tl.arange(0, BD)
    signs = tl.load(rotation_ptr + i[:, None] * BD + i[None, :])
    top = tl.minimum(tl.maximum(largest_bits(x, 1) & EXPONENT, LOWEST), HIGHEST)
    inverse = inverse_power(top)
    # Everything below is exact: products with powers of two, and differences of neighbours.
    first = tl.fma(x, inverse, GRID) - GRID  # the nearest multiple of 2^-10; FP16 holds those up to 2
    y = tl.dot(first.to(tl.float16), signs)
    x = tl.fma(x, inverse, -first) * 2048.0
    if PIECES == 2:
        rest = tl.dot(x.to(tl.float16), signs)
    else:
        second = (x + GRID) - GRID
        x -= second
        rest = tl.dot(x.to(tl.float16), signs)
        rest = tl.dot(second.to(tl.float16), signs, rest)
    y = tl.fma(rest, 1.0 / 2048, y) * (top.to(tl.float32, bitcast=True) * NORM)
    return tl.reshape(tl.permute(tl.reshape(y, [y.shape[0], BD // 8, 4, 2]), [0, 2, 1, 3]), y.shape)


@triton.jit
def prepared_tile(
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
    TILE_MEAN: tl.constexpr,
    NORM: tl.constexpr,
    PIECES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    TILE: tl.constexpr,
):
    """FP32 ``[TILE, BD]``: tokens ``tile·TILE ..`` of a head, ready for their quantiser; 0 outside N and D.

    Args:
        x_ptr: ``[B,H,N,D]`` with the strides given.
        order_ptr: int64 ``[B,H,N]``, the token that stands at each place, or None.
        mean_ptr: FP32 ``[B,H,mean_groups,D]`` to subtract, one row for ``mean_rows`` tokens, or None.
        rotation_ptr: ``[BD,BD]`` of signs, or None.
        made_ptr: FP32 ``[B,H,ceil(N/TILE),D]``: subtract the tile's own mean, and write it here; or None.
        bh: batch·H + head, int64.
        tile: which tile.
        rows: int64 ``[TILE]``, the places of its tokens, in any order.
        stride_b: in elements, as the others.
        stride_h: of heads.
        stride_n: of tokens.
        stride_d: of channels.
        H: heads.
        N: tokens.
        mean_rows: see ``mean_ptr``.
        mean_groups: see ``mean_ptr``.
        TILE_MEAN: a tile lies in one group of the means.
        NORM: the rotation's factor.
        PIECES: see ``rotated``.
        D: channels.
        BD: channels padded to a power of two.
        TILE: tokens.
    """
    cols = tl.arange(0, BD)
    real = (rows < N)[:, None] & (cols < D)[None, :]
    source = rows
    if order_ptr is not None:
        source = tl.load(order_ptr + bh * N + rows, mask=rows < N, other=0)
    x = loaded(x_ptr, bh, source, cols, real, stride_b, stride_h, stride_n, stride_d, H)
    if mean_ptr is not None:
        if TILE_MEAN:
            at = (bh * mean_groups + tile * TILE // mean_rows) * D
            mean = tl.load(mean_ptr + at + cols, mask=cols < D, other=0.0)[None, :]
        else:
            at = (bh * mean_groups + rows // mean_rows) * D
            mean = tl.load(mean_ptr + at[:, None] + cols[None, :], mask=real, other=0.0)
        x = tl.where(real, x - mean, 0.0)
    if made_ptr is not None:
        count = tl.minimum(N - tile * TILE, TILE)
        mean = (tl.sum(x.to(tl.float64), axis=0) / tl.maximum(count, 1).to(tl.float64)).to(tl.float32)
        to = (bh * ((N + TILE - 1) // TILE) + tile) * D + cols
        if count > 0:
            tl.store(made_ptr + to, mean, mask=cols < D)
        x = tl.where(real, x - mean[None, :], 0.0)
    if rotation_ptr is not None:
        x = rotated(x, rotation_ptr, NORM, PIECES, BD)
    return x


@triton.jit(do_not_specialize=["H", "N", "groups"])
def sums_kernel(
    x_ptr,
    sums_ptr,
    stride_b,
    stride_h,
    stride_n,
    stride_d,
    H,
    N,
    groups,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    TILE: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):
    """FP64 sums ``[B,H,groups,D]`` over GROUP tokens each, in an order that never changes."""
    bh, group = located(groups, HEADS_FIRST)
    start = group.to(tl.int64) * GROUP
    end = tl.minimum(start + GROUP, N)
    cols = tl.arange(0, BD)
    total = tl.zeros([TILE, BD], dtype=tl.float64)
    for first in range(0, GROUP, TILE):
        rows = start + first + tl.arange(0, TILE)
        real = (rows < end)[:, None] & (cols < D)[None, :]
        total += loaded(x_ptr, bh, rows, cols, real, stride_b, stride_h, stride_n, stride_d, H).to(tl.float64)
    tl.store(sums_ptr + (bh * groups + group) * D + cols, tl.sum(total, axis=0), mask=cols < D)


@triton.jit(do_not_specialize=["H", "N", "mean_groups", "tiles"])
def largest_kernel(
    x_ptr,
    order_ptr,
    mean_ptr,
    rotation_ptr,
    made_ptr,
    largest_ptr,
    stride_b,
    stride_h,
    stride_n,
    stride_d,
    H,
    N,
    mean_rows,
    mean_groups,
    tiles,
    FINITE: tl.constexpr,
    TILE_MEAN: tl.constexpr,
    NORM: tl.constexpr,
    PIECES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    TILE: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):
    """Bits of the largest magnitude a tile and channel, int32 ``[B,H,tiles,D]``.

    FINITE: leave infinities and NaN out; otherwise they are the largest.
    """
    bh, tile = located(tiles, HEADS_FIRST)
    x = prepared_tile(
        x_ptr,
        order_ptr,
        mean_ptr,
        rotation_ptr,
        made_ptr,
        bh,
        tile,
        tile.to(tl.int64) * TILE + tl.arange(0, TILE),
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
    bits = abs_bits(x)
    if FINITE:
        bits = tl.where(bits < EXPONENT, bits, 0)
    cols = tl.arange(0, BD)
    tl.store(largest_ptr + (bh * tiles + tile) * D + cols, tl.max(bits, axis=0), mask=cols < D)


@triton.jit(do_not_specialize=["H", "N", "mean_groups", "tiles"])
def prepared_kernel(
    x_ptr,
    order_ptr,
    mean_ptr,
    rotation_ptr,
    made_ptr,
    out_ptr,
    stride_b,
    stride_h,
    stride_n,
    stride_d,
    H,
    N,
    mean_rows,
    mean_groups,
    tiles,
    TILE_MEAN: tl.constexpr,
    NORM: tl.constexpr,
    PIECES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    TILE: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):
    """What ``prepared_tile`` makes, FP32 ``[B,H,N,D]``."""
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
    at = (bh * N + rows[:, None]) * D + cols[None, :]
    tl.store(out_ptr + at, x, mask=(rows < N)[:, None] & (cols < D)[None, :])
