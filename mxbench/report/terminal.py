"""A page for the terminal. A grid that is too wide continues in a second one; nothing is cut off."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from mxbench.report.layout import Grid, Page, Text
from mxbench.report.words import superscript

__all__ = ["print_page", "to_text"]

_GAP = 2
_WIDEST_STUB = 22


def print_page(page: Page, console: Console | None = None) -> None:
    """Prints a page at the console's width.

    Args:
        page: what to print.
        console: where to; standard output by default.
    """
    out = console if console is not None else Console(highlight=False)
    width = max(out.width, 40)
    _line(out, RichText(page.title, style="bold"))
    names = max((cell_len(name) for name, _ in page.header), default=0)
    for name, value in page.header:
        lines = textwrap.wrap(value, max(width - names - _GAP, 20)) or [""]
        for number, line in enumerate(lines):
            label = f"{name if number == 0 else '':<{names + _GAP}}"
            _line(out, RichText.assemble((label, "dim"), line))
    for grid in page.grids:
        _print_grid(grid, out, width)


def to_text(page: Page, width: int = 100) -> str:
    """The page as plain text of at most so many columns."""
    buffer = io.StringIO()
    print_page(page, Console(file=buffer, width=width, color_system=None, highlight=False))
    return buffer.getvalue()


def _print_grid(grid: Grid, out: Console, width: int) -> None:
    widths = [_width(grid, position) for position in range(len(grid.heads))]
    if sum(widths) + _GAP * (len(widths) - 1) > width:
        widths[: grid.stub] = [min(natural, _WIDEST_STUB) for natural in widths[: grid.stub]]
    for part, columns in enumerate(_parts(grid, widths, width)):
        _line(out, RichText())
        title = " ".join(word for word in (grid.title, "(continued)" if part else "") if word)
        if title:
            _line(out, RichText(title, style="bold"))
        groups = _groups(grid, columns, widths)
        if groups.strip():
            _line(out, RichText(groups, style="dim"))
        out.print(_table(grid, columns, widths), no_wrap=False, crop=False, overflow="fold")
    if grid.footnotes:
        _line(out, RichText())
    for number, text in enumerate(grid.footnotes, 1):
        _paragraph(out, f"{superscript(number)} ", text, width)
    if grid.notes:
        _line(out, RichText())
        if any(text.bold for row in grid.rows for text in row):
            _paragraph(out, "· ", "* marks bold numbers, for pipes and terminals that show none.", width)
        for note in grid.notes:
            _paragraph(out, "· ", note, width)


def _parts(grid: Grid, widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Column positions of each part: the stub and as many columns as fit, a group kept together where it can be."""
    stub = list(range(grid.stub))
    room = width - sum(widths[i] + _GAP for i in stub)
    part: list[int] = []
    for group in _grouped(grid, range(grid.stub, len(grid.heads))):
        wanted = sum(widths[i] + _GAP for i in group) - _GAP
        used = sum(widths[i] + _GAP for i in part)
        if part and used + wanted > room:
            yield stub + part
            part, used = [], 0
        for i in group:
            if part and used + widths[i] > room:
                yield stub + part
                part, used = [], 0
            part.append(i)
            used += widths[i] + _GAP
    if part:
        yield stub + part


def _grouped(grid: Grid, columns: Sequence[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for i in columns:
        same = groups and grid.heads[i].group and grid.heads[groups[-1][-1]].group == grid.heads[i].group
        if same:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _width(grid: Grid, position: int) -> int:
    lines = [grid.heads[position].label]
    for row in grid.rows:
        lines += _lines(row[position])
    return max(cell_len(line) for line in lines)


def _lines(text: Text) -> list[str]:
    """The lines of a cell: what it says with its marks, then the interval."""
    marks = "".join(superscript(mark) for mark in text.marks)
    star = "*" if text.bold else ""  # a pipe and some terminals show no bold
    return [f"{star}{text.main} {marks}".strip(), *([text.sub] if text.sub else [])]


def _groups(grid: Grid, columns: Sequence[int], widths: Sequence[int]) -> str:
    """The line over the heads: each group's name over its columns, between rules."""
    line = " " * sum(widths[i] + _GAP for i in columns if i < grid.stub)
    for group in _grouped(grid, [i for i in columns if i >= grid.stub]):
        span = sum(widths[i] + _GAP for i in group) - _GAP
        name = grid.heads[group[0]].group
        line += (f" {name} ".center(span, "─") if name else " " * span) + " " * _GAP
    return line.rstrip()


def _table(grid: Grid, columns: Sequence[int], widths: Sequence[int]) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i in columns:
        head = grid.heads[i]
        table.add_column(RichText(head.label), justify=head.align, width=widths[i], overflow="fold")
    for row in grid.rows:
        table.add_row(*(_rich(row[i]) for i in columns))
    return table


def _rich(text: Text) -> RichText:
    main, *rest = _lines(text)
    return RichText.assemble((main, "bold" if text.bold else ""), *(("\n" + line, "dim") for line in rest))


def _paragraph(out: Console, lead: str, text: str, width: int) -> None:
    lines = textwrap.wrap(text, max(width - len(lead), 20)) or [""]
    for number, line in enumerate(lines):
        _line(out, RichText((lead if number == 0 else " " * len(lead)) + line))


def _line(out: Console, text: RichText) -> None:
    out.print(text, soft_wrap=True)
