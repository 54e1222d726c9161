"""SSIM against scikit-image, both windows, at 1e-6."""

from fractions import Fraction

import cv2
import numpy as np
import pytest
from skimage.metrics import structural_similarity

from mxbench.metrics import score
from mxbench.video import Clip

FPS = Fraction(16)
VARIANTS = {
    "ssim": {},
    "ssim_gaussian": {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False},
}


def picture(height, width, seed=0):
    """Smooth shapes and fine grain, as a frame has."""
    rng = np.random.default_rng(seed)
    smooth = cv2.resize(rng.normal(size=(6, 8, 3)).astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(128 + 60 * smooth + rng.normal(0, 4, (height, width, 3)), 0, 255)


def pair(frames, height, width, sigma):
    x = np.stack([picture(height, width, seed) for seed in range(frames)])
    y = np.clip(np.rint(x + np.random.default_rng(9).normal(0, sigma, x.shape)), 0, 255)
    return Clip(y.astype(np.uint8), FPS), Clip(x.astype(np.uint8), FPS)


def oracle(x, y, **kwargs):
    return [
        structural_similarity(a, b, channel_axis=-1, data_range=255, **kwargs)
        for a, b in zip(x.frames, y.frames, strict=True)
    ]


SIZES = [(1, 7, 7), (2, 11, 11), (1, 7, 300), (2, 33, 47), (3, 64, 65), (1, 256, 256), (1, 360, 1280), (1, 90, 2000)]


WINDOWS = {"ssim": 7, "ssim_gaussian": 11}


@pytest.mark.parametrize("sigma", [2, 25])
@pytest.mark.parametrize(("name", "shape"), [(n, s) for n in VARIANTS for s in SIZES if min(s[1:]) >= WINDOWS[n]])
def test_as_scikit_image(name, shape, sigma):
    x, y = pair(*shape, sigma)
    got = score([name], x, y)[name]
    expected = oracle(x, y, **VARIANTS[name])
    assert got.per_frame == pytest.approx(expected, abs=1e-6)
    assert got.value == pytest.approx(np.mean(expected), abs=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("levels", [(0, 255), (255, 255), (255, 254), (0, 0), (0, 1)])
def test_flat_extremes(name, levels):
    """Where sums are largest, and where variances cancel to nothing."""
    x, y = (Clip(np.full((1, 40, 50, 3), level, np.uint8), FPS) for level in levels)
    assert score([name], x, y)[name].value == pytest.approx(oracle(x, y, **VARIANTS[name])[0], abs=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_strongest_contrast(name):
    board = np.zeros((1, 60, 70, 3), np.uint8)
    board[:, ::2, ::2] = board[:, 1::2, 1::2] = 255
    x, y = Clip(board, FPS), Clip(255 - board, FPS)
    assert score([name], x, y)[name].value == pytest.approx(oracle(x, y, **VARIANTS[name])[0], abs=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_identical_is_one(name):
    x, _ = pair(2, 40, 40, 1)
    got = score([name], x, Clip(x.frames.copy(), FPS))[name]
    assert got.value == pytest.approx(1, abs=1e-12)


def test_the_two_windows_are_two_metrics():
    x, y = pair(1, 256, 256, 10)
    result = score(list(VARIANTS), x, y)
    assert abs(result["ssim"].value - result["ssim_gaussian"].value) > 1e-3
    assert result["ssim"].details["window"] != result["ssim_gaussian"].details["window"]


@pytest.mark.parametrize(("name", "side"), [("ssim", 7), ("ssim_gaussian", 11)])
@pytest.mark.parametrize("short", [(5, 5), (5, 64), (64, 5), (1, 1)])
def test_a_frame_smaller_than_the_window_is_unscored(name, side, short):
    x = Clip(np.zeros((2, *short, 3), np.uint8), FPS)
    got = score([name], x, x)[name]
    assert got.value is None
    assert f"{side}×{side} window" in got.unscored
    assert f"{short[1]}×{short[0]}" in got.unscored


def test_numbers_do_not_depend_on_threads(monkeypatch):
    x, y = pair(3, 64, 65, 5)
    several = score(list(VARIANTS), x, y)
    monkeypatch.setattr("mxbench.metrics.frames.workers", lambda: 1)
    assert score(list(VARIANTS), x, y) == several
