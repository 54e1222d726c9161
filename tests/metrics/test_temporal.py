"""Temporal flickering against VBench's own formula."""

import itertools
from fractions import Fraction

import cv2
import numpy as np
import pytest

from mxbench.metrics import score
from mxbench.video import Clip


def flicker(frames):
    return score(["temporal_flickering"], Clip(frames, Fraction(8)))["temporal_flickering"]


def vbench(frames):
    """The body of vbench 0.1.5's temporal_flickering.py: cal_score and what it calls."""
    errors = [
        np.mean(cv2.absdiff(np.array(a, dtype=np.float32), np.array(b, dtype=np.float32)))
        for a, b in itertools.pairwise(frames)
    ]
    return (255.0 - np.mean(np.array(errors)).item()) / 255.0


@pytest.mark.parametrize("shape", [(2, 5, 5), (7, 31, 17), (3, 128, 128)])
def test_as_vbench(shape):
    frames = np.random.default_rng(0).integers(0, 256, size=(*shape, 3), dtype=np.uint8)
    got = flicker(frames)
    assert got.value == pytest.approx(vbench(frames), abs=1e-6)
    assert len(got.per_frame) == shape[0] - 1
    assert got.details == {"filtered": False}


def test_bounds():
    frames = np.zeros((3, 8, 8, 3), np.uint8)
    assert flicker(frames).value == 1
    frames[1] = 255
    assert flicker(frames).value == 0
    frames[1] = 1  # would be 255 if uint8 wrapped
    assert flicker(frames).value == pytest.approx(254 / 255, abs=1e-15)


def test_one_frame_is_unscored():
    got = flicker(np.zeros((1, 8, 8, 3), np.uint8))
    assert got.value is None
    assert got.unscored == "one frame has no successor"
