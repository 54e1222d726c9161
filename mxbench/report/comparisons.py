"""Paired differences: similarity columns to a named baseline, no-reference columns to the FP16 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from mxbench.report.cells import Cells
from mxbench.report.data import Column, MethodRow, TableData
from mxbench.stats import (
    NonInferiority,
    Paired,
    Recovery,
    detectable,
    holm,
    noninferior,
    paired_difference,
    recovery,
)

__all__ = ["Comparison", "Comparisons", "compare"]

Against = Literal["baseline", "reference"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row against another in one column.

    Attributes:
        column: the metric.
        row: the row that is compared.
        paired: row minus the other, in the metric's own direction; wins are prompts on which the row is the better
            one (the larger one where the metric has no direction). None where no prompt is common.
        p_holm: p value of the paired t test after Holm's correction over the methods of this column; None for one
            prompt and for the noise floor, which is no hypothesis.
        detectable: smallest difference that this N shows with 80% power; None for one prompt.
        noninferior: test against the column's margin; None without a margin.
        p_noninferior: its p value after Holm's correction over the methods of this column.
        recovery: part of the gap between baseline and reference that is closed; None where not defined.
    """

    column: Column
    row: MethodRow
    paired: Paired | None
    p_holm: float | None = None
    detectable: float | None = None
    noninferior: NonInferiority | None = None
    p_noninferior: float | None = None
    recovery: Recovery | None = None


@dataclass(frozen=True, slots=True)
class Comparisons:
    """All rows against one.

    Attributes:
        kind: whether it is the baseline or the reference.
        against: that row.
        baseline: the row at 0 of `Comparison.recovery`; None where nothing is recovered.
        rows: comparisons, column by column.
    """

    kind: Against
    against: MethodRow
    baseline: MethodRow | None
    rows: tuple[Comparison, ...]


def compare(
    data: TableData, cells: Cells, rows: Sequence[MethodRow], baseline: MethodRow | None
) -> tuple[Comparisons, ...]:
    """The paired comparisons that the data allows, over common videos only.

    Args:
        data: the table's data.
        cells: its observations.
        rows: its rows in printing order.
        baseline: the method row that similarity columns are compared with.
    """
    found = []
    methods = [row for row in rows if row.role == "method"]
    reference = next((row for row in rows if row.role == "reference"), None)
    if baseline is not None and len(methods) > 1:
        others = [row for row in methods if row.key != baseline.key]
        columns = [column for column in data.metrics if column.needs_reference or reference is None]
        found.append(_block("baseline", cells, columns, others, baseline, None))
    if reference is not None:
        others = [row for row in rows if row.key != reference.key]
        columns = [column for column in data.metrics if not column.needs_reference]
        found.append(_block("reference", cells, columns, others, reference, baseline))
    return tuple(block for block in found if any(row.paired for row in block.rows))


def _block(
    kind: Against,
    cells: Cells,
    columns: Sequence[Column],
    rows: Sequence[MethodRow],
    against: MethodRow,
    baseline: MethodRow | None,
) -> Comparisons:
    done: list[Comparison] = []
    for column in columns:
        # A column without a single pair says nothing here; the first table says why.
        compared = [_compare(cells, column, row, against, baseline) for row in rows]
        if any(item.paired for item in compared):
            done += _corrected(compared)
    used = baseline if any(item.recovery for item in done) else None
    return Comparisons(kind, against, used, tuple(done))


def _compare(
    cells: Cells, column: Column, row: MethodRow, against: MethodRow, baseline: MethodRow | None
) -> Comparison:
    ours, theirs = cells.common(column.name, row.key, against.key)
    if not ours:
        return Comparison(column, row, None)
    paired = paired_difference(ours, theirs)
    lower_is_better = column.higher_is_better is False
    if lower_is_better:
        paired = replace(paired, wins=paired.losses, losses=paired.wins)
    sign = -1.0 if lower_is_better else 1.0
    margin_test = None
    if column.margin is not None:
        margin_test = noninferior([sign * (a - b) for a, b in zip(ours, theirs, strict=True)], column.margin)
    recovered: Recovery | None = None
    if baseline is not None and column.higher_is_better is not None and row.role == "method" and row != baseline:
        x, ocp, fp16 = cells.common(column.name, row.key, baseline.key, against.key)
        if x and sign * (fmean(fp16) - fmean(ocp)) > 0:
            recovered = recovery(x, ocp, fp16)
        elif x:
            recovered = Recovery(None, None, None, len(x), "the baseline is not worse than the reference")
    return Comparison(
        column=column,
        row=row,
        paired=paired,
        detectable=detectable(paired.sd, paired.n) if paired.sd is not None else None,
        noninferior=margin_test,
        recovery=recovered,
    )


def _corrected(compared: Sequence[Comparison]) -> list[Comparison]:
    """Holm's correction over the methods of one column; the noise floor belongs to no family."""
    tested = {
        item.row.key: item.paired.p_value
        for item in compared
        if item.row.role == "method" and item.paired and item.paired.p_value is not None
    }
    margins = {
        item.row.key: item.noninferior.p_value
        for item in compared
        if item.row.role == "method" and item.noninferior and item.noninferior.p_value is not None
    }
    p_holm = dict(zip(tested, holm(list(tested.values())), strict=True))
    p_margin = dict(zip(margins, holm(list(margins.values())), strict=True))
    return [
        replace(item, p_holm=p_holm.get(item.row.key), p_noninferior=p_margin.get(item.row.key)) for item in compared
    ]
