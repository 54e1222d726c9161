"""Files that stand where VBench's weights belong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from mxbench.vbench.dimensions import DIMENSIONS


def fill(folder: Path, dimensions: Iterable[str] = DIMENSIONS) -> None:
    """Put a few bytes in every place."""
    for name in dimensions:
        for file in DIMENSIONS[name].files:
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.path).write_bytes(b"weights")


def without_checksums(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As if the authors of a dimension's files published none."""
    files = tuple(replace(file, sha256=None) for file in DIMENSIONS[name].files)
    monkeypatch.setitem(DIMENSIONS, name, replace(DIMENSIONS[name], files=files))
