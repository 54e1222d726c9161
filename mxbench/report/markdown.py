"""A page as GitHub-flavoured Markdown, aligned so that the source reads as a table too."""

from __future__ import annotations

import re

from rich.cells import cell_len

from mxbench.report.layout import Grid, Head, Page, Text
from mxbench.report.words import superscript

__all__ = ["render"]


def render(page: Page) -> str:
    """The page as Markdown; ends with a newline.

    Nothing in it depends on when or where it was written, so that equal results give equal files.
    """
    parts = [f"# {_escaped(page.title)}", _header(page)]
    for grid in page.grids:
        if grid.title:
            parts.append(f"## {_escaped(grid.title)}")
        parts.append(_table(grid))
        if grid.footnotes:
            marked = (f"{superscript(n)} {_escaped(text)}" for n, text in enumerate(grid.footnotes, 1))
            parts.append("\\\n".join(marked))
        if grid.notes:
            parts.append("**How to read**" if not grid.title else "")
            parts.append("\n".join(f"- {_escaped(note)}" for note in grid.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(page: Page) -> str:
    return "\n".join(f"- **{_escaped(name)}:** {_escaped(value)}" for name, value in page.header)


def _table(grid: Grid) -> str:
    lines = [[_head(head, position, grid) for position, head in enumerate(grid.heads)]]
    lines += [[_cell(text) for text in row] for row in grid.rows]
    widths = [max(3, *(cell_len(line[i]) for line in lines)) for i in range(len(grid.heads))]
    rule = [
        "-" * (width - 1) + ":" if head.align == "right" else "-" * width
        for head, width in zip(grid.heads, widths, strict=True)
    ]
    padded = [
        [_padded(cell, head, width) for cell, head, width in zip(line, grid.heads, widths, strict=True)]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in [padded[0], rule, *padded[1:]])


def _head(head: Head, position: int, grid: Grid) -> str:
    """A group stands over its first column; pipe tables cannot span."""
    label = _escaped(head.label)
    if not head.group:
        return label
    first = position == 0 or grid.heads[position - 1].group != head.group
    return f"{_escaped(head.group)}<br>{label}" if first else label


def _cell(text: Text) -> str:
    main = _escaped(text.main)
    if text.bold:
        main = f"**{main}**"
    marks = "".join(superscript(mark) for mark in text.marks)
    return " ".join(part for part in (main, _escaped(text.sub), marks) if part)


def _padded(cell: str, head: Head, width: int) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if head.align == "right" else cell + space


def _escaped(text: str) -> str:
    """Text that Markdown prints as it stands, on one line."""
    return re.sub(r"([|*`]|<(?=[A-Za-z/!?])|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))
