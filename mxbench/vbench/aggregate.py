"""The total that the package itself would print, beside our mean over videos."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from mxbench.vbench.dimensions import DIMENSIONS

__all__ = ["package_total"]


class Scored(Protocol):
    """A score of a video, with the number of its frames among its details."""

    @property
    def value(self) -> float | None:
        """The score; None without one."""

    @property
    def details(self) -> Any:
        """A mapping."""


def package_total(dimension: str, scores: Sequence[Scored]) -> float | None:
    """The total of vbench 0.1.5 on one device: of consistencies it weighs a video by its pairs of frames.

    On several GPUs the package weighs subject consistency by videos instead. Ours is the mean over videos everywhere.

    Args:
        dimension: a name in DIMENSIONS.
        scores: of the videos.

    Returns:
        None without any score.
    """
    scored = [(each.value, int(each.details["frames"]) - 1) for each in scores if each.value is not None]
    if not scored:
        return None
    if not DIMENSIONS[dimension].by_frames:
        return math.fsum(value for value, _ in scored) / len(scored)
    return math.fsum(value * pairs for value, pairs in scored) / sum(pairs for _, pairs in scored)
