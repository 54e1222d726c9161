"""Expected errors under a distribution: the objective for any wrapped density, and Gaussian blocks.

Everything is a deterministic quadrature. Integrands are smooth between known points, so Gauss-Legendre on the pieces
between them reaches about twelve digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from mxbench.analysis.theory_exact import E2M1_GRID, decision_boundaries, projection_error

__all__ = [
    "first_harmonic",
    "gaussian_block_error",
    "gaussian_block_error_over_scales",
    "objective",
    "wrapped_gaussian",
]

Density = Callable[[NDArray[np.float64]], NDArray[np.float64]]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_GRID = np.array([float(g) for g in E2M1_GRID])
_FAR = 12.0  # standard deviations; beyond, a Gaussian has less than 1e-32 of its mass
_CUTS = np.array([float(t) for t in decision_boundaries(E2M1_GRID)])


def _panels(points: Sequence[float], parts: int = 1) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights of Gauss-Legendre on every interval between ascending points, each cut into ``parts``."""
    fine = np.concatenate([np.linspace(a, b, parts + 1)[:-1] for a, b in pairwise(points)])
    edges = np.append(fine, points[-1])
    centre, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    return (centre[:, None] + half[:, None] * _NODES).ravel(), (half[:, None] * _WEIGHTS).ravel()


def wrapped_gaussian(mu: float, sigma: float) -> Density:
    """The density of the base-2 logarithm of block maxima modulo one, when that logarithm is Gaussian.

    Args:
        mu: mean of log2 of the block maximum.
        sigma: its standard deviation, > 0.

    Returns:
        H(t), periodic with period one and mean one (MXAttention, equation 58).
    """
    reach = math.ceil(9 * sigma) + 1

    def density(t: NDArray[np.float64]) -> NDArray[np.float64]:
        phase = np.mod(np.asarray(t, np.float64) - mu, 1.0)
        shifts = np.arange(-reach, reach + 1)
        z = (phase[..., None] + shifts) / sigma
        total: NDArray[np.float64] = np.exp(-z * z / 2).sum(-1) / (sigma * math.sqrt(2 * math.pi))
        return total

    return density


def first_harmonic(sigma: float) -> float:
    """Amplitude of the first harmonic of a wrapped Gaussian, 2 exp(-2 pi^2 sigma^2) (MXAttention, equation 92)."""
    return 2 * math.exp(-2 * math.pi**2 * sigma**2)


def objective(q: float, density: Density) -> float:
    """J(q), the expected normalised error of a block under a wrapped density (MXAttention, equation 23).

    Args:
        q: the boundary, > 0; block maxima are scaled into (q/2, q].
        density: H(t) with period one and mean one, such as ``wrapped_gaussian`` returns, vectorised.
    """
    top = math.log2(q)
    cuts = [math.log2(t) for t in _CUTS if q / 2 < t < q]
    t, weight = _panels([top - 1, *cuts, top], parts=8)
    x = np.exp2(t)
    error = np.zeros_like(x)
    for piece in projection_error().pieces:
        high = math.inf if piece.high is None else float(piece.high)
        inside = (x > float(piece.low)) & (x <= high)
        error[inside] = np.polynomial.polynomial.polyval(x[inside], [float(c) for c in piece.coefficients])
    return float(np.sum(weight * density(t) * error / x**3))


def _cell_error(edge: NDArray[np.float64], value: NDArray[np.float64]) -> NDArray[np.float64]:
    """An antiderivative at ``edge`` of (x - value)^2 times twice the standard normal density."""
    phi = np.exp(-edge * edge / 2) / math.sqrt(2 * math.pi)
    # second, first and zeroth moment of the normal density
    total: NDArray[np.float64] = 2 * (ndtr(edge) - edge * phi + 2 * value * phi + value * value * ndtr(edge))
    return total


def gaussian_block_error(q: Fraction | float, block: int = 32, sigma: float = 1.0) -> float:
    """Mean squared error of MXFP4 on Gaussian blocks, relative to the variance.

    Integrates over the block's maximum m, whose density is ``block * f(m) * F(m)^(block - 1)`` with f and F those of
    a standard Gaussian's magnitude; the other elements are independent given m, and their error has a closed form.

    Args:
        q: the boundary: 6 for TFS, 7 for OAS, 7.25 for UOS, 8 for OCP (whose endpoint convention has no weight here).
        block: elements that share a scale.
        sigma: standard deviation of the elements, which shifts the phase of the scale.
    """
    nearest_zero = 10.0 ** (-16 / block)  # maxima below it have a probability of less than 1e-16
    total = 0.0
    for e in range(math.floor(math.log2(nearest_zero * sigma / q)), math.ceil(math.log2(2 * _FAR * sigma / q)) + 1):
        # In units of the standard deviation, this scale serves m in (q/2, q] * unit.
        unit = 2.0**e / sigma
        edges = [float(q) / 2, *(t for t in _CUTS if q / 2 < t < q), float(q)]
        m, weight = _panels([min(edge * unit, _FAR) for edge in edges], parts=2)
        below = ndtr(m) - ndtr(-m)  # P(|x| <= m)
        density = block * 2 * np.exp(-m * m / 2) / math.sqrt(2 * math.pi)
        own = (m - unit * _GRID[np.searchsorted(_CUTS, m / unit)]) ** 2
        others = np.zeros_like(m)
        for low, high, value in zip([0.0, *_CUTS], [*_CUTS, math.inf], _GRID, strict=True):
            a, b = np.minimum(low * unit, m), np.minimum(high * unit, m)
            scaled = np.full_like(m, value * unit)
            others += _cell_error(b, scaled) - _cell_error(a, scaled)
        error = below ** (block - 1) * own + (block - 1) * below ** max(block - 2, 0) * others
        total += float(np.sum(weight * density * error))
    return total / block


def gaussian_block_error_over_scales(q: Fraction | float, block: int = 32, scales: int = 8) -> float:
    """``gaussian_block_error`` averaged over sigma = 2^t, t uniform in [0, 1).

    The error is a smooth periodic function of t, for which equally spaced points converge faster than any power.
    """
    return sum(gaussian_block_error(q, block, 2.0 ** (i / scales)) for i in range(scales)) / scales
