"""Steps that packed tiles are made of: pairs and fours of columns, halves of words, exponentials and maxima."""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.quantise_jit import INTERPRETED, nan_maximum

__all__ = [
    "add16",
    "by_columns",
    "by_keys",
    "exp2",
    "fours",
    "high_half",
    "less",
    "low_half",
    "nan_max",
    "pairs",
    "quarters",
    "unpacked",
]


@triton.jit
def pairs(x):
    """``[BM, BN]`` as columns (2i, 2i + 1): two tensors ``[BM, BN / 2]``. Nothing moves between threads."""
    return tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))


@triton.jit
def fours(x):
    """Pairs ``[BM, BN / 2]`` that share a word of four: of column bits (b, j, j0, t) those of j0 = 0, and of 1."""
    BM: tl.constexpr = x.shape[0]
    G: tl.constexpr = x.shape[1] // 16
    a, b = tl.split(tl.permute(tl.reshape(x, [BM, G, 2, 2, 4]), [0, 1, 2, 4, 3]))
    return tl.reshape(a, [BM, G * 8]), tl.reshape(b, [BM, G * 8])


@triton.jit
def by_keys(x):
    """Columns ``[BM, BN]`` of ``key_order.quartered`` keys, in the order of the keys. Nothing moves between threads."""
    x4 = tl.permute(tl.reshape(x, [x.shape[0], x.shape[1] // 8, 4, 2]), [0, 2, 1, 3])
    return tl.reshape(x4, x.shape)


@triton.jit
def by_columns(words):
    """Pairs ``[BM, BN / 2]`` in the order of the keys, as the columns stand: back from ``by_keys``."""
    w4 = tl.permute(tl.reshape(words, [words.shape[0], 4, words.shape[1] // 4]), [0, 2, 1])
    return tl.reshape(w4, words.shape)


@triton.jit
def quarters(x):
    """Values of blocks ``[BM, G]`` summed over each quarter of a tile: ``[BM, 4]``."""
    if x.shape[1] > 4:
        x = tl.sum(tl.reshape(x, [x.shape[0], 4, x.shape[1] // 4]), 2)
    return x


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
def add16(a, b):
    """Sums of FP16 pairs."""
    return tl.inline_asm_elementwise("add.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def low_half(a):
    """FP32 of the first FP16 of a pair."""
    asm: tl.constexpr = "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, l; }"
    return tl.inline_asm_elementwise(asm, "=f,r", [a], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def high_half(a):
    """FP32 of the second FP16 of a pair."""
    asm: tl.constexpr = "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, h; }"
    return tl.inline_asm_elementwise(asm, "=f,r", [a], dtype=tl.float32, is_pure=True, pack=1)
