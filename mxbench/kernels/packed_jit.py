"""P in packed arithmetic: scores to exponentials to codes, two scores an instruction, for the matrix units of sm90.

What ``fused_jit._plain`` computes in FP32 steps, with fewer of them, in PTX. The key is one place on the number line:
E2M1·2^-14 lies on FP16 so that E2M1's subnormals are FP16's. There rounding to E2M1, ties away from zero, is one
integer addition of half a spacing and one mask, subnormals and all; and since the FP32 exponential was cut to FP16, not
rounded, both see the same side of every tie. An exponential hits a tie only where its argument is an integer.

The scale of an MXFP4 block costs no exponential: its exponent follows from the largest score, and goes into the
argument of the exponential. In BF16 scores are rounded as the reference rounds them before that, two steps in place of
one: where they are large, a fused step moves codes that lie further from a tie. Values agree with ``_plain`` up to
codes whose quotient lies an ulp or two beside one.

Words are int32 ``[BM, BN / 2]`` of two BF16 values, or ``[BM, BN / 4]`` of four FP8 ones in the order of the keys, the
columns being interleaved as ``key_order.interleaved`` stores K: a thread's scores are then, byte by byte, its operand
of the second product. ``own`` is FP32 ``[BM, 8]``: the tile's sum of P in the 8 residues of the column, which a thread
holds by itself; or ``[BM, 4]``, in the quarters of the tile that ``key_order.quartered`` gives a thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.packed_steps_jit import add16, fours, high_half, less, low_half, nan_max, pairs, quarters
from mxbench.kernels.quantise_jit import E4M3_LEAST, INTERPRETED, nan_maximum, round_to_grid

__all__ = ["packed_mx", "packed_nvfp4"]

MAGIC = tl.constexpr(1.5 * 2.0**23)  # the sum of it and a small number is rounded to an integer, in the low bits
MAGIC_BITS = tl.constexpr(0x4B400000)
LEAST_E5M2 = tl.constexpr(-31)  # exponents of scales stop here: at -31 the factor of a block is zero
LEAST_BF16 = tl.constexpr(-127)  # where E8M0's end


@triton.jit
def _below(block, m, factor):
    """Scores ``[BM, G, N]`` in the log2 domain, less the maximum, as the reference rounds them."""
    u = block * factor[:, None, None]
    return less(u, tl.broadcast_to(m[:, None, None], u.shape))


@triton.jit
def _up(a, b):
    return tl.inline_asm_elementwise("add.rp.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _down(a, b):
    return tl.inline_asm_elementwise("add.rm.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _e2m1(low, high, half, SATURATE: tl.constexpr):
    """FP16 pairs of E2M1·2^-14 from FP32 values times 2^-14.

    ``half``, 0x01000100, comes from the launcher: as a literal it would be made anew before each use.
    """
    if SATURATE:
        asm: tl.constexpr = """{ .reg .b32 h, m;
        mov.b32 m, 0x0FFF0FFF;
        cvt.rz.f16x2.f32 h, $2, $1;
        add.u16x2 h, h, $3;
        min.u16x2 h, h, m;
        and.b32 $0, h, 0x0E000E00; }"""
    else:
        asm: tl.constexpr = """{ .reg .b32 h;
        cvt.rz.f16x2.f32 h, $2, $1;
        add.u16x2 h, h, $3;
        and.b32 $0, h, 0x0E000E00; }"""
    return tl.inline_asm_elementwise(asm, "=r,f,f,r", [low, high, half], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _halves_of_units(codes):
    """E2M1·2^-14 to E2M1/2: FP16 pairs, all normal; sums of them over a block are exact."""
    asm: tl.constexpr = "{ .reg .b32 f; mov.b32 f, 0x70007000; mul.rn.f16x2 $0, $1, f; }"
    return tl.inline_asm_elementwise(asm, "=r,r", [codes], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _quarters_of_units(codes):
    """E2M1·2^-14 to E2M1/4, likewise."""
    asm: tl.constexpr = "{ .reg .b32 f; mov.b32 f, 0x6C006C00; mul.rn.f16x2 $0, $1, f; }"
    return tl.inline_asm_elementwise(asm, "=r,r", [codes], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _bf16_word(codes, factor):
    """E2M1·2^-14 in FP16 pairs, moved by three bits, is E2M1·2^-126 in BF16 pairs; times ``factor`` in BF16 pairs."""
    asm: tl.constexpr = "{ .reg .b32 x; shr.u32 x, $1, 3; mul.rn.bf16x2 $0, x, $2; }"
    return tl.inline_asm_elementwise(asm, "=r,r,r", [codes, factor], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _bf16_twice(x):
    asm: tl.constexpr = "cvt.rn.bf16x2.f32 $0, $1, $1;"
    return tl.inline_asm_elementwise(asm, "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _e5m2_word(a, b, factor):
    """FP16 pairs times ``factor``, cut to their upper bytes, which are E5M2."""
    asm: tl.constexpr = """{ .reg .b32 x, y;
    mul.rn.f16x2 x, $1, $3;
    mul.rn.f16x2 y, $2, $3;
    prmt.b32 $0, x, y, 0x7531; }"""
    return tl.inline_asm_elementwise(asm, "=r,r,r,r", [a, b, factor], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _spread(x, BLOCK: tl.constexpr):
    """A value a block ``[BM, G]`` for every pair of columns ``[BM, G * BLOCK / 2]``: the same registers."""
    BM: tl.constexpr = x.shape[0]
    G: tl.constexpr = x.shape[1]
    low, _high = pairs(tl.reshape(tl.broadcast_to(x[:, :, None], [BM, G, BLOCK]), [BM, G * BLOCK]))
    return low


@triton.jit
def _sums(p, BLOCK: tl.constexpr):
    """FP32 ``[BM, BN]`` summed over a block in each residue of 8: ``[BM, G, 8]``."""
    return tl.sum(tl.reshape(p, [p.shape[0], p.shape[1] // BLOCK, BLOCK // 8, 8]), 2)


@triton.jit
def _first(x, BLOCK: tl.constexpr):
    """A value a block ``[BM, G]`` beside ``_sums``: ``[BM, G, 8]``. Maxima of equal registers are no instruction."""
    BM: tl.constexpr = x.shape[0]
    G: tl.constexpr = x.shape[1]
    return tl.max(tl.reshape(tl.broadcast_to(x[:, :, None], [BM, G, BLOCK]), [BM, G, BLOCK // 8, 8]), 2)


@triton.jit
def _whole_sums(units, p, factor, of_p, G: tl.constexpr, QUANTISED_SUM: tl.constexpr):
    """FP32 ``[BM, G]``, sums of blocks of 32, which a thread holds alone.

    Of ``units``, FP16 pairs whose sums of sixteen are exact, times ``factor``; else of ``p`` times ``of_p``.
    """
    BM: tl.constexpr = p.shape[0]
    if QUANTISED_SUM:
        total = tl.reshape(units, [BM, G, 16])
        for _ in tl.static_range(4):
            a, b = tl.split(tl.reshape(total, [BM, G, total.shape[2] // 2, 2]))
            total = add16(a, b)
        total = tl.reshape(total, [BM, G])
        own = (low_half(total) + high_half(total)) * factor
    else:
        own = tl.sum(tl.reshape(p, [BM, G, 32]), 2) * of_p
    return own


@triton.jit
def packed_mx(
    x,
    m,
    factor,
    half,
    ADD: tl.constexpr,
    DOWN: tl.constexpr,
    AT_ZERO: tl.constexpr,
    SATURATE: tl.constexpr,
    QUANTISED_SUM: tl.constexpr,
    BITS: tl.constexpr,
    QUARTERED: tl.constexpr,
):
    """A tile of MXFP4.

    Args:
        x: FP32 scores ``[BM, BN]``; times ``factor`` they are in the log2 domain.
        m: FP32 ``[BM]``, the running maximum of the products with ``factor``; of the scores in 8 bits with ``AT_ZERO``.
        factor: FP32 ``[BM]``, positive.
        half: 0x01000100.
        ADD: the exponent of a block is ``u + ADD`` rounded, u being its largest score less the maximum.
        DOWN: rounded down (the OCP rule), else up.
        AT_ZERO: the rule jumps at powers of two, so that u must be 0 at the maximum, exactly.
        SATURATE: whether a quotient can exceed 7.
        QUANTISED_SUM: ``own`` sums the quantised P.
        BITS: 16, P is BF16 in units of 2; 8, E5M2 in units of 2^-15, and zero in blocks of exponents below -30. BF16's
            subnormals hold E2M1·2^-127 in any unit up to 2^5; a unit of 2 leaves V the room that the reference does.
        QUARTERED: columns are in the order of ``by_keys``; blocks of 32 are a thread's own.

    Returns:
        new maximum ``[BM]``, words, and ``own`` in the units of P.
    """
    BM: tl.constexpr = x.shape[0]
    BN: tl.constexpr = x.shape[1]
    G: tl.constexpr = BN // 32
    LEAST: tl.constexpr = LEAST_E5M2 if BITS == 8 else LEAST_BF16
    block = tl.reshape(x, [BM, G, 32])
    top = nan_max(block, 2)
    if BITS == 16:
        m = nan_maximum(m, nan_max(top, 1) * factor)
        u = tl.max(_below(top[:, :, None], m, factor), 2) + ADD
    elif AT_ZERO:
        m = nan_maximum(m, nan_max(top, 1))
        u = (top - m[:, None]) * factor[:, None] + ADD
    else:
        m = nan_maximum(m, nan_max(top, 1) * factor)
        u = tl.fma(top, factor[:, None], (ADD - m)[:, None])
    e = tl.maximum(_down(u, MAGIC) if DOWN else _up(u, MAGIC), MAGIC + LEAST)  # also of the -inf of masked blocks
    bits = e.to(tl.int32, bitcast=True) - MAGIC_BITS
    e = e - MAGIC
    if BITS == 16:
        p = tl.exp2(_below(block, m, factor) + (-14.0 - e)[:, :, None])
    elif AT_ZERO:
        p = tl.exp2(tl.fma(block - m[:, None, None], factor[:, None, None], (-14.0 - e)[:, :, None]))
    else:
        p = tl.exp2(tl.fma(block, factor[:, None, None], ((-14.0 - m)[:, None] - e)[:, :, None]))
    p = tl.reshape(p, [BM, BN])
    low, high = pairs(p)
    codes = _e2m1(low, high, half, SATURATE)
    if BITS == 8:
        units = _halves_of_units(codes)
        shift: tl.constexpr = 29  # 2^-14 to 2^15
        power = _spread((bits + 31) * 0x04000400, 32)  # FP16 pairs of 2^(e + 16)
        if QUARTERED:
            a, b = pairs(units)
            power_of_four, _same = pairs(power)
        else:
            a, b = fours(units)
            power_of_four, _same = fours(power)
        words = _e5m2_word(a, b, power_of_four)
    else:
        shift: tl.constexpr = 13  # 2^-14 to 2^-1
        words = _bf16_word(codes, _spread((bits + 252) * 0x00800080, 32))  # BF16 pairs of 2^(e + 125)
        if QUANTISED_SUM:
            units = _quarters_of_units(codes)
    of_p = ((bits + (127 + shift)) << 23).to(tl.float32, bitcast=True)
    if QUARTERED:
        if BITS == 8:
            whole = low_half((bits + 31) * 0x04000400)  # zero where the block is
        else:
            whole = ((bits + 128) << 23).to(tl.float32, bitcast=True)  # 2^(e + 1), never subnormal
        if QUANTISED_SUM:
            own = quarters(_whole_sums(units, p, whole, of_p, G, True))
        else:
            own = quarters(_whole_sums(codes, p, whole, of_p, G, False))
    elif QUANTISED_SUM:
        # Twice over pairs in FP16, where sums of eight are exact; then FP32, times the block's power of two.
        if BITS == 16:
            a, b = fours(units)
        c, d = tl.split(tl.permute(tl.reshape(add16(a, b), [BM, G, 2, 4]), [0, 1, 3, 2]))
        total = add16(c, d)
        if BITS == 8:
            f, _same = tl.split(tl.permute(tl.reshape(power_of_four, [BM, G, 2, 4]), [0, 1, 3, 2]))
            f = low_half(f)  # zero where the block is
        else:
            f = _spread(((bits + 128) << 23).to(tl.float32, bitcast=True), 32)  # 2^(e + 1), never subnormal
            f, _same = fours(f)
            f, _same = tl.split(tl.permute(tl.reshape(f, [BM, G, 2, 4]), [0, 1, 3, 2]))
        own = tl.reshape(tl.join(tl.sum(low_half(total) * f, 1), tl.sum(high_half(total) * f, 1)), [BM, 8])
    else:
        own = tl.sum(_sums(p, 32) * _first(of_p, 32), 1)
    return m, words, own


@triton.jit
def _sixth(x):
    """``x / 6`` as IEEE 754 asks (Markstein), where x is far above the subnormals; below, E4M3 is zero either way."""
    q = x * (1.0 / 6)
    if not INTERPRETED:
        q = tl.fma(tl.fma(q, -6.0, x), 1.0 / 6, q)
    else:
        q = tl.div_rn(x, 6.0)
    return q


@triton.jit
def _reciprocal(x):
    """1 / x to an ulp, for normal x."""
    if INTERPRETED:
        y = 1.0 / x
    else:
        asm: tl.constexpr = "rcp.approx.ftz.f32 $0, $1;"
        y = tl.inline_asm_elementwise(asm, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def packed_nvfp4(
    x, m, factor, half, PRESCALE: tl.constexpr, EXACT: tl.constexpr, SATURATE: tl.constexpr, QUARTERED: tl.constexpr
):
    """A tile of NVFP4 in BF16, with the sum of the unquantised P; P in units of 2^14 over the prescale.

    Args:
        x: FP32 scores ``[BM, BN]``.
        m: FP32 ``[BM]``, the running maximum times ``factor``.
        factor: FP32 ``[BM]``.
        half: 0x01000100.
        PRESCALE: P is quantised times this.
        EXACT: elements are divided by the scale before it was rounded.
        SATURATE: whether a quotient can exceed 7.
        QUARTERED: columns are in the order of ``by_keys``; blocks of 16 are a thread's own.
    """
    BM: tl.constexpr = x.shape[0]
    BN: tl.constexpr = x.shape[1]
    block = tl.reshape(x, [BM, BN // 16, 16])
    top = nan_max(block, 2)
    m = nan_maximum(m, nan_max(top, 1) * factor)
    p = tl.exp2(_below(block, m, factor))
    if QUARTERED:
        own = tl.sum(tl.reshape(p, [BM, 4, BN // 4]), 2) * (PRESCALE * 2.0**-14)
    else:
        own = tl.sum(tl.reshape(p, [BM, BN // 8, 8]), 1) * (PRESCALE * 2.0**-14)
    exact = tl.minimum(_sixth(tl.max(p, 2) * PRESCALE), 448.0)
    stored = round_to_grid(exact, E4M3_LEAST, 3)
    divisor = exact if EXACT else stored
    # Where the scale is zero, so is the block.
    inverse = tl.where(stored == 0, 0.0, _reciprocal(divisor) * (PRESCALE * 2.0**-14))
    p = tl.reshape(p * inverse[:, :, None], [BM, BN])
    low, high = pairs(p)
    codes = _e2m1(low, high, half, SATURATE)
    words = _bf16_word(codes, _spread(_bf16_twice(stored * 2.0**112), 16))
    return m, words, own
