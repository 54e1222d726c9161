"""Cosine and PSNR of raw uint8 RGB, from exact integer sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from mxbench.metrics.base import Score
from mxbench.metrics.frames import map_frames
from mxbench.video import Clip

__all__ = ["PSNR_CAP", "FrameSums", "cosine", "frame_sums", "psnr", "psnr_clip", "shared_sums"]

PSNR_CAP = 100.0  # dB, inside a mean: one identical frame must not make the mean infinite

_CHUNK = 8192  # values; stays in the first cache as float64, and below where BLAS starts threads of its own


@dataclass(frozen=True, slots=True)
class FrameSums:
    """Exact sums over one frame's H·W·3 values: of x², y², xy, and how many values there are."""

    xx: int
    yy: int
    xy: int
    count: int

    @property
    def squared_error(self) -> int:
        """Σ(x - y)²."""
        return self.xx + self.yy - 2 * self.xy

    @property
    def cosine(self) -> float:
        """Σxy / √(Σx²·Σy²). A black frame has no direction: 1 beside another black frame, 0 beside any other."""
        if self.xx == 0 or self.yy == 0:
            return float(self.xx == self.yy)
        return min(1.0, self.xy / math.sqrt(self.xx * self.yy))

    @property
    def psnr(self) -> float:
        """10·log10(255² / MSE) in dB, inf for identical frames."""
        return _decibels(self.squared_error, self.count)


def frame_sums(clip: Clip, reference: Clip) -> tuple[FrameSums, ...]:
    """The sums of every frame, x the clip and y the reference; computed once inside ``shared_sums``."""
    shared = _shared.get()
    key = (id(clip.frames), id(reference.frames))
    if shared is not None and key in shared:
        return shared[key]
    sums = tuple(map_frames(lambda i: _sums(clip.frames[i], reference.frames[i]), len(clip.frames)))
    if shared is not None:
        shared[key] = sums
    return sums


_shared: ContextVar[dict[tuple[int, int], tuple[FrameSums, ...]] | None] = ContextVar("shared_sums", default=None)


@contextmanager
def shared_sums() -> Iterator[None]:
    """Within, metrics of one pair of clips share their sums; the clips must stay alive and unchanged."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def _sums(x: np.ndarray, y: np.ndarray) -> FrameSums:
    x, y = x.reshape(-1), y.reshape(-1)
    xx = yy = xy = 0.0
    for start in range(0, x.size, _CHUNK):
        # Products of uint8 are integers, so float64 sums are exact below 2^53, which is 10^11 values.
        a = x[start : start + _CHUNK].astype(np.float64)
        b = y[start : start + _CHUNK].astype(np.float64)
        xx += float(a @ a)
        yy += float(b @ b)
        xy += float(a @ b)
    return FrameSums(int(xx), int(yy), int(xy), x.size)


def _decibels(squared_error: int, count: int) -> float:
    return math.inf if squared_error == 0 else 10 * math.log10(255 * 255 * count / squared_error)


def cosine(clip: Clip, reference: Clip | None) -> Score:
    """Mean over frames of the cosine between flattened RGB, not centred."""
    assert reference is not None
    sums = frame_sums(clip, reference)
    values = tuple(s.cosine for s in sums)
    black = sum(s.xx == 0 or s.yy == 0 for s in sums)
    return Score(math.fsum(values) / len(values), values, details={"black_frames": black} if black else {})


def psnr(clip: Clip, reference: Clip | None) -> Score:
    """Mean over frames of the frame's PSNR in dB, each capped at ``PSNR_CAP`` inside the mean."""
    assert reference is not None
    values = tuple(s.psnr for s in frame_sums(clip, reference))
    mean = math.fsum(min(v, PSNR_CAP) for v in values) / len(values)
    return Score(mean, values, details={"identical_frames": values.count(math.inf), "cap": PSNR_CAP})


def psnr_clip(clip: Clip, reference: Clip | None) -> Score:
    """PSNR in dB from the MSE of the whole clip, capped at ``PSNR_CAP``."""
    assert reference is not None
    sums = frame_sums(clip, reference)
    value = _decibels(sum(s.squared_error for s in sums), sum(s.count for s in sums))
    identical = sum(s.squared_error == 0 for s in sums)
    details = {"identical_frames": identical, "cap": PSNR_CAP}
    return Score(min(value, PSNR_CAP), tuple(s.psnr for s in sums), details=details)
