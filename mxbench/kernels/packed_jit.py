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
columns being interleaved as ``fused.interleaved`` stores K: a thread's scores are then, byte by byte, its operand of
the second product. ``own`` is FP32 ``[BM, 8]``: the tile's sum of P in the 8 residues of the column, which a thread
holds by itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.quantise_jit import E4M3_LEAST, INTERPRETED, round_to_grid

__all__ = [
    "exp2",
    "less",
    "nan_max",
    "nan_maximum",
    "packed_e4m3",
    "packed_expcast",
    "packed_mx",
    "packed_nvfp4",
    "unpacked",
]

MAGIC = tl.constexpr(1.5 * 2.0**23)  # the sum of it and a small number is rounded to an integer, in the low bits
MAGIC_BITS = tl.constexpr(0x4B400000)
LEAST_E5M2 = tl.constexpr(-31)  # exponents of scales stop here: at -31 the factor of a block is zero
LEAST_BF16 = tl.constexpr(-127)  # where E8M0's end


@triton.jit
def _pairs(x):
    """``[BM, BN]`` as columns (2i, 2i + 1): two tensors ``[BM, BN / 2]``. Nothing moves between threads."""
    return tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))


@triton.jit
def _fours(x):
    """Pairs ``[BM, BN / 2]`` that share a word of four: of column bits (b, j, j0, t) those of j0 = 0, and of 1."""
    BM: tl.constexpr = x.shape[0]
    G: tl.constexpr = x.shape[1] // 16
    a, b = tl.split(tl.permute(tl.reshape(x, [BM, G, 2, 2, 4]), [0, 1, 2, 4, 3]))
    return tl.reshape(a, [BM, G * 8]), tl.reshape(b, [BM, G * 8])


