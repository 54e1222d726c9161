"""Kernels of the pre-pass: a tile of 128 tokens with its means taken off and rotated; sums; largest magnitudes.

Offsets are int64: an operand of a long video has more than 2^31 elements.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.quantise_jit import EXPONENT, abs_bits

__all__ = ["as_float", "largest_kernel", "located", "prepared_tile", "sums_kernel"]

UPPER_HALF = tl.constexpr(-0x10000)  # mask of the bits of an FP32 that BF16 keeps


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
def upper_half(x):
    """The eight leading bits of an FP32's significand, as FP32: a BF16 value, never rounded up to infinity."""
    return (x.to(tl.int32, bitcast=True) & UPPER_HALF).to(tl.float32, bitcast=True)


@triton.jit
def rotated(x, rotation_ptr, NORM: tl.constexpr, PIECES: tl.constexpr, BD: tl.constexpr):
    """``x @ signs``, then one factor. Every product is exact, the sum is FP32's.

    PIECES: BF16 values that hold all bits of an element together: 1 of BF16, 2 of FP16, 3 of FP32; 0 is one product of
    FP32 matrices, which the interpreter can run.
    """
    i = tl.arange(0, BD)
    signs = tl.load(rotation_ptr + i[:, None] * BD + i[None, :])
    if PIECES == 0:
        y = tl.dot(x, signs, input_precision="ieee")
    else:
        y = tl.zeros(x.shape, dtype=tl.float32)
        for _ in range(PIECES):
            piece = upper_half(x)
            y = tl.dot(piece.to(tl.bfloat16), signs, y)
            x -= piece
    return y * NORM


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
        mean = tl.div_rn(tl.sum(x, axis=0), tl.maximum(count, 1).to(tl.float32))
        to = (bh * ((N + TILE - 1) // TILE) + tile) * D + cols
        if count > 0:
            tl.store(made_ptr + to, mean, mask=cols < D)
        x = tl.where(real, x - mean[None, :], 0.0)
    if rotation_ptr is not None:
        x = rotated(x, rotation_ptr, NORM, PIECES, BD)
    return x


@triton.jit
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
    """FP32 sums ``[B,H,groups,D]`` over GROUP tokens each, in an order that never changes."""
    bh, group = located(groups, HEADS_FIRST)
    start = group.to(tl.int64) * GROUP
    end = tl.minimum(start + GROUP, N)
    cols = tl.arange(0, BD)
    total = tl.zeros([TILE, BD], dtype=tl.float32)
    for first in range(0, GROUP, TILE):
        rows = start + first + tl.arange(0, TILE)
        real = (rows < end)[:, None] & (cols < D)[None, :]
        total += loaded(x_ptr, bh, rows, cols, real, stride_b, stride_h, stride_n, stride_d, H)
    tl.store(sums_ptr + (bh * groups + group) * D + cols, tl.sum(total, axis=0), mask=cols < D)


@triton.jit
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
