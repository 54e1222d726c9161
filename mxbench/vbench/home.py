"""Where VBench is: the interpreter that holds the package, and the folder of its weights."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from mxbench.errors import UserError

__all__ = ["PYTHON_VARIABLE", "cache", "interpreter", "remember"]

PYTHON_VARIABLE = "MXBENCH_VBENCH_PYTHON"


def cache() -> Path:
    """The package's own folder: ``VBENCH_CACHE_DIR``, or ``~/.cache/vbench``."""
    return Path(os.environ.get("VBENCH_CACHE_DIR") or Path.home() / ".cache" / "vbench").absolute()


def _memory() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "mxbench" / "vbench.json"


def remember(python: Path) -> None:
    """Take this interpreter from now on, where none is named; of our own, which is taken by itself, nothing is kept.

    Raises:
        UserError: that cannot be written down.
    """
    path = _memory()
    try:
        if str(python) == sys.executable:  # another environment's mxbench takes its own then
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"python": str(python)}) + "\n", encoding="utf-8")
    except OSError as error:
        if str(python) == sys.executable and not path.exists():
            return  # ours is taken where none is remembered
        raise UserError(
            f"{path}, which remembers the interpreter of VBench, cannot be written: {error.strerror or error}",
            f"set XDG_CONFIG_HOME to a folder that can be, or {PYTHON_VARIABLE}={python}",
        ) from error


def interpreter(named: str | None = None) -> str:
    """The interpreter that holds vbench: the one named, the environment's, the one that ``setup`` used last, or ours.

    Raises:
        UserError: it is not there.
    """
    named = named or os.environ.get(PYTHON_VARIABLE) or None
    if named is not None:
        if not _runs(named):
            raise UserError(f"there is no interpreter {named}", "pass the bin/python of an environment that has vbench")
        return named
    path = _memory()
    again = "run `mxbench vbench setup` again, or name an interpreter with --vbench-python"
    try:
        remembered = str(json.loads(path.read_text(encoding="utf-8"))["python"])
    except (FileNotFoundError, NotADirectoryError):
        return sys.executable
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not say which interpreter holds VBench", again) from error
    if not _runs(remembered):
        raise UserError(f"{remembered}, for which `mxbench vbench setup` installed VBench, is gone", again)
    return remembered


def _runs(python: str) -> bool:
    try:
        return Path(python).is_file() and os.access(python, os.X_OK)
    except (OSError, ValueError):  # too long a name, or a null byte
        return False
