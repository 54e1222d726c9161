"""What the two papers claim in numbers, each computed here and compared: ``mxbench analyze theory``.

The computations live beside this file: ``theory_exact`` (rationals), ``theory_blocks`` (expectations under a
distribution) and ``theory_expcast``. This file holds what the papers print.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import pairwise

from mxbench.analysis import theory_expcast as expcast
from mxbench.analysis.theory_blocks import (
    first_harmonic,
    gaussian_block_error,
    gaussian_block_error_over_scales,
    objective,
    wrapped_gaussian,
)
from mxbench.analysis.theory_exact import (
    E2M1_GRID,
    boundary_difference,
    log_uniform_objective,
    optimal_boundary,
    projection_error,
)

__all__ = ["PUBLISHED_E", "PUBLISHED_HARMONICS", "PUBLISHED_SIGNS", "Claim", "overflow_share", "summary"]

PUBLISHED_E = {
    "0": "0", "0.25": "1/192", "0.75": "1/64", "1.25": "5/192", "1.75": "7/192",
    "2.5": "1/12", "3.5": "1/6", "5": "13/24", "6": "7/8",
}  # fmt: skip
"""MXAttention, Table 5: x to E(x)."""

PUBLISHED_DELTA: tuple[tuple[str, str, str, tuple[int, ...], int], ...] = (
    ("0", "1/4", "0", (), 1),
    ("1/4", "1/2", "-(4q - 1)²/32", (-1, 8, -16), 32),
    ("1/2", "3/4", "(16q² - 24q + 7)/32", (7, -24, 16), 32),
    ("3/4", "5/4", "-1/16", (-1,), 16),
    ("5/4", "3/2", "-(16q² - 40q + 27)/32", (-27, 40, -16), 32),
    ("3/2", "7/4", "(4q - 9)(4q - 5)/32", (45, -56, 16), 32),
    ("7/4", "7", "-1/8", (-1,), 8),
    ("7", "10", "(4q - 29)(4q - 27)/8", (783, -224, 16), 8),
    ("10", "∞", "(48q² - 864q + 3983)/8", (3983, -864, 48), 8),
)
"""MXAttention, Table 6: from, to, Delta as printed, and its coefficients, constant term first, over a denominator."""

PUBLISHED_SIGNS = "0 up to 1/4, < 0 up to 29/4, > 0 beyond"
"""MXAttention, equation 81."""

PUBLISHED_HARMONICS = {
    "0.10": "1.6417", "0.20": "0.9081", "0.30": "0.3384", "0.40": "0.0850",
    "0.50": "0.0144", "0.60": "0.0016", "1.00": "5.35e-9",
}  # fmt: skip
"""MXAttention, Table 7: sigma to the amplitude of the first harmonic."""

SWEEP = tuple(Fraction(q, 100) for q in range(600, 801, 5))
"""The values of q that the paper's empirical search goes through (MXAttention, Section 5.5.1)."""

_RULES = {"TFS": Fraction(6), "OAS": Fraction(7), "UOS": Fraction(29, 4), "OCP": Fraction(8)}
_MX = "MXAttention"
_VC = "VC-Attention"


@dataclass(frozen=True, slots=True)
class Claim:
    """One published statement beside its own computation.

    Attributes:
        claim: what is stated.
        source: the paper and the place in it.
        published: the value as printed.
        computed: the value as computed, to be read beside ``published``.
        agrees: whether the computed value is the published one, at the digits that the paper prints.
        note: what to know about the row, above all where it does not agree; may be empty.
    """

    claim: str
    source: str
    published: str
    computed: str
    agrees: bool
    note: str = ""


def summary() -> list[Claim]:
    """Every claim, computed now; takes a second or two.

    Returns:
        The rows in the order of the papers: MXAttention's scale boundary, then VC-Attention's ExpCast-FP8.
    """
    return [*_table_5(), *_table_6(), *_optimum(), *_rules(), *_table_7(), *_expcast()]


def overflow_share(q: Fraction | float) -> float:
    """The share of blocks whose scaled maximum lies above 7, under a log-uniform density (MXAttention, equation 15).

    Args:
        q: the boundary, 7 <= q <= 8; 8 stands for OCP.
    """
    return math.log2(float(q) / 7)


def _table_5() -> Iterator[Claim]:
    error = projection_error()
    for x, published in PUBLISHED_E.items():
        value = error(Fraction(x))
        yield Claim(f"E({x})", f"{_MX}, Table 5", published, str(value), value == Fraction(published))


