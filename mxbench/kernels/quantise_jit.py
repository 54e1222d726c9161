"""Device functions that quantise a tile in registers, bit for bit what ``mxbench.formats`` computes.

A tile is FP32. Largest magnitudes are taken on integer bits, where NaN and infinity are the largest of all: floating
maxima drop a NaN on a GPU. Every sum that must be rounded once, and every product that must not be fused into one, goes
through ``tl.fma``: the compiler contracts a product and a sum that stand side by side.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from mxbench.formats.block import NVFP4_RANGE
from mxbench.formats.quantizer import Quantizer
from mxbench.formats.scale import boundary

__all__ = [
    "abs_bits",
    "divided_by_shared",
    "e2m1_tile",
    "e4m3_byte",
    "e4m3_codes",
    "e5m2_byte",
    "expcast_codes",
    "expcast_values",
    "in_bf16",
    "inverse_power",
    "largest_bits",
    "mx_addend",
    "mx_exponent",
    "mx_scale_bits",
    "mx_tile",
    "nan_maximum",
    "nvfp4_tile",
    "power_of_two",
    "quantise_p_tile",
    "round_e4m3",
    "round_int8",
    "round_to_grid",
    "tile_fields",
]

# The interpreter has no fused multiply-add: it rounds twice. It divides as IEEE 754 asks, and so needs no other way.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

EXPONENT = tl.constexpr(0x7F800000)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
ONE = tl.constexpr(0x3F800000)  # bits of 1.0
MX_LEAST = tl.constexpr(0x00400000)  # 2^-127, an FP32 subnormal: the E8M0 code 0
MX_MOST = tl.constexpr(252 << 23)  # 2^125
E4M3_LEAST = tl.constexpr((127 - 6) << 23)  # bits of 2^-6, E4M3's smallest normal
TO_INTEGER = tl.constexpr(1.5 * 2.0**23)


def mx_addend(rule: str | float) -> int:
    """What is added to the FP32 bits of a block's maximum, so that the exponent field carries by the scale rule.

    ``e = E - 2 + [m > q/4]``: the sum carries into the exponent exactly where the integer mantissa exceeds that of q/4.
    At q = 8 the addend is -1, and an exact power of two borrows. 0 is the floor rule of OCP.
    """
    q = boundary(rule)
    return 0 if q is None else (1 << 23) - 1 - math.floor((q / 4 - 1) * 2**23)


def tile_fields(quantizer: Quantizer | None) -> dict[str, str | int | bool]:
    """The constants by which ``quantise_p_tile`` knows a quantiser of P: FORMAT, MX_ADD, SATURATE, EXACT, HALF_AWAY."""
    if quantizer is None:
        return {"FORMAT": "none", "MX_ADD": 0, "SATURATE": False, "EXACT": False, "HALF_AWAY": False}
    q = boundary(quantizer.scale_rule)
    if quantizer.format == "mxfp4":
        saturate = q is None or q >= 7  # below that nothing comes to lie above 7, the tie between 6 and 8
    elif quantizer.format == "nvfp4":
        # Divided by the exact scale nothing exceeds 6 by more than a rounding, unless the scale itself saturates.
        saturate = quantizer.divide_by == "stored" or quantizer.prescale > NVFP4_RANGE
    else:
        saturate = True
    return {
        "FORMAT": quantizer.format,
        "MX_ADD": mx_addend(quantizer.scale_rule),
        "SATURATE": saturate,
        "EXACT": quantizer.divide_by == "exact",
        "HALF_AWAY": quantizer.rounding == "half_away",
    }


@triton.jit
def abs_bits(x):
    """Bits of |x| as int32: their order is the order of the magnitudes, with infinity and NaN on top."""
    return x.to(tl.int32, bitcast=True) & MAGNITUDE


@triton.jit
def nan_maximum(a, b):
    """The larger, NaN where one is: floating maxima drop it on a GPU."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest_bits(x, AXIS: tl.constexpr):
    """``abs_bits`` of the largest magnitude along an axis, which stays with size 1; the signs cost nothing on a GPU."""
    if INTERPRETED:
        bits = tl.max(abs_bits(x), axis=AXIS, keep_dims=True)
    else:
        bits = abs_bits(tl.reduce(tl.abs(x), AXIS, nan_maximum, keep_dims=True))
    return bits


@triton.jit
def in_bf16(x):
    """FP32 values that BF16 holds, in BF16; the interpreter, which does not multiply it, keeps FP32."""
    if not INTERPRETED:
        x = x.to(tl.bfloat16)
    return x


@triton.jit
def mx_scale_bits(amax_bits, MX_ADD: tl.constexpr):
    """FP32 bits (int32) of the shared scale 2^e of blocks whose largest magnitude has the bits ``amax_bits`` (int32).

    ``mxbench.formats.scale.mx_exponent`` and ``power_of_two`` in one: clamped to [-127, 125], 1 for an all-zero block.
    What a non-finite maximum gives means nothing.
    """
    bits = ((amax_bits + MX_ADD) & EXPONENT) - (2 << 23)
    bits = tl.minimum(tl.where(bits <= 0, MX_LEAST, bits), MX_MOST)
    return tl.where(amax_bits == 0, ONE, bits)


