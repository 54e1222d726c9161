"""Every method of the table, written a second time and only for the tests: one explicit function a method.

Each function sees one head, ``q [Nq, D]``, ``k`` and ``v [Nk, D]`` in float32, keys already compacted. Rotations,
means and differences are float32 (summed in float64, rounded once); matrix products, scores and accumulators are
float64; what enters a quantiser of P is rounded to float32. Keys are walked in ascending tiles of 128 with a running
maximum, because P is quantised relative to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from oracle_formats import Rule, bf16, e4m3, expcast, mxfp4, nvfp4, scaled, scaled_codes, two_level

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Tile = Callable[[F64, slice], tuple[F64, F64]]


def attention(
    method: str, q: NDArray, k: NDArray, v: NDArray, key_mask: NDArray | None = None, **overrides: object
) -> F64:
    """Attention as ``method`` defines it, called without a site.

    Args:
        method: a name of the table, such as ``mxattn``.
        q: [B, H, Nq, D], any float dtype.
        k: [B, H, Nk, D].
        v: [B, H, Nk, D].
        key_mask: [B, Nk], true for the keys that exist; the others are removed before anything else happens.
        **overrides: ``kv_tile`` for every method; the keyword arguments of the method's function below. A
            ``permutation`` is given as [B, H, number of valid keys], or per batch element where they differ.

    Returns:
        [B, H, Nq, D] float64; zeros where no key exists.
    """
    head = HEADS[method]
    permutation = overrides.pop("permutation", None)

    def one(b: int, h: int, *operands: F32) -> F64:
        own = {} if permutation is None else {"permutation": np.asarray(permutation[b][h])}
        return head(*operands, **overrides, **own)

    return _per_head(one, q, k, v, key_mask)


def softmax_float64(q: NDArray, k: NDArray, v: NDArray, key_mask: NDArray | None = None) -> F64:
    """The measuring stick: softmax attention in float64, not tiled. Shapes as for ``attention``."""

    def one(b: int, h: int, q: F32, k: F32, v: F32) -> F64:
        s = q.astype(np.float64) @ k.astype(np.float64).T / math.sqrt(q.shape[-1])
        p = np.exp(s - s.max(-1, keepdims=True))
        return p @ v.astype(np.float64) / p.sum(-1, keepdims=True)

    return _per_head(one, q, k, v, key_mask)


def _per_head(one: Callable[..., F64], q: NDArray, k: NDArray, v: NDArray, key_mask: NDArray | None) -> F64:
    q, k, v = (np.asarray(x).astype(np.float32) for x in (q, k, v))
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    with np.errstate(all="ignore"):
        for b in range(q.shape[0]):
            keep = slice(None) if key_mask is None else np.flatnonzero(np.asarray(key_mask)[b])
            for h in range(q.shape[1]):
                kb, vb = k[b, h][keep], v[b, h][keep]
                if len(kb):
                    out[b, h] = one(b, h, q[b, h], kb, vb)
    return out


def _walk(products: F64, d: int, kv_tile: int, tile: Tile) -> F64:
    """The online softmax over [Nq, Nk] products q.k.

    ``tile(u, keys)`` returns the numbers that enter the row sum, [Nq, keys], and the tile's part of the output.
    """
    s = products * (math.log2(math.e) / math.sqrt(d))
    m = np.full((len(s), 1), -np.inf)
    l = np.zeros((len(s), 1))  # noqa: E741 - the paper's name
    o: F64 | float = 0.0
    for start in range(0, s.shape[1], kv_tile):
        keys = slice(start, min(start + kv_tile, s.shape[1]))
        m_new = np.maximum(m, s[:, keys].max(-1, keepdims=True))
        alpha = np.exp2(m - m_new)
        weights, part = tile(s[:, keys] - m_new, keys)
        l = alpha * l + weights.sum(-1, keepdims=True)  # noqa: E741
        o = alpha * o + part
        m = m_new
    return o / l


def _product(q: NDArray, k: NDArray) -> F64:
    return q.astype(np.float64) @ k.astype(np.float64).T


def _p(u: F64) -> F32:
    return np.exp2(u).astype(np.float32)


def _less_mean(x: F32) -> tuple[F32, F32]:
    """x minus the mean of its rows, and that mean, [1, D]."""
    mean = x.astype(np.float64).mean(0, keepdims=True).astype(np.float32)
    return x - mean, mean


def hadamard(x: F32, signs: NDArray | None = None) -> F32:
    """x rotated along D by Sylvester's matrix over sqrt(D), the channels first multiplied by ``signs``."""
    d = x.shape[-1]
    matrix = np.ones((1, 1))
    while len(matrix) < d:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    if len(matrix) != d:
        raise ValueError(f"D = {d} is no power of two")
    flipped = x.astype(np.float64) * (1 if signs is None else np.asarray(signs, np.float64))
    return (flipped @ matrix / math.sqrt(d)).astype(np.float32)


