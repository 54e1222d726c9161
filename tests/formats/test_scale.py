"""The MX scale rules against exact fractions, at every FP32 exponent and one ulp beside every boundary."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from mxbench.errors import UserError
from mxbench.formats.scale import (
    MAX_EXPONENT,
    MIN_EXPONENT,
    RULES,
    boundary,
    canonical_rule,
    mx_exponent,
    power_of_two,
)

Q = ["4", "5", "6", "6.05", "6.5", "7", "7.25", "7.3", "8"]
NAMED = {"tfs": Fraction(6), "oas": Fraction(7), "uos": Fraction(29, 4)}


def floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def exact_exponent(m: float, rule: str) -> int:
    """By the definition: floor(log2 M) - 2, or the smallest e with M <= q·2^e; clamped."""
    if m == 0:
        return 0
    if rule == "ocp":
        e = floor_log2(Fraction(m)) - 2
    else:
        ratio = Fraction(m) / (NAMED[rule] if rule in NAMED else Fraction(rule))
        e = floor_log2(ratio)
        e += Fraction(2) ** e < ratio
    return min(max(e, -127), 125)


def maxima(rule: str) -> np.ndarray:
    """At every exponent of FP32: the power of two, the rule's boundary, 1.5 of it, and one ulp beside each."""
    theta = Fraction(1) if rule in ("ocp", "8") else (NAMED[rule] if rule in NAMED else Fraction(rule)) / 4
    points = []
    for e in range(-149, 128):
        for factor in (Fraction(1), theta, Fraction(3, 2)):
            with np.errstate(over="ignore"):
                points.append(np.float32(float(factor * Fraction(2) ** e)))
    x = np.array(points, np.float32)
    x = np.concatenate(
        [np.nextafter(x, np.float32(0)), x, np.nextafter(x, np.float32(np.inf)), np.zeros(1, np.float32)]
    )
    return np.unique(x[np.isfinite(x)])


@pytest.mark.parametrize("rule", [*RULES, *Q])
def test_the_exponent_at_every_exponent_and_beside_every_boundary(rule: str) -> None:
    m = maxima(rule)
    got = mx_exponent(torch.from_numpy(m), rule)
    assert got.dtype == torch.int32
    assert got.tolist() == [exact_exponent(float(x), rule) for x in m]


@pytest.mark.parametrize("rule", ["ocp", "uos", "6.05", "7.3", "8"])
def test_the_exponent_of_random_maxima(rule: str) -> None:
    m = np.random.default_rng(3).integers(0, 0x7F800000, 2000, dtype=np.uint32).view(np.float32)
    assert mx_exponent(torch.from_numpy(m), rule).tolist() == [exact_exponent(float(x), rule) for x in m]


def test_an_exact_boundary_keeps_the_smaller_scale() -> None:
    m = torch.tensor([1.5, 1.75, 1.8125, 1.0])
    ulp = torch.nextafter(m, torch.tensor(2.0))
    for rule, at in (("tfs", 0), ("oas", 1), ("uos", 2), ("4", 3)):
        assert mx_exponent(m, rule)[at] == -2
        assert mx_exponent(ulp, rule)[at] == -1
    assert mx_exponent(m[3:], "8") == -3
    assert mx_exponent(ulp[3:], "8") == -2
    assert mx_exponent(m[3:], "ocp") == -2


def test_the_clamp_and_a_block_of_zeros() -> None:
    m = torch.tensor([3.4e38, 2.0**127, 1e-45, 2.0**-126, 0.0])
    assert mx_exponent(m, "uos").tolist() == [MAX_EXPONENT, MAX_EXPONENT, MIN_EXPONENT, MIN_EXPONENT, 0]


def test_powers_of_two_are_exact() -> None:
    exponents = torch.arange(-127, 128, dtype=torch.int32)
    assert power_of_two(exponents).tolist() == [2.0**e for e in range(-127, 128)]


@pytest.mark.parametrize(
    ("rule", "name"),
    [("uos", "uos"), (7.25, "uos"), ("7.25", "uos"), ("29/4", "uos"), (6, "tfs"), ("7", "oas"), (8, "8"), (8.0, "8"),
     (7.3, "7.3"), ("6.050", "6.05"), ("7.250000000001", "7.250000000001"), ("ocp", "ocp")],
)  # fmt: skip
def test_a_rule_has_one_spelling(rule: str | float, name: str) -> None:
    assert canonical_rule(rule) == name
    assert boundary(canonical_rule(rule)) == boundary(rule)


@pytest.mark.parametrize("rule", ["UOS", "", "1/0", "nan", "inf", "abc", None, True])
def test_an_unknown_rule_is_refused_in_one_line(rule: object) -> None:
    with pytest.raises(
        UserError, match=r"unknown scale rule .* use one of ocp, tfs, oas, uos, or a number q"
    ) as caught:
        boundary(rule)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", [3.99, "8.01", -7, 1e30])
def test_a_boundary_out_of_range_is_refused(rule: str | float) -> None:
    with pytest.raises(UserError, match="from 4 to 8"):
        boundary(rule)