@triton.jit
def mx_exponent(amax_bits, MX_ADD: tl.constexpr):
    """The exponent e itself, int32."""
    return (mx_scale_bits(amax_bits, MX_ADD) >> 23) - 127


@triton.jit
def power_of_two(exponent):
    """2^exponent as FP32 for int32 exponents in [-127, 127]."""
    return tl.where(exponent > -127, (exponent + 127) << 23, MX_LEAST).to(tl.float32, bitcast=True)


@triton.jit
def inverse_power(scale_bits):
    """FP32 1 / 2^e from the bits of a scale 2^e, e in [-127, 125]. Multiplying by it is dividing by the scale."""
    bits = 0x7F000000 - tl.where(scale_bits == MX_LEAST, 0, scale_bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def round_to_grid(x, least_bits, MANTISSA: tl.constexpr):
    """Round to ``MANTISSA`` fraction bits, ties to even; below the power of two of ``least_bits`` the spacing stays.

    Adding and subtracting 1.5·2^23 spacings rounds there. ``x`` is the addend of a fused multiply-add, so that a
    product that made it cannot be contracted with the sum. NaN stays NaN; |x| must stay below 2^104.
    """
    alpha: tl.constexpr = TO_INTEGER * 2.0 ** (-MANTISSA)
    power = tl.maximum(x.to(tl.int32, bitcast=True) & EXPONENT, least_bits).to(tl.float32, bitcast=True)
    return tl.fma(power, -alpha, tl.fma(power, alpha, x))


@triton.jit
def clamped(x, limit):
    """``x`` in [-limit, limit]; NaN stays NaN."""
    x = tl.minimum(x, limit, propagate_nan=tl.PropagateNan.ALL)
    return tl.maximum(x, -limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def e2m1_tile(x, scale_bits, SATURATE: tl.constexpr):
    """Nonnegative values rounded where they stand to E2M1·2^e, from the bits of 2^e (which broadcast against ``x``).

    Args:
        x: FP32, nonnegative, far below 2^100.
        scale_bits: int32.
        SATURATE: at 6·2^e; not needed where nothing exceeds 7·2^e.
    """
    x = round_to_grid(x, scale_bits, 1)
    if SATURATE:
        x = tl.minimum(x, scale_bits.to(tl.float32, bitcast=True) * 6.0, propagate_nan=tl.PropagateNan.ALL)
    return x


@triton.jit
def round_e4m3(x):
    """The nearest E4M3 value, ties to even, saturating at 448; either sign, held in FP32."""
    return round_to_grid(clamped(x, 448.0), E4M3_LEAST, 3)


@triton.jit
def round_int8(x, HALF_AWAY: tl.constexpr):
    """The nearest integer in [-127, 127], ties to even or away from zero, held in FP32."""
    x = clamped(x, 127.0)
    if HALF_AWAY:
        a = tl.abs(x)
        whole = tl.floor(a)
        whole = tl.where(a - whole >= 0.5, whole + 1.0, whole)  # the difference is exact
        x = tl.where(x < 0, -whole, whole)
    else:
        x = (x + TO_INTEGER) - TO_INTEGER
    return x


@triton.jit
def divided_by_shared(x, divisor, ONCE: tl.constexpr):
    """``x / divisor`` with a divisor that many elements share; 0 where the divisor is 0.

    The reciprocal, rounded right, is made once a divisor (it is of the divisor's own shape). Elements take one product
    and two fused steps for each correction: after two the quotient is IEEE's (Markstein), after one (``ONCE``) it is at
    most an ulp away from it and on the same side of every tie of E2M1, provided that the divisor is an E4M3 value.

    Args:
        x: FP32.
        divisor: FP32, nonnegative, broadcasts against ``x``; 0 or far above the subnormals.
        ONCE: one correction.
    """
    safe = tl.where(divisor == 0, 1.0, divisor)
    if INTERPRETED:
        q = tl.where(divisor == 0, 0.0, tl.div_rn(x, safe))
    else:
        y = tl.where(divisor == 0, 0.0, tl.div_rn(1.0, safe))
        q = x * y
        q = tl.fma(tl.fma(-divisor, q, x), y, q)
        if not ONCE:
            q = tl.fma(tl.fma(-divisor, q, x), y, q)
    return q


@triton.jit
def mx_tile(p, MX_ADD: tl.constexpr, SATURATE: tl.constexpr):
    """Nonnegative ``[BM, BN]`` to MXFP4 values in blocks of 32 along the last axis, BN a multiple of 32."""
    block = tl.reshape(p, [p.shape[0], p.shape[1] // 32, 32])
    # Unsigned: a NaN counts as largest whatever its sign.
    amax = tl.max(block.to(tl.uint32, bitcast=True), axis=2, keep_dims=True).to(tl.int32, bitcast=True)
    block = e2m1_tile(block, mx_scale_bits(amax, MX_ADD), SATURATE)
    return tl.reshape(block, p.shape)


@triton.jit
def nvfp4_tile(p, EXACT: tl.constexpr, SATURATE: tl.constexpr):
    """Nonnegative ``[BM, BN]`` to NVFP4 values in blocks of 16 along the last axis, BN a multiple of 16."""
    block = tl.reshape(p, [p.shape[0], p.shape[1] // 16, 16])
    amax = tl.max(block.to(tl.uint32, bitcast=True), axis=2, keep_dims=True).to(tl.float32, bitcast=True)
    exact = tl.minimum(tl.div_rn(amax, 6.0), 448.0, propagate_nan=tl.PropagateNan.ALL)
    stored = round_to_grid(exact, E4M3_LEAST, 3)
    # A stored scale of 0 makes zeros of whatever the quotient was.
    divisor = tl.where(stored == 0, 0.0, exact) if EXACT else stored
    block = round_to_grid(divided_by_shared(block, divisor, not EXACT), ONE, 1)
    if SATURATE:
        block = tl.minimum(block, 6.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.reshape(block * stored, p.shape)


@triton.jit
def quantise_p_tile(
    p,
    FORMAT: tl.constexpr,
    MX_ADD: tl.constexpr,
    SATURATE: tl.constexpr,
    EXACT: tl.constexpr,
    HALF_AWAY: tl.constexpr,
):
    """``mxbench.attention.probability.quantise_tile_`` on a register tile, to the bit; fields from ``tile_fields``.

    Args:
        p: FP32 ``[BM, BN]``, nonnegative, already multiplied by the prescale.
        FORMAT: mxfp4, nvfp4, e4m3, int8, or none.
        MX_ADD: see ``mx_addend``.
        SATURATE: whether rounding can leave the format.
        EXACT: NVFP4's elements are divided by the scale before it was rounded.
        HALF_AWAY: INT8's ties.

    Returns:
        FP32 ``[BM, BN]``, still multiplied by the prescale.
    """
    if FORMAT == "mxfp4":
        p = mx_tile(p, MX_ADD, SATURATE)
    elif FORMAT == "nvfp4":
        p = nvfp4_tile(p, EXACT, SATURATE)
    elif FORMAT == "e4m3":
        p = tl.minimum(round_to_grid(p, E4M3_LEAST, 3), 448.0, propagate_nan=tl.PropagateNan.ALL)
    elif FORMAT == "int8":
        p = round_int8(p, HALF_AWAY)
    else:
        tl.static_assert(FORMAT == "none")
    return p


@triton.jit
def expcast_sum(u):
    """1.5·2^23 + code: the code stands in the low byte of the bits. u at most 0; NaN gives code 0."""
    return tl.maximum(tl.fma(u, 8.0, 119.65), 0.0) + TO_INTEGER


@triton.jit
def expcast_codes(u):
    """int32 codes ``clip(RNE(fma(8, u, 119.65)), 0, 120)`` of scores u <= 0; as bytes they are the E4M3 of 256·P̂.

    u <= 0 keeps them below 121. A NaN gives code 0: the row's maximum must carry it.
    """
    return expcast_sum(u).to(tl.int32, bitcast=True) & 0xFF


@triton.jit
def expcast_values(u):
    """256·P̂ as FP32: codes moved to FP32's fields are their values times 2^-120."""
    bits = expcast_sum(u).to(tl.int32, bitcast=True) << 20  # what lies above the code leaves at the top
    return bits.to(tl.float32, bitcast=True) * (2.0**120)


@triton.jit
def e4m3_byte(x):
    """int8 E4M3 codes of FP32 values that are E4M3's (no NaN among them)."""
    bits = (x * (2.0**-120)).to(tl.int32, bitcast=True)
    return (((bits >> 20) & 0x7F) | ((bits >> 24) & 0x80)).to(tl.int8)


@triton.jit
def e4m3_codes(x):
    """int8 codes of the nearest E4M3 values, ties to even, saturating at 448: the device's own conversion."""
    if INTERPRETED:
        codes = e4m3_byte(round_e4m3(x))
    else:
        asm: tl.constexpr = """{ .reg .b16 l, h;
        cvt.rn.satfinite.e4m3x2.f32 l, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 h, $4, $3;
        mov.b32 $0, {l, h}; }"""
        codes = tl.inline_asm_elementwise(asm, "=r,f,f,f,f", [x], dtype=tl.int8, is_pure=True, pack=4)
    return codes


@triton.jit
def e5m2_byte(x):
    """int8 E5M2 codes of FP32 values that are E5M2's, NaN included."""
    if INTERPRETED:
        bits = (x * (2.0**-112)).to(tl.int32, bitcast=True)
        codes = (((bits >> 21) & 0x7F) | ((bits >> 24) & 0x80)).to(tl.int8)
    else:
        asm: tl.constexpr = """{ .reg .b16 l, h;
        cvt.rn.satfinite.e5m2x2.f32 l, $2, $1;
        cvt.rn.satfinite.e5m2x2.f32 h, $4, $3;
        mov.b32 $0, {l, h}; }"""
        codes = tl.inline_asm_elementwise(asm, "=r,f,f,f,f", [x], dtype=tl.int8, is_pure=True, pack=4)
    return codes
