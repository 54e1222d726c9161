"""Number formats, written a second time and only for the tests: numpy, ml_dtypes and integers, no torch.

Nothing here is shared with the package, so that agreement between the two means something. Plain and slow on
purpose. Inputs are cast to float32 first; scales, quotients and dequantised values are float32, because that is what
the definition says; wherever a step must be exact, it is done in float64 or in integers.

Shapes: ``[..., N, D]`` with N tokens and D channels. A non-finite input makes its whole scale group NaN.
"""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Rule = str | int | float | Fraction

Q_MAX: dict[str, Fraction] = {"tfs": Fraction(6), "oas": Fraction(7), "uos": Fraction(29, 4)}


# Elements: saturate, then one cast from float32 (a cast from float64 would round twice).


def e2m1(x: NDArray) -> F64:
    """Nearest E2M1 value, ties to even, saturated at 6; NaN in gives an unspecified value."""
    return np.clip(x, -6, 6).astype(np.float32).astype(ml_dtypes.float4_e2m1fn).astype(np.float64)


def e4m3(x: NDArray) -> F64:
    """Nearest E4M3 value, ties to even, saturated at 448."""
    return np.clip(x, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def e5m2(x: NDArray) -> F64:
    """Nearest E5M2 value, ties to even, saturated at 57344."""
    return np.clip(x, -57344, 57344).astype(np.float32).astype(ml_dtypes.float8_e5m2).astype(np.float64)


def int8(x: NDArray, rounding: str = "rne") -> F64:
    """Nearest integer in [-127, 127]; ``rounding`` settles ties: ``rne`` to even, ``away`` from zero."""
    x = np.clip(np.asarray(x, np.float64), -127, 127)
    if rounding == "rne":
        return np.rint(x)
    assert rounding == "away", rounding
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def bf16(x: NDArray) -> F64:
    """Nearest BF16 value, ties to even."""
    return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


# Blocks along an axis.


def _blocks(x: NDArray, axis: int, size: int) -> F32:
    """[..., blocks, size] float32 with ``axis`` last, the tail padded with zeros."""
    x = np.moveaxis(np.asarray(x, np.float32), axis, -1)
    tail = -x.shape[-1] % size
    x = np.concatenate([x, np.zeros((*x.shape[:-1], tail), np.float32)], axis=-1)
    return x.reshape(*x.shape[:-1], -1, size)


def _unblock(blocks: NDArray, axis: int, length: int) -> F32:
    """The reverse of ``_blocks``, without the padding."""
    flat = blocks.reshape(*blocks.shape[:-2], -1)[..., :length]
    return np.moveaxis(flat, -1, axis).astype(np.float32)


def _amax(x: F32) -> F32:
    """Largest magnitude along the last axis, kept; NaN and Inf come through (Inf - Inf would not)."""
    return np.abs(x).max(-1, keepdims=True)


# MXFP4.


def mx_exponent(amax: NDArray, rule: Rule) -> NDArray[np.int64]:
    """Shared exponent e of blocks with these maxima; 0 for an all-zero block.

    ``ocp``: floor(log2 M) - 2. Otherwise ceil(log2(M / q)), that is the smallest e with M <= q * 2^e, found by
    comparing integers. Clamped to [-127, 125].
    """
    fraction, exponent = np.frexp(np.where(np.isfinite(amax), amax, 0).astype(np.float64))
    mantissa = np.ldexp(fraction, 24).astype(np.int64)  # M = mantissa * 2^(exponent - 24), all of it exact
    if rule == "ocp":
        e = exponent.astype(np.int64) - 1 - 2
    else:
        q = Q_MAX[rule] if isinstance(rule, str) else Fraction(rule)
        powers = list(range(0, 40))
        limits = [(q.numerator << j) // q.denominator for j in powers]  # mantissa <= q 2^j  <=>  mantissa <= floor
        j = np.searchsorted(np.array(limits, np.int64), mantissa, side="left")
        e = exponent.astype(np.int64) - 24 + j
    return np.where(mantissa == 0, 0, np.clip(e, -127, 125))


@np.errstate(all="ignore")  # Inf and NaN are dealt with below
def mxfp4(x: NDArray, axis: int = -1, rule: Rule = "ocp") -> F32:
    """x through MXFP4 (32 elements, one power of two) along ``axis`` and back."""
    x = np.asarray(x, np.float32)
    blocks = _blocks(x, axis, 32)
    amax = _amax(blocks)
    e = mx_exponent(amax, rule)
    codes = e2m1(np.ldexp(blocks.astype(np.float64), -e))
    values = np.where(np.isfinite(amax), np.ldexp(codes, e), np.nan)
    return _unblock(values, axis, x.shape[axis])


# NVFP4.


@np.errstate(all="ignore")  # Inf and NaN are dealt with below
def nvfp4(x: NDArray, axis: int = -1, tensor_scale: bool = False) -> F32:
    """x through NVFP4 (16 elements, one E4M3 scale) along ``axis`` and back.

    With ``tensor_scale`` a float32 g = amax / 2688 over the last two axes goes before it; without it, g = 1. Every
    step is rounded to float32: (M / 6) / g, the divisor s * g, the quotient, and (code * s) * g.
    """
    x = np.asarray(x, np.float32)
    blocks = _blocks(x, axis, 16)
    if tensor_scale:
        whole = np.abs(x).max((-2, -1), keepdims=True).astype(np.float32)
        g = whole / np.float32(2688)
        g = np.where(g == 0, np.float32(1), g)[..., None]  # a subnormal maximum, divided, is 0 as well
    else:
        whole = g = np.float32(1)
    amax = _amax(blocks)
    s = e4m3(np.minimum(amax / np.float32(6) / g, np.float32(448))).astype(np.float32)
    divisor = s * g
    codes = e2m1(np.where(divisor == 0, 0, blocks / np.where(divisor == 0, 1, divisor)))
    values = (codes.astype(np.float32) * s) * g
    known = np.isfinite(amax) & np.isfinite(g)
    return _unblock(np.where(known, values, np.nan), axis, x.shape[axis])


@np.errstate(all="ignore")  # Inf and NaN are dealt with below
def two_level(p: NDArray) -> tuple[F64, F64]:
    """Two-level NVFP4 of probabilities along the last axis: (P-hat, the unquantised P that it stands for).

    The block's scale a = max / 6 divides unrounded, but is stored as E4M3.
    """
    scaled = np.asarray(p, np.float32) * np.float32(2688)
    blocks = _blocks(scaled, -1, 16)
    amax = _amax(blocks)
    a = amax / np.float32(6)
    codes = e2m1(np.where(a == 0, 0, blocks / np.where(a == 0, 1, a)))
    values = np.where(np.isfinite(amax), codes * e4m3(a), np.nan)
    flat = values.reshape(*values.shape[:-2], -1)[..., : scaled.shape[-1]]
    return flat / 2688, scaled.astype(np.float64) / 2688


# E4M3 and INT8 with a float32 scale a group.


def group_labels(n: int, granularity: str, operand: str = "") -> NDArray[np.int64]:
    """Which scale group each of n rows belongs to: ``rows`` (128 together) or ``sage_threads`` (``q`` or ``k``)."""
    row = np.arange(n)
    if granularity == "rows":
        return row // 128
    assert granularity == "sage_threads", granularity
    if operand == "q":
        return row // 16 * 8 + row % 8  # rows r and r + 8 of 16
    assert operand == "k", operand
    return row // 128 * 4 + row % 8 // 2  # pairs {8i + 2t, 8i + 2t + 1} of 128, four t


def group_amax(x: NDArray, granularity: str, operand: str = "") -> F32:
    """Largest magnitude of each element's scale group, in the shape of x."""
    magnitude = np.abs(np.asarray(x, np.float32))
    if granularity == "tensor":
        return np.broadcast_to(magnitude.max((-2, -1), keepdims=True), magnitude.shape)
    if granularity == "channel":
        return np.broadcast_to(magnitude.max(-2, keepdims=True), magnitude.shape)
    labels = group_labels(magnitude.shape[-2], granularity, operand)
    out = np.empty_like(magnitude)
    for label in np.unique(labels):
        rows = labels == label
        out[..., rows, :] = magnitude[..., rows, :].max((-2, -1), keepdims=True)
    return out


@np.errstate(all="ignore")  # Inf and NaN are dealt with below
def scaled_codes(
    x: NDArray, fmt: str, granularity: str, operand: str = "", *, rounding: str = "rne", eps: float = 0.0
) -> tuple[F64, F32]:
    """(codes, scales), both in the shape of x: ``e4m3`` with amax / 448 or ``int8`` with amax / 127, plus eps.

    A scale of zero becomes 1. In a group that is not finite the codes are NaN.
    """
    x = np.asarray(x, np.float32)
    amax = group_amax(x, granularity, operand)
    scale = amax / np.float32({"e4m3": 448, "int8": 127}[fmt]) + np.float32(eps)
    scale = np.where(scale == 0, np.float32(1), scale).astype(np.float32)
    quotient = x / scale
    finite = np.isfinite(amax)
    quotient = np.where(finite, quotient, 0)
    codes = e4m3(quotient) if fmt == "e4m3" else int8(quotient, rounding)
    return np.where(finite, codes, np.nan), scale


@np.errstate(all="ignore")
def scaled(
    x: NDArray, fmt: str, granularity: str, operand: str = "", *, rounding: str = "rne", eps: float = 0.0
) -> F32:
    """x through ``e4m3`` or ``int8`` and back; arguments as for ``scaled_codes``."""
    codes, scale = scaled_codes(x, fmt, granularity, operand, rounding=rounding, eps=eps)
    return (codes * scale.astype(np.float64)).astype(np.float32)


# ExpCast.


@np.errstate(all="ignore")
def expcast_code(u: NDArray) -> NDArray[np.int64]:
    """clip(RNE(fma(8, u, 119.65)), 0, 120) for float32 u, the sum rounded to float32 once; -inf gives 0."""
    u = np.asarray(u, np.float32).astype(np.float64)
    fused = (8 * u + np.float64(np.float32(119.65))).astype(np.float32)
    return np.clip(np.rint(fused), 0, 120).astype(np.int64)


def expcast(u: NDArray) -> F64:
    """The probability that the code of u stands for: its byte read as E4M3, over 256; NaN gives NaN."""
    u = np.asarray(u, np.float32)
    byte = expcast_code(np.where(np.isnan(u), 0, u)).astype(np.uint8)
    return np.where(np.isnan(u), np.nan, byte.view(ml_dtypes.float8_e4m3fn).astype(np.float64) / 256)
