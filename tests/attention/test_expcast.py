"""ExpCast-FP8 against exact fractions and against the figures that its paper states."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import oracle_formats
import pytest
import torch

from mxbench.attention.exponential import EXPCAST_OFFSET, expcast_codes_, expcast_values_
from mxbench.formats.element import E4M3, decode

OFFSET = Fraction(float(np.float32(119.65)))  # the constant as FP32 holds it


def codes(u: np.ndarray) -> np.ndarray:
    return expcast_codes_(torch.from_numpy(u.astype(np.float32))).numpy()


def nearest_even(x: Fraction) -> int:
    low = x.numerator // x.denominator
    twice = 2 * (x - low)
    return low + (twice > 1 or (twice == 1 and low % 2 == 1))


def fp32(x: Fraction) -> Fraction:
    """x rounded once to FP32, by integers."""
    if x == 0:
        return x
    exponent = abs(x).numerator.bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    ulp = Fraction(2) ** (max(exponent, -126) - 23)
    return nearest_even(x / ulp) * ulp


def exact_code(u: float) -> int:
    """clip(RNE(fma(8, u, offset)), 0, 120), the product and the sum exact and rounded to FP32 once."""
    return min(max(nearest_even(fp32(8 * Fraction(u) + OFFSET)), 0), 120)


def conventional(u: np.ndarray) -> np.ndarray:
    """The E4M3 codes of 256·2^u, by an FP64 exponential and ml_dtypes."""
    return (256 * np.exp2(u.astype(np.float64))).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def test_the_offset() -> None:
    assert pytest.approx(8 * (8 + 7) - 0.35) == EXPCAST_OFFSET


def test_every_fp32_score_near_every_boundary_of_a_code() -> None:
    u = []
    for code in range(121):
        middle = np.float32((code + 0.5 - 119.65) / 8)
        bits = middle.view(np.int32) + np.arange(-60, 61, dtype=np.int32)
        u.append(bits.view(np.float32))
    scores = np.concatenate(u)
    assert codes(scores).tolist() == [exact_code(float(x)) for x in scores]
    assert np.array_equal(codes(scores), oracle_formats.expcast_code(scores))


def test_random_scores() -> None:
    scores = (-20 * np.random.default_rng(0).random(3000)).astype(np.float32)
    assert codes(scores).tolist() == [exact_code(float(x)) for x in scores]


def test_the_ends() -> None:
    u = np.float32([0, -1, -14, -np.inf, -1e30, -14.9, -14.95, -15, -0.0])
    assert codes(u).tolist() == [120, 112, 8, 0, 0, 0, 0, 0, 120]
    assert expcast_values_(torch.tensor([0.0, -14.0, -float("inf")])).tolist() == [256.0, 2.0**-6, 0.0]
    assert expcast_codes_(torch.tensor([float("nan")])).isnan().all()


def test_values_are_the_codes_read_as_e4m3() -> None:
    u = torch.linspace(-16, 0, 9001)
    expected = decode(expcast_codes_(u.clone()).to(torch.uint8), E4M3)
    assert torch.equal(expcast_values_(u), expected)
    assert len(expected.unique()) == 121


def test_79_6_percent_of_a_doubling_has_the_conventional_code_and_the_rest_is_one_off() -> None:
    u = -1 + (np.arange(200_000) + 0.5) / 200_000  # all of one doubling: the others are the same, eight codes on
    difference = codes(u) - conventional(u.astype(np.float32))
    assert np.abs(difference).max() == 1
    assert 100 * np.mean(difference == 0) == pytest.approx(79.6, abs=0.05)


def test_the_ratio_to_the_exponential_stays_in_its_range() -> None:
    u = -14 + 14 * (np.arange(400_000) + 0.5) / 400_000
    u = u.astype(np.float32)
    ratio = expcast_values_(torch.from_numpy(u.copy())).double().numpy() / 256 / np.exp2(u.astype(np.float64))
    assert ratio.min() == pytest.approx(0.9290, abs=1e-4)
    assert ratio.max() == pytest.approx(1.0746, abs=1e-4)


def test_the_bound_on_the_total_variation() -> None:
    rng = np.random.default_rng(1)
    worst = 0.0
    for spread in (0.5, 2.0, 5.0, 9.0):
        u = -np.abs(rng.standard_normal((200, 500)) * spread).astype(np.float32)
        u[:, 0] = 0
        w = np.exp2(u.astype(np.float64))
        p = w / w.sum(-1, keepdims=True)
        w_hat = expcast_values_(torch.from_numpy(u.copy())).double().numpy()
        p_hat = w_hat / w_hat.sum(-1, keepdims=True)
        tail = np.where(u < -14, p, 0).sum(-1)
        distance = 0.5 * np.abs(p - p_hat).sum(-1)
        assert (distance < 0.0364 + tail).all()
        worst = max(worst, distance.max())
    assert worst > 0.01


def test_rounding_twice_flips_codes() -> None:
    """The reason why the sum is one fused operation: an offset or a product rounded on its own differs."""
    u = np.arange(-16.0, 0, 1 / 4096).astype(np.float32)
    half = (8 * u.astype(np.float16) + np.float16(119.65)).astype(np.float64)
    assert np.any(np.clip(np.rint(half), 0, 120) != codes(u))


def test_the_scores_are_replaced_in_place() -> None:
    u = torch.tensor([[0.0, -3.0]])
    assert expcast_values_(u) is u
    assert u.tolist() == [[256.0, 32.0]]
