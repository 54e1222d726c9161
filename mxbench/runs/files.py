"""Write files so that a crash at any moment leaves either the old state or the new one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mxbench.errors import UserError

__all__ = ["DiskFull", "Scratch", "as_json", "full_disk_named", "locked", "read_json", "replace_folder", "sync"]


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


class Scratch:
    """Where files are made before they are moved to their names: a folder of this process inside the results folder.

    Args:
        root: the results folder; the same file system, so that a move is one step. What processes that died left
            behind is swept away.
    """

    def __init__(self, root: Path) -> None:
        home = root / ".tmp"
        home.mkdir(exist_ok=True)
        with locked(root / ".locks" / "scratch"):  # nobody sweeps a folder that has no lock yet
            for old in home.iterdir():
                with locked(old / "lock", wait=False) as dead:
                    if dead:
                        shutil.rmtree(old, ignore_errors=True)
            self.folder = Path(tempfile.mkdtemp(dir=home))
            lock = os.open(self.folder / "lock", os.O_WRONLY | os.O_CREAT, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._count = 0
        weakref.finalize(self, _discard, self.folder, lock)

    def fresh(self, suffix: str = "") -> Path:
        """A path that nothing has yet."""
        self._count += 1
        return self.folder / f"{self._count}{suffix}"

    def write(self, path: Path, data: bytes) -> None:
        """Replace a file in one step.

        Raises:
            DiskFull: no room; the old file stays.
        """
        fresh = self.fresh()
        try:
            with full_disk_named(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                fresh.write_bytes(data)
                sync(fresh)
                fresh.replace(path)
                sync(path.parent)
        finally:
            fresh.unlink(missing_ok=True)

    def write_json(self, path: Path, data: Any) -> None:
        """Replace a file by JSON, see ``as_json``."""
        self.write(path, as_json(data).encode())


def _discard(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def as_json(data: Any) -> str:
    """JSON that is legal (no NaN), sorted and readable."""
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


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
