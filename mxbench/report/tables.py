"""build(): from observations to a table of numbers, no words yet.

Which mean is bold (see `best_rows`): a column's leaders are the methods that no other method beats significantly. They
are bold where one of them beats another method significantly; otherwise nothing is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from statistics import fmean

from mxbench.errors import UserError
from mxbench.report.cells import Cells, collect
from mxbench.report.comparisons import Comparisons, compare
from mxbench.report.data import Column, MethodRow, TableData
from mxbench.stats import Interval, holm, mean_interval, paired_p_value

__all__ = ["ALPHA", "Score", "ScoredRow", "Table", "best_rows", "build"]

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Score:
    """One cell of the first table.

    Attributes:
        interval: mean over prompts with its interval; None where there is no value.
        best: whether the method leads this column.
        reason: why videos are missing; None where the cell is full.
        applies: False for the reference row in a column that compares with it.
        identical_frames: frames identical to the reference.
    """

    interval: Interval | None
    best: bool
    reason: str | None
    applies: bool
    identical_frames: int


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row and its cells, parallel to the table's columns."""

    row: MethodRow
    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of numbers.

    Attributes:
        data: what it was made from.
        rows: rows in printing order (a sweep is sorted by its values).
        comparisons: paired differences, to the baseline and to the reference.
        n_seeds: number of seeds of a prompt.
        missing_baseline: the baseline that was asked for and is not in the table; None where it is.
    """

    data: TableData
    rows: tuple[ScoredRow, ...]
    comparisons: tuple[Comparisons, ...]
    n_seeds: int
    missing_baseline: str | None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The metrics, in printing order."""
        return self.data.metrics

    def score(self, row: str, metric: str) -> Score:
        """The cell of a row's key and a column's name; KeyError where there is none."""
        for scored in self.rows:
            for column, score in zip(self.columns, scored.scores, strict=True):
                if (scored.row.key, column.name) == (row, metric):
                    return score
        raise KeyError((row, metric))


def build(data: TableData, baseline: str = "mxfp4") -> Table:
    """Counts everything that a table prints.

    Args:
        data: rows, columns and observations.
        baseline: key of the method row that similarity columns are compared with. Where no method has that key, the
            first method row stands in, and the table says so.

    Raises:
        UserError: observations that contradict each other or the table (see `collect`), no rows, or several
            references.
    """
    if not data.rows or not data.metrics:
        raise UserError("there is nothing to tabulate", "pass at least one row and one metric")
    references = [row.key for row in data.rows if row.role == "reference"]
    if len(references) > 1:
        raise UserError(
            f"the table has {len(references)} references: {', '.join(references)}",
            "make one table for each reference: similarity to different references does not compare",
        )
    cells = collect(data)
    leaders = {column.name: best_rows(data, cells, column) for column in data.metrics}
    rows = tuple(
        ScoredRow(row, tuple(_score(row, column, cells, leaders[column.name]) for column in data.metrics))
        for row in _ordered(data)
    )
    methods = [row for row in data.rows if row.role == "method"]
    found = next((row for row in methods if row.key == baseline), None)
    comparisons = compare(data, cells, [scored.row for scored in rows], found or next(iter(methods), None))
    return Table(data, rows, comparisons, cells.n_seeds, baseline if found is None and methods else None)


def best_rows(data: TableData, cells: Cells, column: Column) -> frozenset[str]:
    """Keys of the methods that lead a column: no method beats them significantly, and they beat one; ties share it.

    Paired t tests over common videos, seeds averaged inside each prompt; Holm's correction over *all* pairs of methods
    of the column, because which one is best is read from the same data. A method that misses videos which another has
    can beat others but never leads: its mean may be the better one because the hard videos are missing.
    """
    methods = [row.key for row in data.rows if row.role == "method"]
    if column.higher_is_better is None:
        return frozenset()
    sign = 1.0 if column.higher_is_better else -1.0
    tested: dict[tuple[str, str], float] = {}  # (better, worse) and the p value
    for a, b in itertools.combinations(methods, 2):
        ours, theirs = cells.common(column.name, a, b)
        if len(ours) > 1:
            ahead = sign * (fmean(ours) - fmean(theirs)) >= 0.0
            tested[(a, b) if ahead else (b, a)] = paired_p_value(ours, theirs) or 0.0
    significant = [pair for pair, p in zip(tested, holm(list(tested.values())), strict=True) if p < ALPHA]
    videos = {key: frozenset(cells.videos(key, column.name)) for key in methods}
    every = frozenset[tuple[str, int]]().union(*videos.values())
    leaders = {key for key in methods if videos[key] == every} - {worse for _, worse in significant}
    return frozenset(leaders) if any(better in leaders for better, _ in significant) else frozenset()


def _score(row: MethodRow, column: Column, cells: Cells, leaders: frozenset[str]) -> Score:
    if row.role == "reference" and column.needs_reference:
        return Score(None, best=False, reason=None, applies=False, identical_frames=0)
    values = cells.prompts(row.key, column.name)
    return Score(
        interval=mean_interval(list(values.values())) if values else None,
        best=row.key in leaders,
        reason=cells.why(row.key, column.name),
        applies=True,
        identical_frames=cells.identical.get((row.key, column.name), 0),
    )


def _ordered(data: TableData) -> list[MethodRow]:
    """The reference, the noise floor, the methods in the order given; a sweep's points last, sorted by value."""
    rank = {"reference": 0, "noise_floor": 1, "method": 2}
    rows = sorted(data.rows, key=lambda row: rank[row.role])
    if data.kind != "sweep":
        return rows
    names = list(dict.fromkeys(name for row in rows for name in row.axis))
    points = sorted((row for row in rows if row.axis), key=lambda row: [_sortable(row.axis.get(n, "")) for n in names])
    return [row for row in rows if not row.axis] + points


def _sortable(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value
