"""The kernel of what means of Q owe the scores: their product with K, the exact sum rounded once.

Rows of both are moved below 2^14 by powers of two and cut into three FP16 pieces, multiples of 2^6, 2^-5 and 2^-16.
Products of the first pieces are multiples of one number, and their sum is exact in FP32 whatever the matrix unit does.
The other products are some two hundred times smaller, so that their roundings hardly show: they share a sum. A third
piece is multiplied once, by what FP16 keeps of the other factor as a whole. What is left out is some 2^-30 of the
largest products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.prepass_jit import HIGHEST, LOWEST, as_float, located, prepared_tile
from mxbench.kernels.quantise_jit import EXPONENT, INTERPRETED, inverse_power, largest_bits

__all__ = ["endless_kernel", "owed_kernel", "pieces_kernel"]

ABOVE = tl.constexpr(2.0**13)  # rows are moved to this and below twice as much
# What is added to such a number loses the bits below 2^6, 2^-5 and 2^-16.
FIRST = tl.constexpr(1.5 * 2.0**29)
SECOND = tl.constexpr(1.5 * 2.0**18)
THIRD = tl.constexpr(1.5 * 2.0**7)


@triton.jit
def _top(largest):
    """The power of two at or below a largest magnitude, both as bits."""
    return tl.minimum(tl.maximum(largest & EXPONENT, LOWEST), HIGHEST)


@triton.jit
def _moved(x, top):
    return x * inverse_power(top) * ABOVE


@triton.jit
def _cut(x):
    """What was moved in three pieces, FP32 values that FP16 holds."""
    first = (x + FIRST) - FIRST
    x -= first
    second = (x + SECOND) - SECOND
    x -= second
    return first, second, (x + THIRD) - THIRD


@triton.jit
def _rejoined(first, second):
    """The two together in FP16. Made where it is used, time after time: registers are short."""
    if INTERPRETED:
        x = (first + second).to(tl.float16).to(tl.float32)
    else:
        asm: tl.constexpr = "add.rn.f16x2 $0, $1, $2;"
        x = tl.inline_asm_elementwise(asm, "=r,r,r", [first, second], dtype=tl.float16, is_pure=False, pack=2)
    return x


@triton.jit
def _in_fp16(x):
    """FP32 values that FP16 holds, in FP16; for the interpreter as they are."""
    if not INTERPRETED:
        x = x.to(tl.float16)
    return x


@triton.jit
def _keys(place, ORDER: tl.constexpr):
    """The keys that stand at places: by tiles of ``ORDER`` as ``key_order.quartered_columns`` stores them; 0: as is."""
    if ORDER > 0:
        within = place % ORDER
        place = place - within + within // 4 % 4 * (ORDER // 4) + within // 16 * 4 + within % 4
    return place


@triton.jit
def _piece(pieces, row, GROUPS: tl.constexpr, BD: tl.constexpr):
    x = tl.reshape(pieces.load([row.to(tl.int32), 0]), [GROUPS, BD])
    if INTERPRETED:
        x = as_float(x)
    return x


@triton.jit
def _added(a, b):
    """The sum of two products, each made by itself: the compiler would go on adding to the first, inexactly."""
    if INTERPRETED:
        a += b
    else:
        asm: tl.constexpr = "add.rn.f32 $0, $1, $2;"
        a = tl.inline_asm_elementwise(asm, "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1)
    return a


@triton.jit
def _written(to, x, real):
    """Stored from the registers in which it is: the compiler would take it through shared memory."""
    if INTERPRETED:
        tl.store(to, x, mask=real)
    else:
        asm: tl.constexpr = "{.reg .pred p; setp.ne.s32 p, $3, 0; @p st.global.f32 [$1], $2; mov.u32 $0, 0;}"
        arguments = [to.to(tl.int64, bitcast=True), x, real.to(tl.int32)]
        tl.inline_asm_elementwise(asm, "=r,l,f,r", arguments, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _dot(a, b, acc):
    return tl.dot(a, tl.trans(b), acc, input_precision="ieee")


@triton.jit(do_not_specialize=["R"])
def pieces_kernel(x_ptr, pieces_ptr, top_ptr, R, D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr):
    """Rows FP32 ``[R,D]`` in pieces: FP16 ``[4,R,BD]``, and the powers of two they were moved by, FP32 ``[R]``.

    The power of a row that is not finite is NaN.
    """
    row, cols = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, BD)
    real = (row < R)[:, None] & (cols < D)[None, :]
    x = tl.load(x_ptr + row[:, None] * D + cols[None, :], mask=real, other=0.0)
    largest = largest_bits(x, 1)
    top = _top(largest)
    x = _moved(x, top)
    first, second, third = _cut(x)
    at, rest = row[:, None] * BD + cols[None, :], R.to(tl.int64) * BD
    real = (row < R)[:, None]
    tl.store(pieces_ptr + at, first.to(tl.float16), mask=real)
    tl.store(pieces_ptr + rest + at, second.to(tl.float16), mask=real)
    tl.store(pieces_ptr + 2 * rest + at, third.to(tl.float16), mask=real)
    tl.store(pieces_ptr + 3 * rest + at, x.to(tl.float16), mask=real)
    power = tl.where(largest < EXPONENT, top.to(tl.float32, bitcast=True), float("nan"))
    tl.store(top_ptr + row[:, None], power, mask=(row < R)[:, None])


@triton.jit(do_not_specialize=["H", "N", "mean_groups", "tiles", "groups", "NO"])
def owed_kernel(
    x_ptr,
    order_ptr,
    mean_ptr,
    rotation_ptr,
    made_ptr,
    pieces,
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
    NO,  # keys of a row of the output
    TILE_MEAN: tl.constexpr,
    NORM: tl.constexpr,
    PIECES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    TILE: tl.constexpr,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
    ORDER: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):
    """FP32 ``[B,H,groups,NO]``: means of Q, pieces of them by a descriptor, times the K of ``prepared_tile``."""
    bh, tile = located(tiles, HEADS_FIRST)
    place = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    rows = _keys(place, ORDER)
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
    if not INTERPRETED:
        # Adds nothing, and leaves x in the registers in which matrix units take the pieces of it.
        x = tl.dot(tl.zeros([TILE, 16], tl.float16), tl.zeros([16, BD], tl.float16), x)
    largest = largest_bits(x, 1)
    top = _top(largest)
    k1, k2, k3 = _cut(_moved(x, top))
    k1, k2, k3 = _in_fp16(k1), _in_fp16(k2), _in_fp16(k3)
    power = top.to(tl.float32, bitcast=True) * (1.0 / (ABOVE * ABOVE))
    every = (tl.num_programs(0) // tiles).to(tl.int64) * groups
    within, of_tile = tl.arange(0, GROUPS), tl.arange(0, TILE)
    real = (of_tile < NO - tile * TILE)[:, None]
    poison = tl.zeros([GROUPS], tl.float32)
    begin, end = 0, groups
    if INTERPRETED:  # it takes no tensors as bounds, with NumPy from 2.4 on, and makes one of every plain assignment
        begin, end = 0, end.handle.data.item()
    for start in tl.range(begin, end, GROUPS, num_stages=STAGES):
        row = bh * groups + start  # what lies beyond a head's means is multiplied too, and not stored
        both = tl.zeros([TILE, GROUPS], tl.float32)
        m = _piece(pieces, 3 * every + row, GROUPS, BD)
        both = _dot(k3, m, both)
        m = _piece(pieces, 2 * every + row, GROUPS, BD)
        both = _dot(_rejoined(k1, k2), m, both)
        m = _piece(pieces, every + row, GROUPS, BD)
        both = _dot(k1, m, _dot(k2, m, both))
        m = _piece(pieces, row, GROUPS, BD)
        both = _dot(k2, m, both)
        both = _added(both, _dot(k1, m, tl.zeros([TILE, GROUPS], tl.float32)))
        there = within < groups - start
        own = tl.load(top_ptr + row + within, mask=there, other=1.0)
        poison += own * 0.0
        to = out_ptr + (row * NO + tile.to(tl.int64) * TILE)
        _written((to + within * NO)[None, :] + of_tile[:, None], both * power * own[None, :], there[None, :] & real)
    endless = (tl.max(largest) >= EXPONENT) | (tl.max((poison != poison).to(tl.int32), 0) != 0)
    tl.store(flags_ptr + tl.program_id(0), endless.to(tl.int32))


@triton.jit(do_not_specialize=["H", "N", "mean_groups", "tiles", "groups", "NO"])
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
    NO,  # keys of a row of the output
    TILE_MEAN: tl.constexpr,
    NORM: tl.constexpr,
    PIECES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    TILE: tl.constexpr,
    ORDER: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):
    """What is not finite in tiles that ``owed_kernel`` flagged, by plain sums: pieces make NaN of infinities."""
    if tl.load(flags_ptr + tl.program_id(0)) != 0:
        bh, tile = located(tiles, HEADS_FIRST)
        place = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
        rows = _keys(place, ORDER)
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
            to = out_ptr + (bh * groups + group) * NO + place
            tl.store(to, owed, mask=(place < NO) & ~(tl.abs(owed) < float("inf")))