# The methods.


def fp16(q: F32, k: F32, v: F32, *, kv_tile: int = 128) -> F64:
    def tile(u: F64, keys: slice) -> tuple[F64, F64]:
        p = np.exp2(u)
        return p, p @ v[keys].astype(np.float64)

    return _walk(_product(q, k), q.shape[-1], kv_tile, tile)


def _mx(q: F32, k: F32, v: F32, rule: Rule, kv_tile: int) -> F64:
    q_hat, k_hat, v_hat = mxfp4(q, -1, rule), mxfp4(k, -1, rule), mxfp4(v, 0, rule)

    def tile(u: F64, keys: slice) -> tuple[F64, F64]:
        p = _p(u)
        p_hat = mxfp4(p, -1, rule).astype(np.float64)
        return p.astype(np.float64), p_hat @ v_hat[keys].astype(np.float64)

    return _walk(_product(q_hat, k_hat), q.shape[-1], kv_tile, tile)


def mxfp4_ocp(q: F32, k: F32, v: F32, *, rule: Rule = "ocp", kv_tile: int = 128) -> F64:
    return _mx(q, k, v, rule, kv_tile)


def mxfp4_tfs(q: F32, k: F32, v: F32, *, kv_tile: int = 128) -> F64:
    return _mx(q, k, v, "tfs", kv_tile)


def mxfp4_oas(q: F32, k: F32, v: F32, *, kv_tile: int = 128) -> F64:
    return _mx(q, k, v, "oas", kv_tile)


def mxattn(
    q: F32,
    k: F32,
    v: F32,
    *,
    rule: Rule = "uos",
    row_sum: str = "quantised",
    signs: NDArray | None = None,
    kv_tile: int = 128,
) -> F64:
    q_hat = mxfp4(hadamard(q, signs), -1, rule)
    k_hat = mxfp4(hadamard(k, signs), -1, rule)
    v_hat = mxfp4(v, 0, rule)

    def tile(u: F64, keys: slice) -> tuple[F64, F64]:
        p = _p(u)
        p_hat = mxfp4(p, -1, rule).astype(np.float64)
        weights = {"quantised": p_hat, "exact": p.astype(np.float64)}[row_sum]
        return weights, p_hat @ v_hat[keys].astype(np.float64)

    return _walk(_product(q_hat, k_hat), q.shape[-1], kv_tile, tile)


def nvfp4_direct(q: F32, k: F32, v: F32, *, tensor_scale: bool = True, kv_tile: int = 128) -> F64:
    q_hat, k_hat, v_hat = nvfp4(q, -1, tensor_scale), nvfp4(k, -1, tensor_scale), nvfp4(v, 0, tensor_scale)

    def tile(u: F64, keys: slice) -> tuple[F64, F64]:
        p = _p(u)
        return p.astype(np.float64), nvfp4(p, -1).astype(np.float64) @ v_hat[keys].astype(np.float64)

    return _walk(_product(q_hat, k_hat), q.shape[-1], kv_tile, tile)


def nvfp4_sage(q: F32, k: F32, v: F32, *, tensor_scale: bool = False, kv_tile: int = 128) -> F64:
    k_smooth, _ = _less_mean(k)
    q_smooth, q_mean = np.empty_like(q), np.empty_like(q)
    for start in range(0, len(q), 128):
        rows = slice(start, start + 128)
        q_smooth[rows], q_mean[rows] = _less_mean(q[rows])
    v_hat = nvfp4(v, 0, tensor_scale)

    def tile(u: F64, keys: slice) -> tuple[F64, F64]:
        p_hat, p = two_level(_p(u))
        return p, p_hat @ v_hat[keys].astype(np.float64)

    products = _product(nvfp4(q_smooth, -1, tensor_scale), nvfp4(k_smooth, -1, tensor_scale))
    return _walk(products + _product(q_mean, k_smooth), q.shape[-1], kv_tile, tile)


def sage2(q: F32, k: F32, v: F32, *, kv_tile: int = 128) -> F64:
    k_smooth, _ = _less_mean(k)
    q_hat = scaled(q, "int8", "sage_threads", "q", rounding="away", eps=1e-7)
    k_hat = scaled(k_smooth, "int8", "sage_threads", "k", rounding="away", eps=1e-7)
    v_hat = scaled(v, "e4m3", "channel")

    def tile(u: F64, keys: slice) -> tuple[F64, F64]:
        p = _p(u)
        p_hat = e4m3(p * np.float32(448)) / 448
        return p.astype(np.float64), p_hat @ v_hat[keys].astype(np.float64)

    return _walk(_product(q_hat, k_hat), q.shape[-1], kv_tile, tile)


