"""P in E4M3, packed: see ``packed_jit``."""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.packed_steps_jit import add16, fours, high_half, low_half, nan_max, pairs
from mxbench.kernels.quantise_jit import nan_maximum

__all__ = ["packed_e4m3", "packed_expcast"]


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
    low, high = pairs(p)
    a, c = fours(low)
    b, d = fours(high)
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
    low, high = pairs(u)
    a, b = fours(_expcast(low, high, floor))
    asm: tl.constexpr = "prmt.b32 $0, $1, $2, 0x6420;"
    words = tl.inline_asm_elementwise(asm, "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)
    # An E4M3 code moved to FP16's fields is its value over 256; what 0x6600 leaves behind is taken off modulo 2^32.
    total = tl.reshape(add16(a * 128 - 0x00330000, b * 128 - 0x00330000), [BM, G * 2, 4])
    for _ in tl.static_range(4):
        if total.shape[1] > 1:
            c, d = tl.split(tl.permute(tl.reshape(total, [BM, 2, total.shape[1] // 2, 4]), [0, 2, 3, 1]))
            total = add16(c, d)
    total = tl.reshape(total, [BM, 4])
    return m, words, tl.reshape(tl.join(low_half(total), high_half(total)), [BM, 8]) * 256.0