@triton.jit
def unpacked(words, BITS: tl.constexpr):
    """Words as int8 or int16 ``[BM, BN]``. A broadcast in place of the joins would be moved behind the instruction."""
    w = tl.join(words, words)
    if BITS == 8:
        w = tl.join(w, w)
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r,r,r", [w], dtype=tl.int8, is_pure=True, pack=4)
    else:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [w], dtype=tl.int16, is_pure=True, pack=2)
    return tl.reshape(x, [words.shape[0], words.shape[1] * (32 // BITS)])


@triton.jit
def nan_maximum(a, b):
    """The larger, NaN where one is: floating maxima drop it on a GPU."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def nan_max(x, AXIS: tl.constexpr):
    """The largest along an axis, NaN where there is one."""
    if INTERPRETED:
        sick = x != x
        top = tl.max(tl.where(sick, float("-inf"), x), AXIS) + tl.sum(tl.where(sick, x, 0.0), AXIS)
    else:
        top = tl.reduce(x, AXIS, nan_maximum)
    return top


@triton.jit
def exp2(x, SUBNORMAL: tl.constexpr):
    """2^x. Below 2^-126 zero, unless ``SUBNORMAL``, which costs three more instructions; the interpreter keeps it."""
    if SUBNORMAL and not INTERPRETED:
        asm: tl.constexpr = "ex2.approx.f32 $0, $1;"
        y = tl.inline_asm_elementwise(asm, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = tl.exp2(x)  # compiled to ex2.approx.ftz
    return y


@triton.jit
def less(a, b):
    """The difference, rounded by itself: ``a`` is a product, and the compiler would make one fused step of both."""
    if INTERPRETED:
        r = a - b
    else:
        asm: tl.constexpr = "sub.rn.f32 $0, $1, $2;"
        r = tl.inline_asm_elementwise(asm, "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1)
    return r


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
def _add16(a, b):
    return tl.inline_asm_elementwise("add.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _low(a):
    asm: tl.constexpr = "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, l; }"
    return tl.inline_asm_elementwise(asm, "=f,r", [a], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _high(a):
    asm: tl.constexpr = "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, h; }"
    return tl.inline_asm_elementwise(asm, "=f,r", [a], dtype=tl.float32, is_pure=True, pack=1)


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
    low, _high = _pairs(tl.reshape(tl.broadcast_to(x[:, :, None], [BM, G, BLOCK]), [BM, G * BLOCK]))
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
    low, high = _pairs(p)
    codes = _e2m1(low, high, half, SATURATE)
    if BITS == 8:
        units = _halves_of_units(codes)
        shift: tl.constexpr = 29  # 2^-14 to 2^15
        power = _spread((bits + 31) * 0x04000400, 32)  # FP16 pairs of 2^(e + 16)
        a, b = _fours(units)
        power_of_four, _same = _fours(power)
        words = _e5m2_word(a, b, power_of_four)
    else:
        shift: tl.constexpr = 13  # 2^-14 to 2^-1
        words = _bf16_word(codes, _spread((bits + 252) * 0x00800080, 32))  # BF16 pairs of 2^(e + 125)
    if QUANTISED_SUM:
        # Twice over pairs in FP16, where sums of eight are exact; then FP32, times the block's power of two.
        if BITS == 16:
            a, b = _fours(_quarters_of_units(codes))
        c, d = tl.split(tl.permute(tl.reshape(_add16(a, b), [BM, G, 2, 4]), [0, 1, 3, 2]))
        total = _add16(c, d)
        if BITS == 8:
            f, _same = tl.split(tl.permute(tl.reshape(power_of_four, [BM, G, 2, 4]), [0, 1, 3, 2]))
            f = _low(f)  # zero where the block is
        else:
            f = _spread(((bits + 128) << 23).to(tl.float32, bitcast=True), 32)  # 2^(e + 1), never subnormal
            f, _same = _fours(f)
            f, _same = tl.split(tl.permute(tl.reshape(f, [BM, G, 2, 4]), [0, 1, 3, 2]))
        own = tl.reshape(tl.join(tl.sum(_low(total) * f, 1), tl.sum(_high(total) * f, 1)), [BM, 8])
    else:
        f = _first(((bits + (127 + shift)) << 23).to(tl.float32, bitcast=True), 32)
        own = tl.sum(_sums(p, 32) * f, 1)
    return m, words, own


@triton.jit
def packed_nvfp4(x, m, factor, half, PRESCALE: tl.constexpr, EXACT: tl.constexpr, SATURATE: tl.constexpr):
    """A tile of NVFP4 in BF16, with the sum of the unquantised P; P in units of 2^14 over the prescale.

    Args:
        x: FP32 scores ``[BM, BN]``.
        m: FP32 ``[BM]``, the running maximum times ``factor``.
        factor: FP32 ``[BM]``.
        half: 0x01000100.
        PRESCALE: P is quantised times this.
        EXACT: elements are divided by the scale before it was rounded.
        SATURATE: whether a quotient can exceed 7.
    """
    BM: tl.constexpr = x.shape[0]
    BN: tl.constexpr = x.shape[1]
    block = tl.reshape(x, [BM, BN // 16, 16])
    m = nan_maximum(m, nan_max(nan_max(block, 2), 1) * factor)
    p = tl.exp2(_below(block, m, factor))
    own = tl.sum(tl.reshape(p, [BM, BN // 8, 8]), 1) * (PRESCALE * 2.0**-14)
    exact = tl.minimum(tl.div_rn(tl.max(p, 2) * PRESCALE, 6.0), 448.0)
    stored = round_to_grid(exact, E4M3_LEAST, 3)
    divisor = exact if EXACT else stored
    inverse = tl.where(stored == 0, 0.0, (PRESCALE * 2.0**-14) / divisor)  # where the scale is zero, so is the block
    p = tl.reshape(p * inverse[:, :, None], [BM, BN])
    low, high = _pairs(p)
    codes = _e2m1(low, high, half, SATURATE)
    words = _bf16_word(codes, _spread(_bf16_twice(stored * 2.0**112), 16))
    return m, words, own


@triton.jit
def _row_maximum(x, m, factor):
    if x.dtype.is_int():
        top = tl.max(x, 1).to(tl.float32)
    else:
        top = nan_max(x, 1)
    return nan_maximum(m, top * factor)


@triton.jit
def packed_e4m3(x, m, factor, LOG2_PRE: tl.constexpr):
    """A tile of E4M3, and the sum of the unquantised P; both times the prescale. ``x`` may be int32."""
    BM: tl.constexpr = x.shape[0]
    BN: tl.constexpr = x.shape[1]
    m = _row_maximum(x, m, factor)
    p = tl.exp2(tl.fma(x.to(tl.float32), factor[:, None], (LOG2_PRE - m)[:, None]))
    low, high = _pairs(p)
    a, c = _fours(low)
    b, d = _fours(high)
    asm: tl.constexpr = """{ .reg .b16 l, h;
    cvt.rn.satfinite.e4m3x2.f32 l, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 h, $4, $3;
    mov.b32 $0, {l, h}; }"""
    words = tl.inline_asm_elementwise(asm, "=r,f,f,f,f", [a, b, c, d], dtype=tl.int32, is_pure=True, pack=1)
    return m, words, tl.sum(tl.reshape(p, [BM, BN // 8, 8]), 1)


@triton.jit
def _expcast(low, high, floor):
    """FP16 pairs 1536 + code: the conversion of 1536 + x rounds to an integer.

    As int16, what lies below 1536, -inf too, is less than its bits; a NaN is more, and its low byte an E4M3 NaN.
    """
    asm: tl.constexpr = "{ .reg .b32 h; cvt.rn.f16x2.f32 h, $2, $1; max.s16x2 $0, h, $3; }"
    return tl.inline_asm_elementwise(asm, "=r,f,f,r", [low, high, floor], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def packed_expcast(x, m, factor, floor):
    """A tile of ExpCast's E4M3 codes, and the sum of the decoded P; both times 256. ``x`` may be int32.

    The sum of 1536 and the argument keeps 13 fraction bits: one code in 30000 is the other one beside a tie. ``own`` is
    summed over a thread's columns in FP16, a rounding of 2^-12 at each of four levels.

    Args:
        x: scores ``[BM, BN]``.
        m: FP32 ``[BM]``, the running maximum times ``factor``.
        factor: FP32 ``[BM]``.
        floor: 0x66006600, FP16 pairs of 1536.
    """
    BM: tl.constexpr = x.shape[0]
    G: tl.constexpr = x.shape[1] // 32
    m = _row_maximum(x, m, factor)
    u = tl.fma(x.to(tl.float32), (factor * 8.0)[:, None], tl.fma(m, -8.0, 1536.0 + 119.65)[:, None])
    low, high = _pairs(u)
    a, b = _fours(_expcast(low, high, floor))
    asm: tl.constexpr = "prmt.b32 $0, $1, $2, 0x6420;"
    words = tl.inline_asm_elementwise(asm, "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)
    # An E4M3 code moved to FP16's fields is its value over 256; what 0x6600 leaves behind is taken off modulo 2^32.
    total = tl.reshape(_add16(a * 128 - 0x00330000, b * 128 - 0x00330000), [BM, G * 2, 4])
    for _ in tl.static_range(4):
        if total.shape[1] > 1:
            c, d = tl.split(tl.permute(tl.reshape(total, [BM, 2, total.shape[1] // 2, 4]), [0, 2, 3, 1]))
            total = _add16(c, d)
    total = tl.reshape(total, [BM, 4])
    return m, words, tl.reshape(tl.join(_low(total), _high(total)), [BM, 8]) * 256.0
