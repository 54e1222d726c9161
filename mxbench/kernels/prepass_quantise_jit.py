"""The kernel of the pre-pass that quantises: a tile in, its values in a type of the matrix units and scales out."""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels import prepass_plan as plan
from mxbench.kernels.prepass_jit import HIGHEST, LOWEST, located, prepared_tile
from mxbench.kernels.quantise_jit import (
    E4M3_LEAST,
    EXPONENT,
    ONE,
    TO_INTEGER,
    abs_bits,
    clamped,
    divided_by_shared,
    e4m3_codes,
    e5m2_byte,
    inverse_power,
    largest_bits,
    mx_exponent,
    mx_scale_bits,
    power_of_two,
    round_int8,
    round_to_grid,
)

__all__ = ["quantise_kernel"]

E5M2_TOP = tl.constexpr(plan.E5M2_TOP)
E5M2_LIFT = tl.constexpr(plan.E5M2_LIFT)
E5M2_REST = tl.constexpr((1 << 21) - 1)  # bits below E5M2's last, once its fields are moved to FP32's
E5M2_MOST = tl.constexpr(0x7B << 21)  # and those of its largest value
E5M2_LEAST_SCALE = tl.constexpr((127 - 15) << 23)  # half of 2^-15 is the least that E5M2 holds
E5M2_MOST_SCALE = tl.constexpr((127 + plan.E5M2_TOP) << 23)


@triton.jit
def round_e2m1(x, SATURATE: tl.constexpr):
    """The nearest E2M1 value, ties to even; either sign, held in FP32. SATURATE: at 6, where 7 can be passed."""
    if SATURATE:
        x = clamped(x, 6.0)
    return round_to_grid(x, ONE, 1)


@triton.jit
def mx_blocks(block, AXIS: tl.constexpr, MX_ADD: tl.constexpr, SATURATE: tl.constexpr):
    """MXFP4 values of blocks that lie along ``AXIS``; NaN where a block is not finite.

    And which blocks may have an element that E5M2 does not hold.
    """
    amax = largest_bits(block, AXIS)
    scale = mx_scale_bits(amax, MX_ADD)
    elements = round_e2m1(block * inverse_power(scale), SATURATE)
    beyond = (amax != 0) & (amax < EXPONENT) & ((scale < E5M2_LEAST_SCALE) | (scale > E5M2_MOST_SCALE))
    return elements * tl.where(amax < EXPONENT, scale.to(tl.float32, bitcast=True), float("nan")), beyond


@triton.jit
def divided(x, divisor):
    """``x / divisor`` as IEEE 754 asks, but below 2^-100, which every format rounds to zero; 0 where the divisor is 0.

    Both are moved to where the divisor, which many elements share, is in [2^-23, 2).
    """
    power = tl.minimum(tl.maximum(abs_bits(divisor) & EXPONENT, LOWEST), HIGHEST)
    power = tl.where(
        divisor == 0, ONE, power
    )  # x times the inverse of the lowest may be infinite, and 0 times that NaN
    inverse = inverse_power(power)
    return divided_by_shared(x * inverse, divisor * inverse, False)


@triton.jit
def nvfp4_blocks(block, AXIS: tl.constexpr, g):
    """NVFP4 values, less the second-level scale ``g``, of blocks that lie along ``AXIS``; NaN as in ``mx_blocks``."""
    amax = largest_bits(block, AXIS)
    exact = tl.div_rn(tl.div_rn(amax.to(tl.float32, bitcast=True), 6.0), g)
    scale = round_to_grid(tl.minimum(exact, 448.0), E4M3_LEAST, 3)
    elements = round_e2m1(divided(block, scale * g), True)
    return tl.where((amax < EXPONENT) & (g < float("inf")), elements * scale, float("nan"))


@triton.jit
def first_of_blocks(i, SIZE: tl.constexpr, TILE: tl.constexpr):
    """Tokens of a tile, the first of every block before the second of any.

    Threads then hold elements of one block below each other, and its maximum is theirs but for a step or two.
    """
    blocks: tl.constexpr = TILE // SIZE
    return (i % blocks) * SIZE + i // blocks


