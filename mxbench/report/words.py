"""Numbers as words: the one place that rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mxbench.report.data import Column, MethodRow
from mxbench.stats import Interval

__all__ = [
    "DASH",
    "arrow",
    "brackets",
    "difference_digits",
    "label_of",
    "method_word",
    "name_of",
    "number",
    "p_word",
    "superscript",
]

DASH = "–"
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int, *, signed: bool = False) -> str:
    """A rounded number; what rounds to zero has no sign."""
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return text.lstrip("+-") if float(text) == 0.0 else text


def brackets(low: float | None, high: float | None, digits: int, *, signed: bool = False) -> str:
    """An interval such as ``[0.9401, 0.9633]``; empty where there is none."""
    if low is None or high is None:
        return ""
    return f"[{number(low, digits, signed=signed)}, {number(high, digits, signed=signed)}]"


def p_word(p: float | None) -> str:
    """A p value to three decimals, ``<0.001`` below; what rounds to 0.05 keeps enough to show on which side it is."""
    if p is None:
        return DASH
    if 0.0495 <= p < 0.05:
        return f"{p:.4f}" if p < 0.04995 else "<0.05"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def label_of(row: MethodRow) -> str:
    """A row's label with what must be known about it."""
    label = row.label
    if row.role == "noise_floor":
        label += " (noise floor)"
    if row.unverified:
        label += " (unverified)"
    return label


def name_of(row: MethodRow) -> str:
    """A row's label where no column tells its swept values: they are added unless the label holds them."""
    values = [f"{field} {value}" for field, value in row.axis.items()]
    return ", ".join([label_of(row), *(value for value in values if value not in row.label)])


def arrow(column: Column) -> str:
    """The better direction of a column: ↑, ↓ or nothing."""
    return {True: "↑", False: "↓", None: ""}[column.higher_is_better]


def difference_digits(column: Column, spreads: Iterable[float | None]) -> int:
    """Decimals for the differences of a column: its own, or up to three more where the spread is smaller than that.

    Good methods differ from each other by less than a table of means prints.
    """
    known = [spread for spread in spreads if spread]
    wanted = math.ceil(-math.log10(min(known))) + 1 if known else column.digits
    return min(max(wanted, column.digits), column.digits + 3)


def superscript(mark: int) -> str:
    """A footnote mark, such as ¹²."""
    return str(mark).translate(_SUPERSCRIPTS)


def method_word(intervals: Iterable[Interval]) -> str:
    """How the intervals of a table were made, in words; empty where there are none."""
    methods = {interval.method for interval in intervals}
    parts = []
    if "t" in methods or methods == {"constant"}:
        parts.append("Student's t")
    if "bootstrap" in methods:
        parts.append("percentile bootstrap over prompts, 9,999 resamples, fixed seed")
    return " below 30 prompts, else ".join(parts)
