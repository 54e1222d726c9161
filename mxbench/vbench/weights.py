"""The files that dimensions need: from a folder brought by hand, or from their authors; checked before they count."""

from __future__ import annotations

import http.client
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mxbench.errors import UserError
from mxbench.vbench.dimensions import DIMENSIONS, File
from mxbench.vbench.preflight import size_of
from mxbench.vbench.verify import sha256_of, wrong_size

__all__ = ["Brought", "bring", "wanted"]

_CHUNK = 1 << 20
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Brought:
    """What became of a file: ``there`` already, ``copied``, ``fetched``; else ``missing`` or ``wrong``, and why."""

    file: File
    how: str
    reason: str = ""

    @property
    def good(self) -> bool:
        """Whether it lies in its place now."""
        return not self.reason


def bring(
    dimensions: Iterable[str],
    folder: Path,
    by_hand: Path | None = None,
    *,
    tell: Callable[[File], None] = lambda _file: None,
) -> list[Brought]:
    """See that the files of dimensions are in the cache folder.

    Args:
        dimensions: names in DIMENSIONS.
        folder: the cache; made if it is missing.
        by_hand: a folder of files that were brought here, laid out as the cache is or all beside each other; None
            fetches from their authors.
        tell: told of every file before it is copied or fetched.

    Raises:
        UserError: the folder cannot be written.
    """
    files = {file.path: file for name in dimensions for file in DIMENSIONS[name].files}
    found = []
    for file in files.values():
        target = folder / file.path
        if target.is_file() and target.stat().st_size > 0:
            wrong = _wrong(file, target)
            found.append(Brought(file, "wrong", f"{target} {wrong}: delete it") if wrong else Brought(file, "there"))
            continue
        tell(file)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".mxbench-") as scratch:
                fresh = Path(scratch) / "file"
                one = _copied(file, by_hand, fresh) if by_hand is not None else _fetched(file, fresh)
                if one.good and (wrong := _wrong(file, fresh)):
                    one = Brought(file, "wrong", f"what came {wrong}")
                if one.good:
                    fresh.replace(target)
        except OSError as error:
            raise UserError(
                f"{target} cannot be written: {error.strerror or error}", "set VBENCH_CACHE_DIR to a folder that can be"
            ) from error
        found.append(one)
    return found


def _wrong(file: File, path: Path) -> str:
    if file.sha256 is None:
        return wrong_size(file, path)
    if (got := sha256_of(path)) != file.sha256:
        size = wrong_size(file, path)
        return (f"{size}, and " if size else "") + (
            f"has the SHA-256 {got[:12]}… where its authors state {file.sha256[:12]}…"
        )
    return ""


def _copied(file: File, by_hand: Path, fresh: Path) -> Brought:
    for place in (by_hand / file.path, by_hand / Path(file.path).name):
        if place.is_file():
            shutil.copyfile(place, fresh)
            return Brought(file, "copied")
    reason = f"it is not in {by_hand}, neither as {file.path} nor as {Path(file.path).name}"
    return Brought(file, "missing", reason)


class _Short(Exception):
    """A download broke off."""


def _fetched(file: File, fresh: Path) -> Brought:
    try:
        with urllib.request.urlopen(file.source, timeout=_ANSWER_S) as answer:
            if file.member is None:
                with fresh.open("wb") as out:
                    _take(answer, out)
            else:
                with tempfile.TemporaryFile(dir=fresh.parent) as archive:
                    _take(answer, archive)
                    _member(archive, file.member, fresh)
    except (
        urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException, zipfile.BadZipFile, zlib.error,
        EOFError, KeyError, _Short,
    ) as error:  # fmt: skip
        why = getattr(error, "reason", None) or error
        said = " ".join(str(why).split()) or type(error).__name__
        return Brought(file, "missing", f"{file.source} could not be fetched ({said[:200]})")
    return Brought(file, "fetched")


def _take(answer: Any, out: IO[bytes]) -> None:
    """All of an answer.

    Raises:
        _Short: it has fewer bytes than it said.
    """
    shutil.copyfileobj(answer, out, _CHUNK)
    said = answer.headers.get("Content-Length") or ""
    if said.isdecimal() and out.tell() < int(said):
        raise _Short(f"it broke off after {out.tell():,} of {int(said):,} bytes")


def _member(archive: IO[bytes], name: str, fresh: Path) -> None:
    archive.seek(0)
    with zipfile.ZipFile(archive) as opened, opened.open(name) as member, fresh.open("wb") as out:
        shutil.copyfileobj(member, out, _CHUNK)


def wanted(file: File) -> str:
    """A line for people: which, how large, and under what terms."""
    return f"{file.path} ({size_of(file)}; {file.licence})"
