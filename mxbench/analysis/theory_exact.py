"""The scale-boundary theory in exact rationals: projection error, its normalised form, and the optimal boundary.

With the block maximum scaled into (q/2, q], ``E(x)`` is the projection error of the grid accumulated over [0, x] and
``D(x) = E(x) / x^3`` its relative form. The derivative of the objective ``J(q) = E[D(X)]`` has the sign of
``Delta(q) = E(q) - 8 E(q/2)``, whatever the distribution of block maxima (MXAttention, equations 21 to 36). All of
these are piecewise polynomials with rational coefficients, so nothing here is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

__all__ = [
    "E2M1_GRID",
    "Piece",
    "Piecewise",
    "boundary_difference",
    "decision_boundaries",
    "log_uniform_objective",
    "log_uniform_rational_part",
    "minifloat_grid",
    "normalised_error",
    "optimal_boundary",
    "projection_error",
]


def minifloat_grid(exponent_bits: int, mantissa_bits: int, bias: int) -> tuple[Fraction, ...]:
    """The non-negative values of a small floating-point format in which every code is a finite number.

    Args:
        exponent_bits: width of the exponent field.
        mantissa_bits: width of the mantissa field.
        bias: exponent bias.

    Returns:
        The values in ascending order, zero first; subnormals included.
    """
    steps = 1 << mantissa_bits
    values = []
    for exponent in range(1 << exponent_bits):
        for mantissa in range(steps):
            hidden = steps if exponent > 0 else 0
            values.append(Fraction(hidden + mantissa, steps) * Fraction(2) ** (max(exponent, 1) - bias))
    return tuple(values)


E2M1_GRID = minifloat_grid(exponent_bits=2, mantissa_bits=1, bias=1)
"""0, 1/2, 1, 3/2, 2, 3, 4, 6."""


def decision_boundaries(grid: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Midpoints between neighbours of an ascending grid: where round-to-nearest changes its answer."""
    return tuple((low + high) / 2 for low, high in pairwise(grid))


@dataclass(frozen=True, slots=True)
class Piece:
    """One polynomial on the interval (low, high].

    Attributes:
        low: left end.
        high: right end; None for infinity.
        coefficients: constant term first, without trailing zeros (zero is the empty tuple).
    """

    low: Fraction
    high: Fraction | None
    coefficients: tuple[Fraction, ...]

    def __call__(self, x: Fraction) -> Fraction:
        """The polynomial at x, wherever x lies."""
        total = Fraction(0)
        for c in reversed(self.coefficients):
            total = total * x + c
        return total

    def roots(self) -> tuple[Fraction, ...]:
        """Roots strictly inside the interval, ascending; the piece must be at most quadratic and not zero.

        Raises:
            ArithmeticError: a root inside is irrational, or the piece is zero or of a higher degree.
        """
        if not 1 <= len(self.coefficients) <= 3:
            raise ArithmeticError(f"no finite set of roots of degree two or less: {self}")
        c, b, a = (*self.coefficients, Fraction(0), Fraction(0))[:3]
        if a == 0:
            found = [] if b == 0 else [-c / b]
        else:
            found = self._quadratic_roots(a, b, c)
        return tuple(x for x in sorted(set(found)) if self._holds(x))

    def _quadratic_roots(self, a: Fraction, b: Fraction, c: Fraction) -> list[Fraction]:
        discriminant = b * b - 4 * a * c
        if discriminant < 0:
            return []
        root = Fraction(math.isqrt(discriminant.numerator), math.isqrt(discriminant.denominator))
        if root * root == discriminant:
            return [(-b - root) / (2 * a), (-b + root) / (2 * a)]
        # Irrational roots do no harm outside the interval; inside, the sign would change between these points.
        vertex = -b / (2 * a)
        signs = {self(x) > 0 for x in ([self.low, vertex] if self._holds(vertex) else [self.low])}
        signs.add(a > 0 if self.high is None else self(self.high) > 0)
        if len(signs) > 1:
            raise ArithmeticError(f"an irrational root inside {self}")
        return []

    def _holds(self, x: Fraction) -> bool:
        return self.low < x and (self.high is None or x < self.high)