def _table_6() -> Iterator[Claim]:
    delta = boundary_difference()
    source = f"{_MX}, Table 6"
    for (low, high, text, numerators, denominator), piece in zip(PUBLISHED_DELTA, delta.pieces, strict=True):
        end = "∞" if piece.high is None else str(piece.high)
        same = (str(piece.low), end) == (low, high)
        same = same and piece.coefficients == tuple(Fraction(n, denominator) for n in numerators)
        where = f"q > {piece.low}" if piece.high is None else f"{piece.low} < q ≤ {end}"
        yield Claim(f"Delta(q), {where}", source, text, _polynomial(piece.coefficients), same)
    c, b, a = (8 * x for x in delta.pieces[-1].coefficients)
    discriminant = b * b - 4 * a * c
    yield Claim("discriminant of Delta's last row", source, "-18240", str(discriminant), discriminant == -18240)
    words = {-1: "< 0", 0: "0", 1: "> 0"}
    merged: list[tuple[int, Fraction | None]] = []
    for _, upper, sign in delta.signs():
        merged = [*(merged[:-1] if merged and merged[-1][0] == sign else merged), (sign, upper)]
    signs = ", ".join(f"{words[sign]} {'beyond' if upper is None else f'up to {upper}'}" for sign, upper in merged)
    yield Claim("sign of Delta", f"{_MX}, equation 81", PUBLISHED_SIGNS, signs, signs == PUBLISHED_SIGNS)


def _least(error: Callable[[float], float]) -> Fraction:
    """The value of the sweep at which an error is least."""
    return min(SWEEP, key=lambda q: error(float(q)))


def _optimum() -> Iterator[Claim]:
    root = optimal_boundary()
    yield Claim("optimal boundary q", f"{_MX}, Theorem 1", "29/4", str(root), root == Fraction(29, 4))
    least = _least(log_uniform_objective)
    values = ", ".join(f"{q:g}: {1000 * log_uniform_objective(q):.4f}" for q in (6, 7, 7.25, 7.5, 8))
    yield Claim(
        "minimum of J, log-uniform density", f"{_MX}, Figure 2", "7.25", f"{float(least):g}",
        least == Fraction(29, 4), f"1000 J(q): {values}",
    )  # fmt: skip
    means = (0.0, 0.25, 0.5, 0.75)
    found = {_least(partial(objective, density=wrapped_gaussian(mu, 0.1))) for mu in means}
    text = ", ".join(f"{float(q):g}" for q in sorted(found))
    yield Claim(
        "minimum of J, wrapped Gaussians", f"{_MX}, Figure 2", "7.25", text,
        found == {Fraction(29, 4)}, "sigma 0.1, means 0, 0.25, 0.5, 0.75",
    )  # fmt: skip
    best = _least(partial(gaussian_block_error_over_scales, scales=4))
    yield Claim(
        "empirical optimum of q", f"{_MX}, Table 4", "7.20 to 7.25", f"{float(best):.2f}",
        Fraction(720, 100) <= best <= Fraction(725, 100), "here on Gaussian blocks of 32, whatever their scale",
    )  # fmt: skip


def _rules() -> Iterator[Claim]:
    share = overflow_share(8)
    yield Claim(
        "share of maxima above 7 under OCP", f"{_MX}, equation 15", "19.27%", f"{100 * share:.2f}%",
        _prints_as(100 * share, "19.27"), f"log2(8/7) = {100 * share:.4f}%: the paper's last digit is off by one",
    )  # fmt: skip
    for text, error in (
        ("of unit variance", gaussian_block_error),
        ("whatever their scale", gaussian_block_error_over_scales),
    ):
        errors = {name: 1000 * error(q) for name, q in _RULES.items()}
        order = sorted(errors, key=errors.__getitem__)
        yield Claim(
            f"rule of least error, Gaussian blocks {text}", f"{_MX}, Section 4.1", "UOS", order[0],
            order[0] == "UOS", "relative MSE x 1000: " + ", ".join(f"{name} {errors[name]:.2f}" for name in order),
        )  # fmt: skip
    rows = _oas_steps()
    yield Claim("OAS halves the scale of TFS where", f"{_MX}, equation 96", "3 < x ≤ 7/2", rows, rows == "3 < x ≤ 7/2")
    scale = Fraction(2) ** _ceil_exponent(Fraction(1), Fraction(29, 4))
    stored = min(E2M1_GRID, key=lambda g: abs(g - 1 / scale)) * scale
    yield Claim("the largest P of a row after UOS", f"{_MX}, equation 117", "1", str(stored), stored == 1)


