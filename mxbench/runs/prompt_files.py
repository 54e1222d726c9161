"""Reading prompt files: bytes to text, and text to prompts as they stand there, each with its place.

Every reader yields ``(place, text)``, such as ``("line 3", "a cat")``. What a prompt is, and which are kept, is decided
in :mod:`mxbench.runs.prompts`.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import string
from collections.abc import Iterator
from pathlib import Path

from mxbench.errors import UserError, unknown_name

__all__ = ["BLANKS", "Found", "csv_cells", "decode", "lines", "vbench_entries"]

BLANKS = (
    string.whitespace
    + "\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"
    + "".join(map(chr, range(0x2000, 0x200B)))
)
"""All that ``str.isspace`` holds for, and the byte-order mark, which files put together with ``cat`` have inside."""

Found = Iterator[tuple[str, str]]
"""Prompts as found: where in its source, and its text as it stands there."""


def decode(data: bytes, path: Path) -> str:
    """Bytes as UTF-8, without a byte-order mark; an error names the line and byte (from 1) that cannot be read."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{path} is in UTF-16", "save it as UTF-8, for example: iconv -f UTF-16 -t UTF-8 OLD > NEW")
    data = data.removeprefix(codecs.BOM_UTF8)
    if (at := data.find(0)) >= 0:
        raise UserError(f"{path}, {_place(data, at)} is a NUL", "take it out, or save the file as UTF-8 text")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, {_place(data, error.start)} (0x{data[error.start]:02x}) is not UTF-8",
            "save the file as UTF-8; if it came from Windows: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW",
        ) from error


def _place(data: bytes, at: int) -> str:
    before = re.split(rb"\r\n|\r|\n", data[:at])
    return f"line {len(before)}: byte {len(before[-1]) + 1}"


def lines(text: str) -> Found:
    """Every line that is not blank, ended by LF, CRLF or a lone CR; no line is a comment."""
    # Not str.splitlines(), which also cuts at U+2028, form feeds and more that a prompt may hold.
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        if line.strip(BLANKS):
            yield f"line {number}", line


def csv_cells(text: str, path: Path) -> Found:
    """The cells of the column called prompt, always text: ``NA`` and ``null`` are prompts, not missing values."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    column = -1
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise UserError(
                f"{path}, line {line}: not CSV ({error})", "close the quotes, and double a quote inside a quoted cell"
            ) from error
        if row is None:
            return
        if not any(cell.strip(BLANKS) for cell in row):
            continue  # A blank line, or the empty rows that spreadsheets leave at the end.
        if header is None:
            header, column = row, _prompt_column(row, path)
        elif len(row) != len(header):
            raise UserError(
                f"{path}, line {line}: {len(row)} cells where the header has {len(header)}",
                'put quotes around a prompt with a comma in it ("a cat, asleep"), or mend the row',
            )
        else:
            yield f"line {line}", row[column]


def _prompt_column(header: list[str], path: Path) -> int:
    matches = [i for i, name in enumerate(header) if name.strip(BLANKS).casefold() == "prompt"]
    if len(matches) == 1:
        return matches[0]
    columns = ", ".join(repr(name.strip(BLANKS)) for name in header)
    if matches:
        raise UserError(f"{path} has {len(matches)} columns called prompt: {columns}", "keep one of them")
    odd = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
    fix = "name the column with the prompts 'prompt'" if odd is None else f"separate cells by commas, not by {odd!r}"
    raise UserError(f"{path} has no column called prompt; its columns are {columns}", fix)


def vbench_entries(text: str, path: Path, dimension: str | None) -> Found:
    """VBench's list, or the part of it that one dimension is scored on."""
    form = 'a .json source is VBench\'s list of {"prompt_en": "...", "dimension": [...]}; put others in .txt or .csv'
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}", form) from error
    if not isinstance(entries, list):
        raise UserError(f"{path} is not a list of prompts", form)
    known: set[str] = set()
    chosen: list[tuple[str, str]] = []
    for number, entry in enumerate(entries, 1):
        prompt = entry.get("prompt_en") if isinstance(entry, dict) else None
        if not isinstance(prompt, str):
            raise UserError(f"{path}, entry {number} has no text called prompt_en", form)
        dimensions = entry.get("dimension", []) if dimension is not None else []
        known.update(dimensions)
        if dimension is None or dimension in dimensions:
            chosen.append((f"entry {number}", prompt))
    if dimension is not None and dimension not in known:
        raise unknown_name("VBench dimension", dimension, known)
    yield from chosen
