"""A file of JSON lines that keeps VBench's scores of files, by their bytes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from mxbench.errors import UserError
from mxbench.metrics import Score

__all__ = ["KeptScores", "digest"]

_BEGINNING = '{"video": '


class KeptScores:
    """Scores of the same bytes, dimension and setup are taken from there, and new ones go there as they come.

    Args:
        path: the file; made where it is missing.

    Raises:
        UserError: it cannot be read or written, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        there = path.exists()
        try:
            with path.open("ab+"):
                pass
            if not there:
                path.unlink()
            self.known = self._read() if there else {}
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> UserError:
        return UserError(f"{self.path} cannot be written: {error.strerror or error}", "name another file with --keep")

    def _read(self) -> dict[tuple[str, str, str], Score]:
        """By video's bytes, dimension and setup; lines that are torn count for nothing."""
        found = {}
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        first = lines[0] if lines else ""
        if first.strip() and not first.startswith(_BEGINNING) and not _BEGINNING.startswith(first):
            raise UserError(f"{self.path} holds something else than kept scores", "name another file with --keep")
        for line in lines:
            try:
                data = json.loads(line)
                score = Score.from_json(data)
                if score.value is not None and isinstance(score.details["frames"], int):
                    found[data["video"], data["dimension"], score.details["setup"]] = score
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
        return found

    def add(self, video: str, dimension: str, score: Score) -> None:
        """Keep a score of a video, which is known by its digest.

        Raises:
            UserError: it cannot be written.
        """
        line = {"video": video, "dimension": dimension, **score.to_json()}
        try:
            with self.path.open("ab+") as out:
                torn = out.tell() > 0 and out.seek(-1, os.SEEK_END) >= 0 and out.read(1) != b"\n"
                out.write(b"\n" * torn + json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise self._unwritten(error) from error


def digest(path: Path) -> str:
    """SHA-256 of a video; empty where it cannot be read, which the worker says of it too."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""
