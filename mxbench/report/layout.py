"""page(): a table's numbers as words in grids, the same for every format that people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from mxbench.report.comparisons import Comparison, Comparisons
from mxbench.report.data import MethodRow, TableData
from mxbench.report.notes import notes_of
from mxbench.report.tables import ALPHA, Score, Table
from mxbench.report.words import DASH, arrow, brackets, difference_digits, label_of, name_of, number, p_word

__all__ = ["Footnotes", "Grid", "Head", "Page", "Text", "page"]

_LONGEST_INLINE = 24


@dataclass(frozen=True, slots=True)
class Text:
    """A cell in words.

    Attributes:
        main: what it says.
        sub: the interval, which a narrow page puts on a line of its own.
        bold: whether it leads its column.
        marks: numbers of footnotes.
    """

    main: str
    sub: str = ""
    bold: bool = False
    marks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column: its label, the group over it, and on which side its cells stand."""

    label: str
    group: str = ""
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True, slots=True)
class Grid:
    """Heads and rows of words.

    Attributes:
        title: heading of the grid; empty for the first.
        heads: one for each column.
        rows: cells, one for each head.
        stub: number of leading columns that name the row; a page that is too narrow repeats them.
        footnotes: texts of the marks, from 1 on.
        notes: sentences on how to read this grid.
    """

    title: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Text, ...], ...]
    stub: int
    footnotes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A title, what was run, and the grids; each grid carries its own notes on how to read it."""

    title: str
    header: tuple[tuple[str, str], ...]
    grids: tuple[Grid, ...]


@dataclass(slots=True)
class Footnotes:
    """Numbers texts in the order of their first use."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> int:
        """The number of a text, from 1 on."""
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


def page(table: Table, *extra: Grid) -> Page:
    """The words of a table.

    Args:
        table: the numbers.
        extra: further grids, such as `beside.beside_grid`.
    """
    differences = (_differences(block, notes_of(table, block)) for block in table.comparisons)
    return Page(table.data.title, _header(table.data, table.n_seeds), (_means(table), *differences, *extra))


def _header(data: TableData, n_seeds: int) -> tuple[tuple[str, str], ...]:
    videos = f"{data.n_prompts} {_plural('prompt', data.n_prompts)} × {n_seeds} {_plural('seed', n_seeds)}"
    named = (("Model", data.model), ("Weights", data.weights), ("Reference", data.reference))
    return (*named, *data.environment.items(), ("N", videos))


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"


def _means(table: Table) -> Grid:
    data, footnotes = table.data, Footnotes()
    axes = list(dict.fromkeys(name for scored in table.rows for name in scored.row.axis))
    flags = list(dict.fromkeys(name for scored in table.rows for name in scored.row.flags))
    bits = any(scored.row.bits for scored in table.rows)
    heads = [
        *(Head(name) for name in axes),
        Head("Method" if data.kind != "ablation" else "Configuration", align="left"),
    ]
    heads += [Head(name, align="left") for name in flags]
    stub = len(heads)
    for column in table.columns:
        direction = "" if column.group else arrow(column)
        heads.append(Head(" ".join(part for part in (column.label, direction) if part), column.group))
    heads += [Head("N"), *([Head("Bits")] if bits else [])]
    rows = []
    for scored in table.rows:
        n = _usual_n(scored.scores)
        cells = [Text(scored.row.axis.get(name, DASH)) for name in axes]
        cells += [Text(label_of(scored.row)), *(Text(_check(scored.row, name)) for name in flags)]
        cells += [
            _score(score, column.digits, n, footnotes)
            for column, score in zip(table.columns, scored.scores, strict=True)
        ]
        cells += [Text(str(n)), *([Text(scored.row.bits or DASH)] if bits else [])]
        rows.append(tuple(cells))
    return Grid("", tuple(heads), tuple(rows), stub, tuple(footnotes.texts), notes_of(table))


def _check(row: MethodRow, name: str) -> str:
    if name not in row.flags:
        return ""
    return "✓" if row.flags[name] else DASH


def _usual_n(scores: Sequence[Score]) -> int:
    counts = [score.interval.n if score.interval else 0 for score in scores if score.applies]
    return max(counts, key=lambda n: (counts.count(n) if n else 0, n), default=0)


def _score(score: Score, digits: int, usual_n: int, footnotes: Footnotes) -> Text:
    if not score.applies:
        return Text(DASH)
    if score.interval is None:
        reason = score.reason or "not scored"
        if len(reason) <= _LONGEST_INLINE:
            return Text(reason)
        return Text(reason.split(":")[0], marks=(footnotes.mark(reason),))
    sub = brackets(score.interval.low, score.interval.high, digits)
    main = number(score.interval.mean, digits)
    if score.interval.n != usual_n:
        main += f" n={score.interval.n}"
    marks = (footnotes.mark(score.reason),) if score.reason else ()
    return Text(main, sub, score.best, marks)


def _differences(block: Comparisons, notes: tuple[str, ...]) -> Grid:
    margins = sorted({item.noninferior.margin for item in block.rows if item.noninferior})
    heads = [Head("Metric", align="left"), Head("Method", align="left")]
    heads += [Head("Difference"), Head("p (Holm)"), Head("p (sign)"), Head("W/T/L"), Head("N"), Head("SD")]
    heads.append(Head("Detectable"))
    heads += [Head(f"Within {margin:g}") for margin in margins]
    heads += [Head("Gap closed")] if block.baseline is not None else []
    rows = []
    for column in dict.fromkeys(item.column for item in block.rows):
        items = [item for item in block.rows if item.column == column]
        digits = difference_digits(column, (item.paired.sd for item in items if item.paired))
        for position, item in enumerate(items):
            name = " ".join(part for part in (column.label, arrow(column)) if part)
            cells = [Text(name if position == 0 else ""), Text(name_of(item.row)), *_paired(item, digits)]
            cells += [_margin(item, margin) for margin in margins]
            cells += [_recovered(item)] if block.baseline is not None else []
            rows.append(tuple(cells))
    title = f"Paired differences to {name_of(block.against)}"
    return Grid(title, tuple(heads), tuple(rows), stub=2, notes=notes)


def _paired(item: Comparison, digits: int) -> list[Text]:
    pair = item.paired
    if pair is None:
        return [Text("no common prompt"), *([Text(DASH)] * 6)]
    return [
        Text(number(pair.mean, digits, signed=True), brackets(pair.low, pair.high, digits, signed=True)),
        Text(p_word(item.p_holm)),
        Text(p_word(pair.p_sign)),
        Text(f"{pair.wins}/{pair.ties}/{pair.losses}"),
        Text(str(pair.n)),
        Text(number(pair.sd, digits) if pair.sd is not None else DASH),
        Text(number(item.detectable, digits) if item.detectable is not None else DASH),
    ]


def _margin(item: Comparison, margin: float) -> Text:
    test = item.noninferior
    if test is None or test.margin != margin or item.p_noninferior is None:
        return Text(DASH)
    return Text(f"{'yes' if item.p_noninferior < ALPHA else 'not shown'} (p {p_word(item.p_noninferior)})")


def _recovered(item: Comparison) -> Text:
    found = item.recovery
    if found is None or found.value is None:
        return Text(DASH)
    percent = f"{100 * found.value:.1f}%"
    if found.low is None or found.high is None:
        return Text(percent, "[no interval]")
    return Text(percent, f"[{100 * found.low:.1f}, {100 * found.high:.1f}]")
