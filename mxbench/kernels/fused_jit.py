"""The fused attention kernel: the online softmax over ascending key tiles, P quantised in registers.

One kernel for every method: what differs is a constexpr. It computes what ``mxbench.attention.reference.walk`` does.
P is kept in a unit of its own (a power of two times the prescale), and the row sum ``l`` in the same, so that their
quotient needs no factor.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mxbench.kernels.packed_fp8_jit import packed_e4m3, packed_expcast
from mxbench.kernels.packed_jit import packed_mx, packed_nvfp4
from mxbench.kernels.packed_steps_jit import by_columns, by_keys, exp2, less, nan_max, unpacked
from mxbench.kernels.prepass_jit import as_float
from mxbench.kernels.quantise_jit import INTERPRETED, expcast_values, nan_maximum, quantise_p_tile

__all__ = ["fused_kernel"]

MEAN_ROWS = tl.constexpr(128)  # keys that share a row of V-Smooth's means


@triton.jit
def _rows(source, bh, start, N, WIDTH: tl.constexpr, R: tl.constexpr, PAD: tl.constexpr, DESCRIBED: tl.constexpr):
    """Rows ``start..start + R`` of ``[BH, N, WIDTH]`` as ``[R, PAD]``; zeros outside."""
    if DESCRIBED:
        tile = tl.reshape(source.load([bh, start, 0]), [R, PAD])
    else:
        row, column = start + tl.arange(0, R), tl.arange(0, PAD)
        pointers = source + (bh.to(tl.int64) * N + row)[:, None] * WIDTH + column[None, :]
        inside = ((row >= 0) & (row < N))[:, None] & (column < WIDTH)[None, :]
        tile = tl.load(pointers, mask=inside, other=0.0)
    return tile


@triton.jit
def _columns(source, bh, start, N, WIDTH: tl.constexpr, R: tl.constexpr, PAD: tl.constexpr, DESCRIBED: tl.constexpr):
    """Columns ``start..start + R`` of ``[BH, WIDTH, N]`` as ``[R, PAD]``; zeros outside."""
    if DESCRIBED:
        tile = tl.reshape(source.load([bh, 0, start]), [PAD, R])
    else:
        column, row = start + tl.arange(0, R), tl.arange(0, PAD)
        pointers = source + (bh.to(tl.int64) * WIDTH + row)[:, None] * N + column[None, :]
        inside = (row < WIDTH)[:, None] & ((column >= 0) & (column < N))[None, :]
        tile = tl.load(pointers, mask=inside, other=0.0)
    return tl.trans(tile)


@triton.jit
def _weighted(p, v, acc, bh, start, NV, DV: tl.constexpr, DV_PAD: tl.constexpr, BN: tl.constexpr, HOLD: tl.constexpr,
              PACKED: tl.constexpr, DESCRIBED: tl.constexpr):  # fmt: skip
    """P·V of one tile, onto ``acc`` or, where that is None, onto zero."""
    if PACKED:
        p = unpacked(p, HOLD.primitive_bitwidth).to(HOLD, bitcast=True)
    if HOLD.primitive_bitwidth == 8:
        values = _columns(v, bh, start, NV, DV, BN, DV_PAD, DESCRIBED)
    else:
        values = _rows(v, bh, start, NV, DV, BN, DV_PAD, DESCRIBED)
    if HOLD.is_fp32():
        out = tl.dot(p, values, acc, input_precision="ieee")
    elif HOLD.is_int8():
        out = tl.dot(p, values, out_dtype=tl.int32).to(tl.float32)
    else:
        out = tl.dot(p, values, acc)
    return out


@triton.jit
def _middle(mass, mean, bh, start, NK, DV: tl.constexpr, DV_PAD: tl.constexpr, DESCRIBED: tl.constexpr):
    """What V-Smooth took off V in the tile at ``start``, times the tile's part of the row sum (0 before the first)."""
    row = tl.maximum(start, 0) // MEAN_ROWS
    if DESCRIBED:
        middle = tl.reshape(mean.load([bh, row, 0]), [1, DV_PAD])
    else:
        channel = tl.arange(0, DV_PAD)
        middle = mean + (bh.to(tl.int64) * tl.cdiv(NK, MEAN_ROWS) + row) * DV + channel
        middle = tl.load(middle, mask=channel < DV, other=0.0)[None, :]
    return mass[:, None] * middle


