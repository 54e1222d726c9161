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
    """Take this interpreter from now on, where none is named."""
    path = _memory()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"python": str(python)}) + "\n", encoding="utf-8")


def interpreter(named: str | None = None) -> str:
    """The interpreter that holds vbench: the one named, the environment's, what ``setup`` made last, or our own.

    Raises:
        UserError: it is not there.
    """
    named = named or os.environ.get(PYTHON_VARIABLE)
    if named is None:
        try:
            named = str(json.loads(_memory().read_text(encoding="utf-8"))["python"])
        except (OSError, ValueError, KeyError, TypeError):
            return sys.executable
        if not Path(named).is_file():
            return sys.executable
    if not Path(named).is_file() or not os.access(named, os.X_OK):
        raise UserError(f"there is no interpreter {named}", "pass the bin/python of an environment that has vbench")
    return named