def fp8(q: F32, k: F32, v: F32, *, kv_tile: int = 128) -> F64:
    q_hat, k_hat, v_hat = (scaled(x, "e4m3", "tensor") for x in (q, k, v))

    def tile(u: F64, keys: slice) -> tuple[F64, F64]:
        p = _p(u)
        p_hat = e4m3(p * np.float32(256)) / 256
        return p.astype(np.float64), p_hat @ v_hat[keys].astype(np.float64)

    return _walk(_product(q_hat, k_hat), q.shape[-1], kv_tile, tile)


def group_tokens(v: F32, clusters: int = 64, iterations: int = 4) -> NDArray[np.int64]:
    """V-Smooth's order of the tokens: Lloyd on the rows of v [N, D], then a stable sort by label."""
    n = len(v)
    count = min(clusters, n)
    start = [i * (n - 1) // (count - 1) for i in range(count)] if count > 1 else [0]
    centres = v[start].copy()
    rows = v.astype(np.float64)

    def nearest() -> NDArray[np.int64]:
        distance = np.stack([((rows - c.astype(np.float64)) ** 2).sum(-1) for c in centres], axis=-1)
        return distance.argmin(-1)  # the first of equals is the lowest label

    for _ in range(iterations):
        labels = nearest()
        for c in np.unique(labels):
            centres[c] = rows[labels == c].mean(0).astype(np.float32)
    return np.argsort(nearest(), kind="stable")


def _block_means(v: F32) -> F32:
    """The mean of each block of 128 rows, repeated for every row of the block."""
    means = np.empty_like(v)
    for start in range(0, len(v), 128):
        rows = slice(start, start + 128)
        means[rows] = v[rows].astype(np.float64).mean(0, keepdims=True).astype(np.float32)
    return means


def vc8(
    q: F32,
    k: F32,
    v: F32,
    *,
    qk: str = "int8",
    signs: NDArray | None = None,
    permutation: NDArray | None = None,
    kv_tile: int = 128,
) -> F64:
    order = group_tokens(v) if permutation is None else permutation
    q_hat = scaled(hadamard(q, signs), qk, "rows")
    k_hat = scaled(hadamard(_less_mean(k)[0], signs)[order], qk, "rows")
    v = v[order]
    mu = _block_means(v)
    residual, scale = scaled_codes(v - mu, "e4m3", "channel")
    mu_codes = bf16(mu / scale)

    def tile(u: F64, keys: slice) -> tuple[F64, F64]:
        p_hat = expcast(u.astype(np.float32))
        # mu is one row a block, so p_hat @ mu_codes is the block's row sum times its mean.
        return p_hat, p_hat @ residual[keys] + p_hat @ mu_codes[keys]

    return _walk(_product(q_hat, k_hat), q.shape[-1], kv_tile, tile) * scale[0].astype(np.float64)


def vc4(
    q: F32,
    k: F32,
    v: F32,
    *,
    signs: NDArray | None = None,
    permutation: NDArray | None = None,
    tensor_scale: bool = False,
    kv_tile: int = 128,
) -> F64:
    order = group_tokens(v) if permutation is None else permutation
    q_hat = nvfp4(hadamard(q, signs), -1, tensor_scale)
    k_hat = nvfp4(hadamard(_less_mean(k)[0], signs)[order], -1, tensor_scale)
    v = v[order]
    mu = _block_means(v)
    residual = nvfp4(v - mu, 0, tensor_scale).astype(np.float64)
    mu_stored = bf16(mu)

    def tile(u: F64, keys: slice) -> tuple[F64, F64]:
        p_hat, p = two_level(_p(u))
        return p, p_hat @ residual[keys] + p @ mu_stored[keys]

    return _walk(_product(q_hat, k_hat), q.shape[-1], kv_tile, tile)


HEADS: dict[str, Callable[..., F64]] = {
    "fp16": fp16,
    "mxfp4": mxfp4_ocp,
    "mxfp4-tfs": mxfp4_tfs,
    "mxfp4-oas": mxfp4_oas,
    "mxattn": mxattn,
    "nvfp4": nvfp4_direct,
    "nvfp4-sage": nvfp4_sage,
    "sage2": sage2,
    "fp8": fp8,
    "vc8": vc8,
    "vc4": vc4,
}
