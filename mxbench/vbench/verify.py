"""Whether a file is the published one: by its checksum where its authors publish it, else by its size alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from mxbench.errors import UserError
from mxbench.vbench.dimensions import DIMENSIONS, File
from mxbench.vbench.preflight import size_of

__all__ = ["Weights", "look", "sha256_of", "wrong_size"]

_TOLERANCE = 0.1  # sizes are stated to about a percent, and half of a network or twice its precision is not published


@dataclass(frozen=True, slots=True)
class Weights:
    """The files of a dimension as they lie in the cache.

    Attributes:
        sha256: of each, by its path below the cache folder.
        unpublished: those that are not what their authors published.
        unverified: those of the right size whose authors publish no checksum.
    """

    sha256: dict[str, str]
    unpublished: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", "see to its permissions") from error


def wrong_size(file: File, path: Path) -> str:
    """What is wrong with a file's size, in a clause; empty where nothing is."""
    size = path.stat().st_size
    if abs(size - file.size) <= _TOLERANCE * file.size:
        return ""
    return f"has {size:,} bytes where about {size_of(file)} are expected"


def look(dimension: str, folder: Path) -> Weights:
    """The files of a dimension below a folder, of what is there."""
    digests, unpublished, unverified = {}, [], []
    for file in DIMENSIONS[dimension].files:
        path = folder / file.path
        if not path.is_file():
            continue
        digests[file.path] = sha256_of(path)
        if wrong_size(file, path) if file.sha256 is None else digests[file.path] != file.sha256:
            unpublished.append(file.path)
        elif file.sha256 is None:
            unverified.append(file.path)
    return Weights(digests, tuple(unpublished), tuple(unverified))
