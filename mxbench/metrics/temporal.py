"""Temporal flickering, which needs neither a reference nor weights."""

from __future__ import annotations

import math

import numpy as np

from mxbench.metrics.base import Score, unscored
from mxbench.metrics.frames import map_frames
from mxbench.video import Clip

__all__ = ["temporal_flickering"]


def temporal_flickering(clip: Clip, _reference: Clip | None = None) -> Score:
    """(255 - MAE) / 255, MAE the mean absolute difference of successive frames: 1 is a still picture.

    As VBench (Huang et al. 2024) defines it, on all clips: VBench itself first filters out clips that move, so this
    number also falls with motion. ``per_frame`` holds one value for each of the F - 1 pairs.
    """
    import cv2

    frames = clip.frames
    if len(frames) < 2:
        return unscored("one frame has no successor")

    def steadiness(i: int) -> float:
        difference = int(np.sum(cv2.absdiff(frames[i], frames[i + 1]), dtype=np.int64))
        return 1 - difference / (255 * int(frames[i].size))

    values = tuple(map_frames(steadiness, len(frames) - 1))
    return Score(math.fsum(values) / len(values), values, details={"filtered": False})