@dataclass(frozen=True, slots=True)
class Piecewise:
    """A function on x > 0 made of polynomials on adjoining intervals, the last one unbounded."""

    pieces: tuple[Piece, ...]

    def __call__(self, x: Fraction) -> Fraction:
        """The exact value at x >= 0."""
        return self.at(x)(x)

    def at(self, x: Fraction) -> Piece:
        """The piece whose interval holds x."""
        return next(p for p in self.pieces if p.high is None or x <= p.high)

    def signs(self) -> tuple[tuple[Fraction, Fraction | None, int], ...]:
        """(low, high, sign) of every open interval between ends and roots, in order; the sign is -1, 0 or 1."""
        rows: list[tuple[Fraction, Fraction | None, int]] = []
        for piece in self.pieces:
            cuts = [piece.low, *(piece.roots() if piece.coefficients else ()), piece.high]
            for low, high in pairwise(cuts):
                assert low is not None
                value = piece(low + 1 if high is None else (low + high) / 2)
                rows.append((low, high, (value > 0) - (value < 0)))
        return tuple(rows)


def _trimmed(coefficients: Sequence[Fraction]) -> tuple[Fraction, ...]:
    kept = list(coefficients)
    while kept and kept[-1] == 0:
        kept.pop()
    return tuple(kept)


def projection_error(grid: Sequence[Fraction] = E2M1_GRID) -> Piecewise:
    """E(x): the squared distance to the grid integrated over [0, x] (MXAttention, equation 21).

    Beyond the last value of the grid everything projects to it, as saturation does.
    """
    pieces = []
    value = low = Fraction(0)
    for r, high in zip(grid, (*decision_boundaries(grid), None), strict=True):
        # value + ((x - r)^3 - (low - r)^3) / 3, expanded
        constant = value - (low - r) ** 3 / 3 - r**3 / 3
        piece = Piece(low, high, (constant, r * r, -r, Fraction(1, 3)))
        pieces.append(piece)
        if high is not None:
            value, low = piece(high), high
    return Piecewise(tuple(pieces))


def normalised_error(x: Fraction, grid: Sequence[Fraction] = E2M1_GRID) -> Fraction:
    """D(x) = E(x) / x^3: the mean squared error over [0, x] relative to x^2 (MXAttention, equation 22)."""
    return projection_error(grid)(x) / x**3


def boundary_difference(grid: Sequence[Fraction] = E2M1_GRID) -> Piecewise:
    """Delta(q) = E(q) - 8 E(q/2), equal neighbouring polynomials merged (MXAttention, Table 6)."""
    error = projection_error(grid)
    ends = decision_boundaries(grid)
    merged: list[Piece] = []
    low = Fraction(0)
    for high in (*sorted({*ends, *(2 * t for t in ends)}), None):
        inside = low + 1 if high is None else (low + high) / 2
        whole, half = error.at(inside).coefficients, error.at(inside / 2).coefficients
        difference = _trimmed([w - 8 * h / 2**power for power, (w, h) in enumerate(zip(whole, half, strict=True))])
        if merged and merged[-1].coefficients == difference:
            merged[-1] = Piece(merged[-1].low, high, difference)
        else:
            merged.append(Piece(low, high, difference))
        if high is not None:
            low = high
    return Piecewise(tuple(merged))


def optimal_boundary(grid: Sequence[Fraction] = E2M1_GRID) -> Fraction:
    """The boundary at which Delta changes from negative to positive: 29/4 for E2M1 (MXAttention, Theorem 1).

    Raises:
        ArithmeticError: Delta changes its sign more than once or never, so that no single boundary is optimal.
    """
    rows = [row for row in boundary_difference(grid).signs() if row[2] != 0]
    changes = [before[1] for before, after in pairwise(rows) if before[2] != after[2]]
    if len(changes) != 1 or changes[0] is None or rows[0][2] > 0:
        raise ArithmeticError(f"Delta changes sign at {changes}, so that there is no unique optimal boundary")
    return changes[0]


def log_uniform_rational_part(q: Fraction, grid: Sequence[Fraction] = E2M1_GRID) -> Fraction:
    """R(q) in J(q) = R(q) / ln 2 + 1/3, the objective when the logarithm of block maxima is uniform modulo one.

    J integrates E(x) / (x^4 ln 2) over [q/2, q]. Every piece of E has the cubic coefficient 1/3, whose share
    is 1/3 in all; the rest integrates to a rational number.
    """
    total = Fraction(0)
    for piece in projection_error(grid).pieces:
        low = max(piece.low, q / 2)
        high = q if piece.high is None else min(piece.high, q)
        if low < high:
            for power, c in enumerate(piece.coefficients[:3]):
                total += c * (high ** (power - 3) - low ** (power - 3)) / (power - 3)
    return total


def log_uniform_objective(q: Fraction | float, grid: Sequence[Fraction] = E2M1_GRID) -> float:
    """J(q) under the log-uniform density g(x) = 1 / (x ln 2) (MXAttention, equation 23), rounded only at the end."""
    return float(log_uniform_rational_part(Fraction(q), grid)) / math.log(2) + 1 / 3
