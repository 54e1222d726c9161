"""The names of VBench's dimensions, which this version knows but cannot score."""

from __future__ import annotations

from mxbench.metrics.base import Score, unscored
from mxbench.video import Clip

__all__ = ["missing", "not_scored"]

_REASON = "VBench is not set up in this version"


def missing() -> str:
    """Why no VBench dimension can be computed."""
    return _REASON


def not_scored(_clip: Clip, _reference: Clip | None) -> Score:
    """The reason, never a number."""
    return unscored(_REASON)
