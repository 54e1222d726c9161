"""The table that ``mxbench score`` prints, as wide as the terminal is, and the reasons beneath."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text as RichText

from mxbench.report.layout import Grid, Head, Page, Text
from mxbench.report.terminal import print_page
from mxbench.report.words import DASH
from mxbench.runs.compare import Comparison, digits_of, label_of

__all__ = ["print_scores", "printable"]


def printable(name: str) -> str:
    """A name of a file without what would break a line or colour a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def print_scores(result: Comparison, title: str, notes: Sequence[str], console: Console) -> None:
    """Print a comparison.

    Args:
        result: the scores.
        title: what was scored.
        notes: what must be said of the columns.
        console: where to.
    """
    if result.scores:
        print_page(Page(printable(title), (), (_grid(result, notes),)), console)
    lines = [
        f"{clip}: {label_of(name)} unscored: {each[name].unscored}"
        for clip, each in result.scores.items()
        for name in result.metrics
        if name in each and each[name].value is None
    ]
    lines += [f"{clip}: {note}" for clip, note in result.notes.items()]
    lines += [f"{clip}: not compared: {problem}" for clip, problem in result.problems.items()]
    if lines and result.scores:
        console.print()
    for line in lines:
        console.print(RichText(printable(line)), soft_wrap=True)


def _grid(result: Comparison, notes: Sequence[str]) -> Grid:
    heads = (Head("clip", align="left"), *(Head(label_of(name)) for name in result.metrics))
    rows = [
        (Text(printable(clip)), *(Text(_cell(result, clip, name)) for name in result.metrics)) for clip in result.scores
    ]
    if len(rows) > 1:
        rows.append((Text(f"mean of {len(rows)}"), *(Text(_mean(result, name)) for name in result.metrics)))
    return Grid("", heads, tuple(rows), 1, notes=tuple(notes))


def _cell(result: Comparison, clip: str, name: str) -> str:
    score = result.scores[clip].get(name)
    if score is None:
        return DASH
    return "unscored" if score.value is None else f"{score.value:.{digits_of(name)}f}"


def _mean(result: Comparison, name: str) -> str:
    mean = result.mean(name)
    if mean is None:
        return DASH
    n = sum(name in each and each[name].value is not None for each in result.scores.values())
    return f"{mean:.{digits_of(name)}f}" + (f" (n={n})" if n < len(result.scores) else "")
