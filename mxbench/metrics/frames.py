"""Work over the frames of a clip, on the cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["map_frames", "workers"]

T = TypeVar("T")


def workers() -> int:
    """Cores to use: what the scheduler grants this process, at most 8."""
    granted = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(granted, 8)


def map_frames(function: Callable[[int], T], count: int) -> list[T]:
    """``[function(0), ..., function(count - 1)]``, in threads: NumPy and OpenCV release the interpreter's lock.

    The results are in order, and each belongs to one frame alone, so no number depends on how many threads ran.
    """
    threads = min(workers(), count)
    if threads < 2:
        return [function(i) for i in range(count)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, range(count)))