@triton.jit
def _handed(x, zero):
    """``x``, made anew: a value that a loop hands on as it is would be two iterations old, and is not pipelined."""
    return (x.to(tl.int32, bitcast=True) ^ zero).to(tl.float32, bitcast=True)


@triton.jit
def _beside(x, BN: tl.constexpr, BLOCK: tl.constexpr, QUARTERED: tl.constexpr):
    """A value a row ``[BM]`` beside its sums, ``[BM, 8]`` or of quarters: maxima of equal registers, no instruction."""
    BM: tl.constexpr = x.shape[0]
    if BLOCK > 0:  # in the layout in which the blocks' maxima come
        wide = tl.broadcast_to(x[:, None, None], [BM, BN // BLOCK, BLOCK])
    else:
        wide = tl.broadcast_to(x[:, None], [BM, BN])
    if QUARTERED:
        x = tl.max(tl.reshape(wide, [BM, 4, BN // 4]), 2)
    else:
        x = tl.max(tl.reshape(wide, [BM, BN // 8, 8]), 1)
    return x


@triton.jit
def _stored(key, TILE: tl.constexpr):
    """Where keys stand that ``key_order.quartered_columns`` stores by tiles of ``TILE``."""
    within = key % TILE
    return key - within + within % (TILE // 4) // 4 * 16 + within // (TILE // 4) * 4 + within % 4


@triton.jit
def _in_key_order(p):
    """Columns ``[BM, BN]`` of interleaved keys back in the order of the keys."""
    BM: tl.constexpr = p.shape[0]
    BN: tl.constexpr = p.shape[1]
    p = tl.permute(tl.reshape(p, [BM, BN // 32, 2, 2, 4, 2]), [0, 1, 2, 4, 3, 5])
    return tl.reshape(p, [BM, BN])


@triton.jit
def _plain(
    x,
    m,
    factor,
    FORMAT: tl.constexpr,
    EXPCAST: tl.constexpr,
    QUANTISED_SUM: tl.constexpr,
    PRESCALE: tl.constexpr,
    UNIT: tl.constexpr,
    MX_ADD: tl.constexpr,
    SATURATE: tl.constexpr,
    EXACT: tl.constexpr,
    HALF_AWAY: tl.constexpr,
    HOLD: tl.constexpr,
):
    """A tile step by step as the reference computes it: new maximum ``[BM]``, P ``[BM, BN]``, FP32 sums ``[BM, 8]``."""
    u = x.to(tl.float32) * factor[:, None]
    m = nan_maximum(m, nan_max(u, 1))
    u = less(u, tl.broadcast_to(m[:, None], u.shape))
    if EXPCAST:
        p = expcast_values(u)
        if not QUANTISED_SUM:
            summed = tl.exp2(u) * (PRESCALE * UNIT)
    else:
        p = exp2(u, FORMAT == "mxfp4" and HOLD.primitive_bitwidth > 8) * PRESCALE  # E8M0 goes down to 2^-127
        summed = p * UNIT
        p = quantise_p_tile(p, FORMAT, MX_ADD, SATURATE, EXACT, HALF_AWAY)
    p = p * UNIT
    if QUANTISED_SUM:
        summed = p
    p = p.to(HOLD)
    if QUANTISED_SUM and HOLD.is_fp8e5():
        summed = p.to(tl.float32)  # as held: what is too small for the type is zero in both
    return m, p, tl.sum(tl.reshape(summed, [x.shape[0], x.shape[1] // 8, 8]), 1)


# No length makes another program. A kernel that knows of NK = 1 packs equal conversions to E4M3, and then ptxas leaves
# half of a word as it was: a NaN there times a zero of V.
@triton.jit(do_not_specialize=["NQ", "NK", "NKS", "NVS"])
def fused_kernel(
    q,
    k,
    v,
    q_scale,
    k_scale,
    v_scale,
    mean,
    owed,
    out,
    NQ,  # queries
    NK,  # keys
    NKS,  # rows of K as stored
    NVS,  # keys of V as stored
    log2_scale,
    half,  # see packed_jit
    floor,
    zero,
    D: tl.constexpr,
    DV: tl.constexpr,
    D_PAD: tl.constexpr,
    DV_PAD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    HOLD: tl.constexpr,  # type of P and V
    FORMAT: tl.constexpr,  # of P: none, mxfp4, nvfp4, e4m3, int8
    EXPCAST: tl.constexpr,
    QUANTISED_SUM: tl.constexpr,
    PRESCALE: tl.constexpr,
    LOG2_PRE: tl.constexpr,
    UNIT: tl.constexpr,  # P is kept times this
    MX_ADD: tl.constexpr,
    SATURATE: tl.constexpr,
    EXACT: tl.constexpr,
    HALF_AWAY: tl.constexpr,
    PACKED: tl.constexpr,  # by packed_jit, else by _plain
    QUARTERED: tl.constexpr,  # K and V as key_order.quartered stores them
    ADD: tl.constexpr,  # packed_mx: the scale rule
    DOWN: tl.constexpr,
    AT_ZERO: tl.constexpr,
    K_SCALE: tl.constexpr,  # none, tile, key
    OWED_ROWS: tl.constexpr,  # 0: nothing owed
    OWED_TILE: tl.constexpr,  # keys of a tile in another order; 0: none are
    OWED_DESCRIBED: tl.constexpr,  # a tile of it comes by a tensor descriptor
    HAS_Q_SCALE: tl.constexpr,
    HAS_V_SCALE: tl.constexpr,
    HAS_MEAN: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BEHIND: tl.constexpr,
    DESCRIBED: tl.constexpr,
    STAGES: tl.constexpr,  # of loads that no product takes; None: such loads do not run ahead
):
    """A program computes ``BM`` rows of one (batch, head).

    FP8 products of P and V start from zero in every tile and are added in FP32: Hopper's FP8 units keep about 14 bits.

    BEHIND: P·V of a tile is issued after the next tile's scores and runs beside its softmax.
    """
    blocks = tl.cdiv(NQ, BM)
    bh = tl.program_id(0) // blocks
    row = (tl.program_id(0) % blocks) * BM
    rows = row + tl.arange(0, BM)
    bh64 = bh.to(tl.int64)
    SPLIT: tl.constexpr = HOLD.primitive_bitwidth == 8
    BLOCK: tl.constexpr = (32 if FORMAT == "mxfp4" else (16 if FORMAT == "nvfp4" else 0)) if PACKED else 0

    queries = _rows(q, bh, row, NQ, D, BM, D_PAD, DESCRIBED)
    row_factor = tl.full([BM], 1.0, tl.float32) * log2_scale
    if HAS_Q_SCALE:
        row_scale = tl.load(q_scale + bh64 * NQ + rows, mask=rows < NQ, other=1.0)
        row_factor = row_factor * row_scale
    key = tl.arange(0, BN)
    if INTERLEAVED:  # row (j1, j0, t1, t0, i) of 32 stored rows is key (j1, t1, t0, j0, i)
        key = (key & ~14) | ((key & 6) << 1) | ((key & 8) >> 2)
    channel = tl.arange(0, DV_PAD)

    acc = tl.zeros([BM, DV_PAD], tl.float32)
    m = tl.full([BM], float("-inf"), tl.float32)
    l = tl.zeros([BM, 4 if QUARTERED else 8], tl.float32)  # noqa: E741 - the field's name; columns as those of own
    if BEHIND:
        alpha = tl.zeros([BM], tl.float32)
        before = tl.zeros([BM], tl.float32)
        late = tl.zeros([BM, DV_PAD], tl.float32)
        if HAS_MEAN:
            mass = tl.zeros([BM], tl.float32)
            mass_before = tl.zeros([BM], tl.float32)
        if PACKED:
            p = tl.zeros([BM, BN * HOLD.primitive_bitwidth // 32], tl.int32)
        else:
            p = tl.zeros([BM, BN], HOLD)
    full, end = NK // BN * BN, NK
    if INTERPRETED:  # it takes no tensors as bounds, with NumPy from 2.4 on, and makes one of every plain assignment
        full, end = full.handle.data.item(), end.handle.data.item()
    for TAIL in tl.static_range(2):
        for start in tl.range(full if TAIL else 0, end if TAIL else full, BN, num_stages=1 if TAIL else STAGES):
            keys = _rows(k, bh, start, NKS, D, BN, D_PAD, DESCRIBED)
            if OWED_DESCRIBED:  # read while the scores are made
                term = owed.load([bh, row // OWED_ROWS, start])  # zeros beyond the last key
                if OWED_TILE > 0:
                    term = tl.permute(tl.reshape(term, [1, BN // 16, 4, 4]), [0, 2, 1, 3])
                term = tl.reshape(term, [1, BN])
            if INTERPRETED and keys.dtype == tl.bfloat16:  # whose products it does not have
                x = tl.dot(as_float(queries), as_float(keys).T, input_precision="ieee")
            elif keys.dtype == tl.float32:
                x = tl.dot(queries, keys.T, input_precision="ieee")
            elif keys.dtype == tl.int8:
                x = tl.dot(queries, keys.T, out_dtype=tl.int32)
            else:
                x = tl.dot(queries, keys.T)
            if QUARTERED:
                x = by_keys(x)

            # What the scores are multiplied by, to stand in the log2 domain.
            factor = row_factor
            if K_SCALE == "tile":
                factor = factor * tl.load(k_scale + bh64 * NK + start)
            elif K_SCALE == "key":
                each = k_scale + bh64 * NK + start + key
                each = tl.load(each, mask=start + key < NK, other=1.0) if TAIL else tl.load(each)
                x = x.to(tl.float32) * each[None, :]
            if OWED_ROWS > 0:
                if not OWED_DESCRIBED:
                    above = bh64 * tl.cdiv(NQ, OWED_ROWS)
                    at, width = start + key, NK
                    if OWED_TILE > 0:
                        at, width = _stored(at, OWED_TILE), tl.cdiv(NK, OWED_TILE) * OWED_TILE
                    if OWED_ROWS % BM == 0:  # a row of it for the whole tile
                        term = owed + (above + row // OWED_ROWS) * width + at[None, :]
                    else:
                        term = owed + (above + tl.minimum(rows, NQ - 1) // OWED_ROWS)[:, None] * width + at[None, :]
                    term = tl.load(term, mask=(start + key < NK)[None, :], other=0.0) if TAIL else tl.load(term)
                if HAS_Q_SCALE:
                    x = x.to(tl.float32) * row_scale[:, None]
                    factor = tl.full([BM], 1.0, tl.float32) * log2_scale
                x = x.to(tl.float32) + term
            if TAIL:
                x = tl.where((start + key < NK)[None, :], x.to(tl.float32), float("-inf"))

            if BEHIND:
                if PACKED:
                    p = p ^ zero  # a copy that no compiler can see through: the matrix unit still reads the first
                if SPLIT:
                    acc = acc * before[:, None] + late
                    if HAS_MEAN:
                        acc += _middle(mass_before, mean, bh, start - 2 * BN, NK, DV, DV_PAD, DESCRIBED and BEHIND)
                        mass_before = _handed(mass, zero)
                    late = _weighted(p, v, None, bh, start - BN, NVS, DV, DV_PAD, BN, HOLD, PACKED, DESCRIBED)
                    before = _handed(alpha, zero)
                else:
                    acc = acc * alpha[:, None]
                    if HAS_MEAN:
                        acc += _middle(mass, mean, bh, start - BN, NK, DV, DV_PAD, DESCRIBED and BEHIND)
                    acc = _weighted(p, v, acc, bh, start - BN, NVS, DV, DV_PAD, BN, HOLD, PACKED, DESCRIBED)

            old = m
            if not PACKED:
                m, p, own = _plain(
                    x,
                    m,
                    factor,
                    FORMAT,
                    EXPCAST,
                    QUANTISED_SUM,
                    PRESCALE,
                    UNIT,
                    MX_ADD,
                    SATURATE,
                    EXACT,
                    HALF_AWAY,
                    HOLD,
                )
                if INTERLEAVED:
                    p = _in_key_order(p)
            elif FORMAT == "mxfp4":
                x = x.to(tl.float32)
                BITS: tl.constexpr = HOLD.primitive_bitwidth
                m, p, own = packed_mx(x, m, factor, half, ADD, DOWN, AT_ZERO, SATURATE, QUANTISED_SUM, BITS, QUARTERED)
            elif FORMAT == "nvfp4":
                m, p, own = packed_nvfp4(x.to(tl.float32), m, factor, half, PRESCALE, EXACT, SATURATE, QUARTERED)
            elif EXPCAST:
                m, p, own = packed_expcast(x, m, factor, floor)
            else:
                m, p, own = packed_e4m3(x, m, factor, LOG2_PRE)
            if QUARTERED:
                p = by_columns(p)
            fall = (old - m) * factor if AT_ZERO and PACKED and SPLIT else old - m
            alpha = exp2(fall, not SPLIT)  # of a sum with large V what a new maximum leaves may show
            l = l * _beside(alpha, BN, BLOCK, QUARTERED) + own  # noqa: E741

            if HAS_MEAN:
                mass = tl.sum(own, 1)
            if not BEHIND:
                acc = acc * alpha[:, None]
                if SPLIT:
                    acc += _weighted(p, v, None, bh, start, NVS, DV, DV_PAD, BN, HOLD, PACKED, DESCRIBED)
                if HAS_MEAN:
                    acc += _middle(mass, mean, bh, start, NK, DV, DV_PAD, DESCRIBED and BEHIND)
                if not SPLIT:
                    acc = _weighted(p, v, acc, bh, start, NVS, DV, DV_PAD, BN, HOLD, PACKED, DESCRIBED)

    if BEHIND:
        last = (NK - 1) // BN * BN
        if SPLIT:
            acc = acc * before[:, None] + late
            if HAS_MEAN:
                acc += _middle(mass_before, mean, bh, last - BN, NK, DV, DV_PAD, DESCRIBED and BEHIND)
        acc = acc * alpha[:, None]
        if HAS_MEAN:
            acc += _middle(mass, mean, bh, last, NK, DV, DV_PAD, DESCRIBED and BEHIND)
        if SPLIT:
            acc += _weighted(p, v, None, bh, last, NVS, DV, DV_PAD, BN, HOLD, PACKED, DESCRIBED)
        else:
            acc = _weighted(p, v, acc, bh, last, NVS, DV, DV_PAD, BN, HOLD, PACKED, DESCRIBED)
    # A NaN score makes the maximum NaN, and with it alpha: codes cannot hide it.
    o = tl.div_rn(acc, tl.broadcast_to(tl.sum(l, 1)[:, None], acc.shape))
    if HAS_V_SCALE:
        o = o * tl.load(v_scale + bh64 * DV + channel, mask=channel < DV, other=1.0)[None, :]
    target = out + (bh64 * NQ + rows)[:, None] * DV + channel[None, :]
    tl.store(target, o.to(out.dtype.element_ty), mask=(rows < NQ)[:, None] & (channel < DV)[None, :])
