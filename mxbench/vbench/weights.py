"""The files that dimensions need: from a folder brought by hand, or from their authors; checked before they count."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mxbench.errors import UserError
from mxbench.vbench.dimensions import DIMENSIONS, File
from mxbench.vbench.preflight import size_of

__all__ = ["Brought", "bring", "fingerprint", "sha256_of", "unpublished", "wanted"]

_CHUNK = 1 << 20
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Brought:
    """What became of a file: ``there`` already, ``copied``, ``fetched``; or None, and the reason why it is missing."""

    file: File
    how: str | None
    reason: str = ""


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
            found.append(Brought(file, None, f"{target} {wrong}: delete it") if wrong else Brought(file, "there"))
            continue
        tell(file)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".mxbench-") as scratch:
                fresh = Path(scratch) / "file"
                how, reason = _copied(file, by_hand, fresh) if by_hand is not None else _fetched(file, fresh)
                if how is not None and (wrong := _wrong(file, fresh)):
                    how, reason = None, f"what came {wrong}"
                if how is not None:
                    fresh.replace(target)
        except OSError as error:
            raise UserError(
                f"{target} cannot be written: {error.strerror or error}", "set VBENCH_CACHE_DIR to a folder that can be"
            ) from error
        found.append(Brought(file, how, reason))
    return found


def _wrong(file: File, path: Path) -> str:
    if file.sha256 is not None and (got := sha256_of(path)) != file.sha256:
        return f"has the SHA-256 {got[:12]}… where its authors state {file.sha256[:12]}…"
    return ""


def _copied(file: File, by_hand: Path, fresh: Path) -> tuple[str | None, str]:
    for place in (by_hand / file.path, by_hand / Path(file.path).name):
        if place.is_file():
            shutil.copyfile(place, fresh)
            return "copied", ""
    return None, f"it is not in {by_hand}, neither as {file.path} nor as {Path(file.path).name}"


def _fetched(file: File, fresh: Path) -> tuple[str | None, str]:
    try:
        with urllib.request.urlopen(file.source, timeout=_ANSWER_S) as answer:
            if file.member is None:
                with fresh.open("wb") as out:
                    shutil.copyfileobj(answer, out, _CHUNK)
            else:
                with tempfile.TemporaryFile(dir=fresh.parent) as archive:
                    shutil.copyfileobj(answer, archive, _CHUNK)
                    _member(archive, file.member, fresh)
    except (urllib.error.URLError, TimeoutError, ConnectionError, zipfile.BadZipFile, KeyError) as error:
        why = getattr(error, "reason", None) or error
        return None, f"{file.source} could not be fetched ({why})"
    return "fetched", ""


def _member(archive: IO[bytes], name: str, fresh: Path) -> None:
    archive.seek(0)
    with zipfile.ZipFile(archive) as opened, opened.open(name) as member, fresh.open("wb") as out:
        shutil.copyfileobj(member, out, _CHUNK)


def fingerprint(dimension: str, folder: Path) -> dict[str, str]:
    """SHA-256 of each file that a dimension needs, by its path below the cache folder; of what is there."""
    files = (file for file in DIMENSIONS[dimension].files if (folder / file.path).is_file())
    return {file.path: sha256_of(folder / file.path) for file in files}


def unpublished(dimension: str, digests: dict[str, str]) -> list[str]:
    """The files of a dimension whose bytes are not those whose checksum their authors publish; of digests by path."""
    files = DIMENSIONS[dimension].files
    return [f.path for f in files if f.sha256 is not None and digests.get(f.path, f.sha256) != f.sha256]


def wanted(file: File) -> str:
    """A line for people: which, how large, and under what terms."""
    return f"{file.path} ({size_of(file)}; {file.licence})"
