"""ExpCast-FP8 in closed form: how far one multiply-add strays from exponentiating and casting to E4M3.

E4M3 has eight codes a doubling, so its code is nearly affine in the logarithm: with z = log2 of the value to encode
and f its fractional part, the exact mantissa coordinate is 8 (2^f - 1) and the direct map uses 8 f plus a shift.
Everything below is a property of one doubling, f in [0, 1), and repeats for every normal binade
(VC-Attention, Section 3 and Appendices C and D).
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

__all__ = [
    "CODES_PER_DOUBLING",
    "OFFSET",
    "SHIFT",
    "TOP_CODE",
    "coding_error",
    "coding_error_range",
    "decoded_ratio_range",
    "differing_intervals",
    "equal_code_share",
    "expcast_code",
    "largest_code_difference",
    "total_variation_bound",
]

CODES_PER_DOUBLING = 8
"""E4M3 has three mantissa bits."""

SHIFT = Fraction(-35, 100)
"""The paper's beta, in codes."""

TOP_CODE = 120
"""The code of P = 1: probabilities are stored as 256 p = 2^8 p, and E4M3's exponent bias is 7; 8 * (8 + 7)."""

OFFSET = TOP_CODE + SHIFT
"""119.65, the addend of the multiply-add."""


def expcast_code(u: Fraction | float) -> int:
    """The E4M3 code of the probability 2^u, u <= 0: 8 u + 119.65 rounded to nearest, ties to even, in [0, 120]."""
    return min(max(round(CODES_PER_DOUBLING * Fraction(u) + OFFSET), 0), TOP_CODE)


def coding_error(f: float, shift: float = 0.0) -> float:
    """Exact minus direct mantissa coordinate at the fractional part f, in codes."""
    return CODES_PER_DOUBLING * (math.exp2(f) - 1 - f) - shift


def coding_error_range(shift: float = 0.0) -> tuple[float, float]:
    """(lowest, highest) ``coding_error`` over a doubling; the extremum lies where 2^f = 1 / ln 2."""
    return coding_error(-math.log2(math.log(2)), shift), coding_error(0.0, shift)


def _boundaries(shift: float) -> tuple[list[float], list[float]]:
    """Where the code steps up inside a doubling: (exponentiate and cast, direct map), eight steps each."""
    steps = range(CODES_PER_DOUBLING)
    cast = [math.log2(1 + (j + 0.5) / CODES_PER_DOUBLING) for j in steps]
    direct = [(j + 0.5 - shift) / CODES_PER_DOUBLING for j in steps]
    if not (direct[0] > 0 and direct[-1] < 1):
        raise ValueError(f"a shift of {shift} codes moves a step out of the doubling; it must lie in (-0.5, 0.5)")
    return cast, direct


def differing_intervals(shift: float = float(SHIFT)) -> list[tuple[float, float, int]]:
    """(from, to, direct code minus cast code) wherever the two codes differ inside a doubling."""
    cast, direct = _boundaries(shift)
    rows = []
    for low, high in pairwise(sorted({0.0, 1.0, *cast, *direct})):
        middle = (low + high) / 2
        difference = sum(edge < middle for edge in direct) - sum(edge < middle for edge in cast)
        if difference:
            rows.append((low, high, difference))
    return rows


def equal_code_share(shift: float = float(SHIFT)) -> float:
    """The share of a doubling, uniform in the logarithm, on which both ways give the same code."""
    return 1 - sum(high - low for low, high, _ in differing_intervals(shift))


def largest_code_difference(shift: float = float(SHIFT)) -> int:
    """The largest distance between the two codes."""
    return max((abs(difference) for _, _, difference in differing_intervals(shift)), default=0)


def decoded_ratio_range(shift: float = float(SHIFT)) -> tuple[float, float]:
    """(lowest, highest) decoded over exact probability, from the one-sided limits at both ends of every cell."""
    _, direct = _boundaries(shift)
    cells = zip([0.0, *direct], [*direct, 1.0], range(CODES_PER_DOUBLING + 1), strict=True)
    ratios = [(1 + j / CODES_PER_DOUBLING) / math.exp2(f) for low, high, j in cells for f in (low, high)]
    return min(ratios), max(ratios)


def total_variation_bound(low: float, high: float) -> float:
    """The largest total variation between a distribution and its reweighting with ratios in [low, high].

    The worst case gives the ratio ``high`` to a mass x and ``low`` to the rest. The distance
    x (1 - x) (high - low) / (low + x (high - low)) is then largest at x = sqrt(low) / (sqrt(low) + sqrt(high)).
    """
    a, b = math.sqrt(low), math.sqrt(high)
    return (b - a) / (b + a)
