"""The ratios of a run as bars, one panel a shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from mxbench.bench.rows import Result, Row, ShapeResult
from mxbench.errors import UserError

__all__ = ["draw", "figure"]

# Okabe and Ito's palette, which stays apart under colour blindness. Peers are grey.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_PEER, _INK, _FLOOR = "#9A9A9A", "#222222", "#B00020"
_METADATA: dict[str, dict[str, None]] = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}
_STYLE = {
    "svg.hashsalt": "mxbench",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
}


def figure(result: Result) -> Figure | None:
    """Bars of how many times as fast as the base each row is; None where nothing has a ratio.

    A bar is the kernel's ratio, or the call's where the kernel is not timed alone; its line spans the 5% and 95%
    quantiles, a diamond is the whole call of a row with a pre-pass, a red mark the floor. Emulated FP4 is hatched.
    """
    shapes = [shape for shape in result.shapes if _rows(shape)]
    if not shapes:
        return None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        counts = [len(_rows(shape)) for shape in shapes]
        drawn = Figure(figsize=(8.5, 1.3 * len(shapes) + 0.27 * sum(counts) + 0.6), layout="constrained")
        panels = drawn.subplots(len(shapes), 1, squeeze=False, height_ratios=[n + 2.0 for n in counts])[:, 0]
        impls = list(dict.fromkeys(row.impl for shape in shapes for row in _rows(shape) if row.method))
        colours = {impl: _COLOURS[i % len(_COLOURS)] for i, impl in enumerate(impls)}
        for axes, shape in zip(panels, shapes, strict=True):
            _panel(axes, shape, colours)
        _legend(drawn, [row for shape in shapes for row in _rows(shape)], colours)
        provenance = result.provenance
        drawn.suptitle(
            f"{provenance['device'].partition(': ')[2]}, {result.settings['dtype']}, torch {provenance['torch']}",
            fontsize=9,
            x=0.01,
            ha="left",
            color=_INK,
        )
    return drawn


def draw(result: Result, path: Path, dpi: int = 160) -> Path | None:
    """Write the figure.

    Args:
        result: of a run.
        path: ends in ``.png`` or ``.svg``.
        dpi: dots an inch, for PNG.

    Returns:
        ``path``, or None where there is nothing to draw.

    Raises:
        UserError: another ending, or the file cannot be written.
    """
    if path.suffix.lower() not in _METADATA:
        raise UserError(f"cannot draw to {path.name!r}", "use a name that ends in .png or .svg")
    drawn = figure(result)
    if drawn is None:
        return None
    with matplotlib.rc_context({"svg.hashsalt": _STYLE["svg.hashsalt"]}):
        try:
            drawn.savefig(path, dpi=dpi, metadata=_METADATA[path.suffix.lower()])
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}", "choose a folder that can be written") from error
    return path


def _rows(shape: ShapeResult) -> list[Row]:
    return [row for row in shape.rows if row.ratio_call is not None]


def _panel(axes: Any, shape: ShapeResult, colours: dict[str, str]) -> None:
    rows = _rows(shape)
    for place, row in enumerate(rows):
        ratio = row.ratio_kernel or row.ratio_call
        assert ratio is not None and row.ratio_call is not None
        axes.barh(
            place,
            ratio.median,
            height=0.7,
            color=colours[row.impl] if row.method else _PEER,
            hatch="////" if row.fp4 == "emulated" else None,
            edgecolor="white",
            linewidth=0.0,
        )
        axes.plot([ratio.low, ratio.high], [place, place], color=_INK, linewidth=1.1, solid_capstyle="butt")
        if row.prepass is not None or row.kernel is None:
            axes.plot(row.ratio_call.median, place, marker="D", markersize=4.0, color="white", markeredgecolor=_INK)
        if row.floor is not None:
            axes.plot([row.floor, row.floor], [place - 0.42, place + 0.42], color=_FLOOR, linewidth=1.8)
        # In a column: beside the bar it would be read as the floor's.
        axes.annotate(
            f"{ratio.median:.2f}",
            (1.0, place),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="center",
            color=_INK,
            fontsize=8,
        )
    axes.axvline(1.0, color=_INK, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.12 * axes.dataLim.x1)
    assert shape.base is not None
    axes.set_xlabel(f"times as fast as {shape.base[1]}")
    axes.set_title(", ".join(word for word in (shape.title, shape.shape.title) if word), fontsize=10, loc="left")


def _name(row: Row) -> str:
    if not row.method:
        return row.label
    return f"{row.method}, {row.impl}" + (" (FP4 emulated)" if row.fp4 == "emulated" else "")


def _legend(drawn: Figure, rows: list[Row], colours: dict[str, str]) -> None:
    """Proxies for what the bars and marks are; the bars themselves are named on their axis."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=colour, label=impl) for impl, colour in colours.items()]
    if any(not row.method for row in rows):
        handles.append(Patch(color=_PEER, label="peer"))
    if any(row.prepass is not None or row.kernel is None for row in rows):
        handles.append(
            Line2D(
                [], [], marker="D", markersize=4.0, color="white", markeredgecolor=_INK, linestyle="none",
                label="with its pre-pass",
            )
        )  # fmt: skip
    if any(row.floor is not None for row in rows):
        handles.append(Line2D([], [], color=_FLOOR, linewidth=1.8, label="floor"))
    drawn.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=8)
