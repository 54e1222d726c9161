"""Write files so that a crash at any moment leaves either the old state or the new one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mxbench.errors import UserError

__all__ = ["DiskFull", "locked", "read_json", "replace_folder", "sync", "write_json", "write_text"]


class DiskFull(UserError):
    """No room for what has just been rendered; what was finished before stays finished."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"the disk is full: {path} could not be written", "free some space and run the same command again"
        )


@contextlib.contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn "no space" of the system into ``DiskFull``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(path) from None
        raise


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Replace a file's text in one step.

    Raises:
        DiskFull: no room; the old text stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with full_disk_named(path):
            fresh.write_text(text, encoding="utf-8", newline="")
            sync(fresh)
            fresh.replace(path)
            sync(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Replace a file by JSON: legal (no NaN), sorted, readable."""
    write_text(path, json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any | None:
    """The data of a JSON file; None where there is none or it does not parse."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def replace_folder(fresh: Path, target: Path) -> None:
    """Move a finished folder to its name, once all in it lies on the disk."""
    with full_disk_named(target):
        for path in fresh.iterdir():
            sync(path)
        sync(fresh)
        if target.exists():  # damaged: a good one is never replaced
            shutil.rmtree(target)
        fresh.replace(target)
        sync(target.parent)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file; the system lets go of it when the process dies, however it dies.

    Args:
        path: the lock file, made if missing.
        wait: for another holder to let go; otherwise yield False at once.

    Yields:
        Whether the lock is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
