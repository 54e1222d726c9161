"""What is missing before a dimension can be scored; nothing is started for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from mxbench.errors import UserError, unknown_name
from mxbench.vbench.dimensions import DIMENSIONS, File
from mxbench.vbench.home import cache

__all__ = ["lacking", "reason", "refusal", "size_of"]


def lacking(dimensions: Iterable[str], folder: Path | None = None) -> dict[str, list[File]]:
    """The files that are not there (or empty), by dimension; dimensions that lack nothing are left out.

    Args:
        dimensions: names in DIMENSIONS.
        folder: of the weights; None for the package's own.

    Raises:
        UserError: an unknown dimension.
    """
    folder = cache() if folder is None else folder
    found = {}
    for name in dimensions:
        if name not in DIMENSIONS:
            raise unknown_name("VBench dimension", name, DIMENSIONS)
        gone = [file for file in DIMENSIONS[name].files if not _there(folder / file.path)]
        if gone:
            found[name] = gone
    return found


def _there(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False


def size_of(file: File) -> str:
    """About how large, such as ``343 MB``."""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if file.size >= least:
            return f"{file.size / least:.0f} {unit}"
    return f"{file.size} bytes"


def reason(dimension: str, folder: Path | None = None) -> str | None:
    """Why a dimension cannot be scored, as a table says it; None where nothing is missing."""
    folder = cache() if folder is None else folder
    gone = lacking([dimension], folder).get(dimension)
    if not gone:
        return None
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    largest = max(gone, key=lambda file: file.size)
    return f"VBench lacks {folder / largest.path} ({size_of(largest)}){more}: `mxbench vbench setup`"


def refusal(missing: Mapping[str, list[File]], folder: Path | None = None) -> UserError:
    """The error of a run that would have empty columns: every file, where it goes, how large, where it comes from."""
    folder = cache() if folder is None else folder
    files = {file.path: file for gone in missing.values() for file in gone}
    said = "; ".join(f"{folder / path} ({size_of(file)}, from {file.source})" for path, file in files.items())
    return UserError(
        f"{', '.join(missing)} cannot be scored without {len(files)} file{'s' * (len(files) != 1)}: {said}",
        "run `mxbench vbench setup`, which fetches them or takes them from --weights DIR; or pass --allow-unscored",
    )
