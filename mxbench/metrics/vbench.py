"""VBench's dimensions as metrics: a worker scores them, whole runs at a time, so that no function here computes one."""

from __future__ import annotations

import importlib.util
import sys

from mxbench.errors import UserError
from mxbench.metrics.base import Score, unscored
from mxbench.vbench.home import interpreter
from mxbench.vbench.preflight import reason
from mxbench.video import Clip

__all__ = ["missing", "not_here"]


def missing(dimension: str) -> str | None:
    """Why a dimension cannot be scored on this machine, as far as that shows without starting a worker."""
    try:
        python = interpreter()
    except UserError as error:
        return str(error)
    if python == sys.executable and importlib.util.find_spec("vbench") is None:
        return "VBench is not installed: `mxbench vbench setup`"
    return reason(dimension)


def not_here(_clip: Clip, _reference: Clip | None) -> Score:
    """Never a number."""
    return unscored("a worker scores VBench's dimensions: `mxbench run`, or `mxbench score --vbench`")