def _table_7() -> Iterator[Claim]:
    for sigma, published in PUBLISHED_HARMONICS.items():
        value = first_harmonic(float(sigma))
        text = f"{value:.4f}" if value > 1e-4 else f"{value:.2e}".replace("e-0", "e-")
        yield Claim(f"first harmonic, sigma {sigma}", f"{_MX}, Table 7", published, text, _prints_as(value, published))


def _expcast() -> Iterator[Claim]:
    low, high = expcast.coding_error_range()
    same = _prints_as(low, "-0.6886") and high == 0
    yield Claim("coding error over a doubling", f"{_VC}, Appendix C", "[-0.6886, 0]", f"[{low:.4f}, {high:.0f}]", same)
    half = (high - low) / 2
    yield Claim("half of that range", f"{_VC}, Appendix C", "0.34", f"{half:.4f}", _prints_as(half, "0.34"))
    yield Claim(
        "the shift that centres it", f"{_VC}, Appendix C", "-0.35", f"{-half:.4f}", _prints_as(-half, "-0.35"),
        f"the method uses -0.35, which is near it: the error then spans {_span(expcast.coding_error_range(-0.35))}",
    )  # fmt: skip
    share = 100 * expcast.equal_code_share()
    yield Claim("doubling with equal codes", f"{_VC}, Section 3", "79.6%", f"{share:.2f}%", _prints_as(share, "79.6"))
    apart = expcast.largest_code_difference()
    yield Claim("codes apart elsewhere", f"{_VC}, Section 3", "1", str(apart), apart == 1)
    a, b = expcast.decoded_ratio_range()
    yield Claim(
        "decoded over exact probability", f"{_VC}, Appendix D", "[0.9290, 1.0746]", f"[{a:.4f}, {b:.4f}]",
        round(a, 4) >= 0.9290 and b <= 1.0746, "agrees: lies inside the published bounds",
    )  # fmt: skip
    worst = 100 * max(1 - a, b - 1)
    yield Claim("largest relative error", f"{_VC}, Section 3", "7.5%", f"{worst:.2f}%", _prints_as(worst, "7.5"))
    bound = expcast.total_variation_bound(a, b)
    yield Claim(
        "total variation, less the tail", f"{_VC}, Appendix D", "< 0.0364", f"{bound:.5f}", bound < 0.0364,
        "(√b - √a) / (√b + √a) for ratios in [a, b]",
    )  # fmt: skip
    first = next(u for u in range(-1, -99, -1) if expcast.expcast_code(u - 1) < expcast.CODES_PER_DOUBLING)
    yield Claim("the tail begins below u =", f"{_VC}, Appendix D", "-14", str(first), first == -14)


def _prints_as(value: float, printed: str) -> bool:
    """Whether ``value``, rounded to as many digits as were printed, is what was printed."""
    published = Decimal(printed)
    exponent = published.as_tuple().exponent
    assert isinstance(exponent, int)
    return Decimal(value).quantize(Decimal((0, (1,), exponent))) == published


def _span(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:.4f}, {ends[1]:.4f}]"


def _polynomial(coefficients: tuple[Fraction, ...]) -> str:
    """Coefficients, constant term first, as text over one denominator, such as ``(16q² - 24q + 7)/32``."""
    if not coefficients:
        return "0"
    denominator = math.lcm(*(c.denominator for c in coefficients))
    text = ""
    for c, power in reversed(list(zip(coefficients, ("", "q", "q²", "q³"), strict=False))):
        n = int(c * denominator)
        if n:
            size = str(abs(n)) if abs(n) != 1 or not power else ""
            joint = (" - " if n < 0 else " + ") if text else ("-" if n < 0 else "")
            text += joint + size + power
    if denominator == 1:
        return text
    return f"({text})/{denominator}" if len(coefficients) > 1 else f"{text}/{denominator}"


def _ceil_exponent(m: Fraction, q: Fraction) -> int:
    """ceil(log2(m / q)) without a logarithm."""
    e = math.floor(math.log2(m / q)) - 1
    while m > q * Fraction(2) ** e:
        e += 1
    return e


def _oas_steps() -> str:
    """Where in (3, 6], the range of maxima under TFS, q = 7 takes half of the scale that q = 6 takes."""
    ends = [Fraction(n, 32) for n in range(96, 193)]
    halved = [
        (low, high)
        for low, high in pairwise(ends)
        if all(_ceil_exponent(x, Fraction(7)) == _ceil_exponent(x, Fraction(6)) - 1 for x in ((low + high) / 2, high))
    ]
    return f"{halved[0][0]} < x ≤ {halved[-1][1]}" if halved else "nowhere"
