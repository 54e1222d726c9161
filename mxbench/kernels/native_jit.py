"""Fused attention on matrix units that multiply FP4: both products are scaled dots of E2M1 codes, two a byte.

P is quantised and packed in registers. The recurrence is ``fused_jit``'s; tiles are loaded by pointers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.packed_steps_jit import nan_max
from mxbench.kernels.quantise_jit import (
    E4M3_LEAST,
    INTERPRETED,
    ONE,
    divided_by_shared,
    e4m3_byte,
    inverse_power,
    mx_scale_bits,
    nan_maximum,
    round_to_grid,
)

__all__ = ["native_kernel"]

E2M1 = tl.constexpr("e2m1")
MEAN_ROWS = tl.constexpr(128)  # keys that share a row of V-Smooth's means


@triton.jit
def _packed(elements):
    """Nonnegative E2M1 values ``[BM, BN]`` as codes, the first of two in the low half of a byte: ``[BM, BN / 2]``."""
    code = tl.where(elements < 2, elements * 2, tl.where(elements < 4, elements + 2, elements * 0.5 + 4)).to(tl.int32)
    low, high = tl.split(tl.reshape(code, [code.shape[0], code.shape[1] // 2, 2]))
    return (low | (high << 4)).to(tl.uint8)


@triton.jit
def _quantised(
    p,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
    MX_ADD: tl.constexpr,
    SATURATE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Codes ``[BM, BN / 2]``, scales ``[BM, BN / BLOCK]`` as the dot takes them, and the values ``[BM, BN]``."""
    BM: tl.constexpr = p.shape[0]
    BN: tl.constexpr = p.shape[1]
    block = tl.reshape(p, [BM, BN // BLOCK, BLOCK])
    amax = tl.max(block.to(tl.uint32, bitcast=True), axis=2).to(tl.int32, bitcast=True)
    if FORMAT == "mxfp4":
        bits = mx_scale_bits(amax, MX_ADD)
        scale = bits.to(tl.float32, bitcast=True)
        stored = (bits >> 23).to(tl.uint8)  # 0 is 2^-127, whose FP32 is a subnormal
        elements = block * inverse_power(bits)[:, :, None]
    else:
        exact = tl.minimum(tl.div_rn(amax.to(tl.float32, bitcast=True), 6.0), 448.0)
        scale = round_to_grid(exact, E4M3_LEAST, 3)
        stored = e4m3_byte(scale).to(tl.float8e4nv, bitcast=True)
        divisor = tl.where(scale == 0, 0.0, exact) if EXACT else scale
        elements = divided_by_shared(block, divisor[:, :, None], not EXACT)
    elements = round_to_grid(elements, ONE, 1)
    if SATURATE:
        elements = tl.minimum(elements, 6.0)
    elements = tl.reshape(elements, [BM, BN])
    value = tl.reshape(tl.reshape(elements, [BM, BN // BLOCK, BLOCK]) * scale[:, :, None], [BM, BN])
    return _packed(elements), stored, value


@triton.jit
def native_kernel(
    q,
    q_scale,
    k,
    k_scale,
    v,
    v_scale,
    score_factor,
    value_factor,
    mean,
    owed,
    out,
    NQ,
    NK,
    NVS,  # keys of V as stored, a multiple of BN
    log2_scale,
    zero,  # 0.0: Triton 3.6 cannot compile a scaled dot for sm100 onto zeros that it knows to be zeros
    D: tl.constexpr,
    DV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BLOCK: tl.constexpr,
    FORMAT: tl.constexpr,
    QUANTISED_SUM: tl.constexpr,
    PRESCALE: tl.constexpr,
    MX_ADD: tl.constexpr,
    SATURATE: tl.constexpr,
    EXACT: tl.constexpr,
    OWED_ROWS: tl.constexpr,
    HAS_MEAN: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
):
    """A program computes ``BM`` rows of one (batch, head). D and DV are powers of two, multiples of 64."""
    blocks = tl.cdiv(NQ, BM)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(0) % blocks) * BM
    rows = first + tl.arange(0, BM)
    channel = tl.arange(0, DV)
    kind: tl.constexpr = tl.uint8 if FORMAT == "mxfp4" else tl.float8e4nv

    row = rows.to(tl.int64)
    inside = (rows < NQ)[:, None]
    at = (bh * NQ + row)[:, None]
    q_codes = tl.load(q + at * (D // 2) + tl.arange(0, D // 2)[None, :], mask=inside, other=0)
    q_scales = tl.load(q_scale + at * (D // BLOCK) + tl.arange(0, D // BLOCK)[None, :], mask=inside, other=0)
    factor = log2_scale
    if HAS_FACTORS:
        product = tl.load(score_factor + bh)
        factor = factor * product
    acc = tl.zeros([BM, DV], tl.float32)
    m = tl.full([BM], float("-inf"), tl.float32)
    l = tl.zeros([BM], tl.float32)  # noqa: E741 - the field's name
    begin, end = 0, NK
    if INTERPRETED:  # it takes no tensors as bounds, with NumPy from 2.4 on, and makes one of every plain assignment
        begin, end = 0, end.handle.data.item()
    for start in tl.range(begin, end, BN):
        key = start + tl.arange(0, BN)
        there = key < NK
        at = (bh * NK + key)[:, None]
        codes = tl.load(k + at * (D // 2) + tl.arange(0, D // 2)[None, :], mask=there[:, None], other=0)
        scales = tl.load(k_scale + at * (D // BLOCK) + tl.arange(0, D // BLOCK)[None, :], mask=there[:, None], other=0)
        s = tl.dot_scaled(
            q_codes,
            q_scales.to(kind, bitcast=True),
            E2M1,
            tl.trans(codes),
            scales.to(kind, bitcast=True),
            E2M1,
            tl.full([BM, BN], 0.0, tl.float32) + zero,
        )
        if OWED_ROWS > 0:
            if HAS_FACTORS:
                s = s * product
            line = (bh * tl.cdiv(NQ, OWED_ROWS) + tl.minimum(row, NQ - 1) // OWED_ROWS) * NK
            s += tl.load(owed + line[:, None] + key[None, :], mask=there[None, :], other=0.0)
            s = s * log2_scale
        else:
            s = s * factor
        s = tl.where(there[None, :], s, float("-inf"))
        old = m
        m = nan_maximum(m, nan_max(s, 1))
        alpha = tl.exp2(old - m)
        p = tl.exp2(s - m[:, None]) * PRESCALE
        p_codes, p_scales, value = _quantised(p, FORMAT, BLOCK, MX_ADD, SATURATE, EXACT)
        own = tl.sum(value if QUANTISED_SUM else p, 1)
        l = l * alpha + own  # noqa: E741

        at = (bh * DV + channel)[:, None]
        codes = tl.load(v + at * (NVS // 2) + (start // 2 + tl.arange(0, BN // 2))[None, :])
        scales = tl.load(v_scale + at * (NVS // BLOCK) + (start // BLOCK + tl.arange(0, BN // BLOCK))[None, :])
        acc = acc * alpha[:, None]
        if HAS_MEAN:
            middle = mean + (bh * tl.cdiv(NK, MEAN_ROWS) + start // MEAN_ROWS) * DV + channel
            acc += own[:, None] * tl.load(middle)[None, :]
        acc = tl.dot_scaled(
            p_codes,
            p_scales,
            E2M1,
            tl.trans(codes),
            scales.to(kind, bitcast=True),
            E2M1,
            acc,
        )
    o = acc / l[:, None]
    if HAS_FACTORS:
        o = o * tl.load(value_factor + bh)
    tl.store(out + (bh * NQ + row)[:, None] * DV + channel[None, :], o.to(out.dtype.element_ty), mask=inside)
