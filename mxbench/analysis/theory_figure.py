"""The theory as a picture: why 7.25 is the boundary, and how far ExpCast's codes stray."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from mxbench.analysis import theory_expcast as expcast
from mxbench.analysis.theory_blocks import objective, wrapped_gaussian
from mxbench.analysis.theory_exact import log_uniform_objective, optimal_boundary
from mxbench.errors import UserError

__all__ = ["draw"]

_RULES = {"TFS": 6.0, "OAS": 7.0, "UOS": 7.25, "OCP": 8.0}
_MEANS = (0.0, 0.25, 0.5, 0.75)
# Okabe and Ito's palette, which stays apart under colour blindness.
_BLACK, _COLOURS = "#000000", ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_GREY, _HIGHER, _LOWER = "#777777", "#E69F00", "#56B4E9"
_METADATA: dict[str, dict[str, None]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_STYLE = {
    "svg.hashsalt": "mxbench",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # An opaque legend without an edge, which hides the lines that pass behind it.
    "legend.framealpha": 1.0,
    "legend.edgecolor": "none",
}


def draw(path: Path, *, width: float = 10.0, dpi: int = 160, sigma: float = 0.2) -> Path:
    """Draw the objective over the boundary q and ExpCast's error over a doubling.

    The same versions of the libraries give the same bytes: no date is written, and a user's matplotlibrc has no say.

    Args:
        path: where to write; ``.svg``, ``.png`` or ``.pdf``. Missing folders are made.
        width: of the figure, in inches.
        dpi: dots an inch, for PNG.
        sigma: standard deviation of log2 of the block maximum in the non-uniform densities; smaller is less uniform.

    Returns:
        ``path``.

    Raises:
        UserError: the file's ending is none of the three, sigma is not positive, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in _METADATA:
        raise UserError(f"cannot draw to {path.name!r}", f"use a name that ends in {', '.join(_METADATA)}")
    if not sigma > 0:
        raise UserError(f"sigma = {sigma} is no standard deviation", "give a number above 0, such as 0.2")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(width, 0.42 * width), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.1, 1.0))
        _objective(left, sigma)
        _codes(right)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=dpi, metadata=_METADATA[path.suffix.lower()])
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}", "choose a folder that can be written") from error
    return path


def _objective(axes: Any, sigma: float) -> None:
    best = float(optimal_boundary())
    q = np.linspace(6.0, 8.0, 101)
    curves: list[tuple[str, str, Callable[[float], float]]] = [("log-uniform", _BLACK, log_uniform_objective)]
    for mean, colour in zip(_MEANS, _COLOURS, strict=True):
        label = f"normal, mean {mean:g}, σ {sigma:g}"
        curves.append((label, colour, partial(objective, density=wrapped_gaussian(mean, sigma))))
    lowest = highest = 1000 * log_uniform_objective(best)
    for name, colour, function in curves:
        values = 1000 * np.array([function(float(x)) for x in q])
        axes.plot(q, values, color=colour, linewidth=2.0 if colour == _BLACK else 1.4, label=name)
        axes.plot(
            best, 1000 * function(best), marker="o", zorder=3, markersize=5.5, color=colour, markeredgecolor="white"
        )
        lowest, highest = min(lowest, values.min()), max(highest, values.max())
    room = highest - lowest
    axes.set(xlim=(5.97, 8.03), ylim=(lowest - 0.05 * room, highest + 0.5 * room))
    for name, at in _RULES.items():
        axes.axvline(at, color=_GREY, linewidth=0.8, linestyle="-" if at == best else ":", zorder=0)
        side = {6.0: "left", 7.0: "right", 7.25: "left", 8.0: "right"}[at]
        gap = {"left": 0.02, "right": -0.02}[side]
        axes.text(at + gap, highest + 0.49 * room, f"{name} {at:g}", ha=side, va="top", color="#333333", fontsize=8.5)
    axes.set_xlabel("scale boundary q")
    axes.set_ylabel("expected error J(q) × 1000")
    axes.set_title(f"Every density of block maxima has its minimum at {best:g}", fontsize=10, loc="left")
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0.02, 0.93),
        fontsize=8,
        ncols=2,
        title="log2 of the block maximum",
        alignment="left",
    )


def _codes(axes: Any) -> None:
    f = np.linspace(0.0, 1.0, 401)
    shift = float(expcast.SHIFT)
    error = np.array([expcast.coding_error(float(x), shift) for x in f])
    seen: set[int] = set()
    for low, high, difference in expcast.differing_intervals():
        label = None if difference in seen else f"ExpCast one code {'higher' if difference > 0 else 'lower'}"
        seen.add(difference)
        colour = _HIGHER if difference > 0 else _LOWER
        axes.axvspan(low, high, ymax=0.86, color=colour, alpha=0.45, linewidth=0, label=label)
    axes.plot(f, error, color=_BLACK, linewidth=2.0, label=f"error with the shift −{abs(shift):g}")
    axes.plot(f, error + shift, color=_GREY, linewidth=1.2, linestyle="--", label="error without it")
    axes.axhline(0.0, color=_GREY, linewidth=0.8, zorder=0)
    axes.set(xlim=(0, 1), ylim=(-0.75, 0.65))
    axes.set_xlabel("fractional part of log2 of the probability")
    axes.set_ylabel("exact minus direct, in codes")
    share = 100 * expcast.equal_code_share()
    axes.set_title(f"ExpCast: {share:.1f}% of a doubling gets the same code", fontsize=10, loc="left")
    axes.legend(loc="upper center", fontsize=8, ncols=2)