@triton.jit
def in_order(x, SIZE: tl.constexpr):
    """The rows of a tile of ``first_of_blocks``, in their own order."""
    block = tl.permute(tl.reshape(x, [SIZE, x.shape[0] // SIZE, x.shape[1]]), [1, 0, 2])
    return tl.reshape(block, x.shape)


@triton.jit
def in_blocks(x, FORMAT: tl.constexpr, ALONG_TOKENS: tl.constexpr, MX_ADD: tl.constexpr, SATURATE: tl.constexpr, g):
    """A tile in the blocks of its format, along tokens or along channels; and how many E5M2 may not hold."""
    size: tl.constexpr = 32 if FORMAT == "mxfp4" else 16
    axis: tl.constexpr = 0 if ALONG_TOKENS else 2
    if ALONG_TOKENS:
        block = tl.reshape(x, [size, x.shape[0] // size, x.shape[1]])
    else:
        block = tl.reshape(x, [x.shape[0], x.shape[1] // size, size])
    doubtful = 0
    if FORMAT == "mxfp4":
        block, beyond = mx_blocks(block, axis, MX_ADD, SATURATE)
        doubtful = tl.sum(tl.ravel(beyond.to(tl.int32)), axis=0)
    else:
        block = nvfp4_blocks(block, axis, g)
    return tl.reshape(block, x.shape), doubtful


@triton.jit
def shared_by_rows(amax, GRAIN: tl.constexpr, TILE: tl.constexpr):
    """Bits of the largest magnitude of each row's group, int32 ``[TILE]``, from those of the rows."""
    if GRAIN == "rows":
        amax = tl.zeros_like(amax) + tl.max(amax, axis=0)
    elif GRAIN == "sage_q":  # rows r and r + 8 of every 16
        pair = tl.reshape(amax, [TILE // 16, 2, 8])
        amax = tl.reshape(tl.zeros_like(pair) + tl.max(pair, axis=1, keep_dims=True), [TILE])
    else:  # token pairs (8i + 2t, 8i + 2t + 1) of every 128, for each t of 0..3
        tl.static_assert(GRAIN == "sage_k")
        four = tl.reshape(amax, [TILE // 128, 16, 4, 2])
        most = tl.max(tl.max(four, axis=3, keep_dims=True), axis=1, keep_dims=True)
        amax = tl.reshape(tl.zeros_like(four) + most, [TILE])
    return amax


@triton.jit
def scale_of(amax_bits, FORMAT: tl.constexpr, EPS: tl.constexpr):
    """The FP32 scale of groups of an 8-bit format: 1 for a group of zeros, NaN for one that is not finite."""
    largest: tl.constexpr = 448.0 if FORMAT == "e4m3" else 127.0
    scale = tl.div_rn(amax_bits.to(tl.float32, bitcast=True), largest) + EPS
    scale = tl.where(scale == 0, 1.0, scale)
    return tl.where(amax_bits < EXPONENT, scale, float("nan"))


@triton.jit
def codes_of(x, scale, FORMAT: tl.constexpr, HALF_AWAY: tl.constexpr):
    """int8 codes of ``x / scale`` in an 8-bit format whose scale this is; 0 where it is NaN."""
    sick = scale != scale
    quotient = divided(tl.where(sick, 0.0, x), tl.where(sick, 1.0, scale))
    if FORMAT == "e4m3":
        codes = e4m3_codes(quotient)
    elif HALF_AWAY:
        codes = round_int8(quotient, True).to(tl.int8)
    else:  # nothing exceeds 127 by more than a rounding: the code is in the low byte
        codes = (quotient + TO_INTEGER).to(tl.int32, bitcast=True).to(tl.int8)
    return codes


@triton.jit
def value_of(codes, FORMAT: tl.constexpr):
    """What codes stand for, FP32."""
    if FORMAT == "e4m3":
        codes = codes.to(tl.float8e4nv, bitcast=True)
    return codes.to(tl.float32)


@triton.jit
def lost_by_e5m2(value, moved):
    """How many values E5M2 does not hold once moved."""
    bits = abs_bits(moved * (2.0**-112))
    beyond = (bits == 0) | ((bits & E5M2_REST) != 0) | (bits > E5M2_MOST)
    gone = (value != 0) & (value == value) & beyond
    return tl.sum(tl.sum(gone.to(tl.int32), axis=1), axis=0)


@triton.jit(do_not_specialize=["H", "N", "mean_groups", "tiles"])
def quantise_kernel(
    x_ptr,
    order_ptr,
    mean_ptr,
    rotation_ptr,
    made_ptr,
    scale_ptr,
    power_ptr,
    out_ptr,
    row_scale_ptr,
    lost_ptr,
    stride_b,
    stride_h,
    stride_n,
    stride_d,
    H,
    N,
    n_out,
    mean_rows,
    mean_groups,
    tiles,
    FORMAT: tl.constexpr,
    GRAIN: tl.constexpr,
    ALONG_TOKENS: tl.constexpr,
    MX_ADD: tl.constexpr,
    SATURATE: tl.constexpr,
    HALF_AWAY: tl.constexpr,
    EPS: tl.constexpr,
    DEQUANTISE: tl.constexpr,
    HOLD: tl.constexpr,
    LIFT: tl.constexpr,
    TILE_MEAN: tl.constexpr,
    NORM: tl.constexpr,
    PIECES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    TILE: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):
    """Quantise a tile of a head and write it; what ``prepared_tile`` takes is as there.

    ``scale_ptr``: FP32 scales made before, ``[B,H]`` of the tensor (of NVFP4: the second level) or ``[B,H,D]`` of the
    channels, or None. ``power_ptr``, read where LIFT: FP32 ``[B,H,D]`` powers of two for E5M2, or None for one a row,
    whose inverse goes to ``row_scale_ptr``, as the scales of rows do (FP32 ``[B,H,N]``). ``lost_ptr``: int32 counter of
    what E5M2 does not hold. ``out_ptr``: ``[B,H,n_out,D]``, or ``[B,H,D,n_out]`` for the 8-bit holds of V, n_out being
    N with its padding.
    FORMAT is mxfp4, nvfp4, e4m3, int8 or none; GRAIN block, tensor, channel, rows, sage_q, sage_k or none.
    """
    bh, tile = located(tiles, HEADS_FIRST)
    place = tl.arange(0, TILE)
    if ALONG_TOKENS and GRAIN == "block":
        place = first_of_blocks(place, 32 if FORMAT == "mxfp4" else 16, TILE)
    rows = tile.to(tl.int64) * TILE + place
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
    power = 1.0
    if HOLD == "e5m2" and LIFT:
        if power_ptr is None:
            bits = abs_bits(x)
            most = tl.max(tl.where(bits < EXPONENT, bits, 0), axis=1)
            lift = tl.minimum(E5M2_TOP - mx_exponent(most, MX_ADD), E5M2_LIFT)
            tl.store(row_scale_ptr + bh * N + rows, power_of_two(-lift), mask=rows < N)
            power = power_of_two(lift)[:, None]
        else:
            power = tl.load(power_ptr + bh * D + cols, mask=cols < D, other=1.0)[None, :]
    value, doubtful, codes = x, 0, x
    if GRAIN == "block":
        g = tl.full([1, 1, 1], 1.0, tl.float32)
        if scale_ptr is not None:
            g *= tl.load(scale_ptr + bh)
        value, doubtful = in_blocks(x, FORMAT, ALONG_TOKENS, MX_ADD, SATURATE, g)
    elif FORMAT != "none":
        if GRAIN == "tensor":
            scale = tl.zeros([1, 1], dtype=tl.float32) + tl.load(scale_ptr + bh)
        elif GRAIN == "channel":
            scale = tl.load(scale_ptr + bh * D + cols, mask=cols < D, other=1.0)[None, :]
        else:
            row_scale = scale_of(shared_by_rows(tl.max(abs_bits(x), axis=1), GRAIN, TILE), FORMAT, EPS)
            tl.store(row_scale_ptr + bh * N + rows, row_scale, mask=rows < N)
            scale = row_scale[:, None]
        codes = codes_of(x, scale, FORMAT, HALF_AWAY)
        if HOLD != FORMAT:
            value = value_of(codes, FORMAT)
            if DEQUANTISE:
                value = value * scale

    if HOLD == "e5m2":
        moved = value * power
        held = e5m2_byte(moved)
        if LIFT or doubtful > 0:
            tl.atomic_add(lost_ptr, lost_by_e5m2(value, moved))
    elif HOLD == FORMAT:
        held = codes
    elif HOLD == "bfloat16":
        held = (value.to(tl.int32, bitcast=True) >> 16).to(tl.int16)  # what is held is held exactly
    else:
        held = value
    base = out_ptr + bh * n_out * D
    if ALONG_TOKENS and HOLD != "float32" and HOLD != "bfloat16":
        if GRAIN == "block":
            held = in_order(held, 32 if FORMAT == "mxfp4" else 16)
            rows = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
        to = cols.to(tl.int64)[:, None] * n_out + rows[None, :]
        tl.store(base + to, tl.trans(held), mask=(cols < D)[:, None] & (rows < n_out)[None, :])
    else:
        tl.store(base + rows[:, None] * D + cols[None, :], held, mask=(rows < n_out)[:, None] & (cols < D)[None, :])
