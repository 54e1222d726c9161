"""SSIM, equal to scikit-image's and ten times as fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mxbench.metrics.base import Score, unscored
from mxbench.metrics.frames import map_frames
from mxbench.video import Clip

__all__ = ["ssim", "ssim_gaussian"]

C1 = (0.01 * 255) ** 2
C2 = (0.03 * 255) ** 2

_STRIP = 40_000  # pixels in a strip of rows: a dozen int32 arrays of it stay in the second cache

Image = npt.NDArray[np.uint8]
Map = npt.NDArray[np.floating[Any]]


def ssim(clip: Clip, reference: Clip | None) -> Score:
    """Mean over frames of ``structural_similarity(x, y, channel_axis=-1, data_range=255)`` of scikit-image.

    Wang et al. 2004 with a uniform 7×7 window and sample covariance, per channel, windows inside the frame only.
    """
    return _mean_over_frames(clip, reference, 7, "uniform 7×7", _uniform)


def ssim_gaussian(clip: Clip, reference: Clip | None) -> Score:
    """The same with ``gaussian_weights=True, sigma=1.5, use_sample_covariance=False``: an 11×11 window.

    This is the window of Wang et al. 2004; it reads about 0.02 differently from ``ssim``.
    """
    return _mean_over_frames(clip, reference, 11, "Gaussian 11×11, sigma 1.5", _gaussian)


def _mean_over_frames(
    clip: Clip, reference: Clip | None, side: int, window: str, similarity: Callable[[Image, Image], Map]
) -> Score:
    assert reference is not None
    _, height, width, _ = clip.shape
    if min(height, width) < side:
        return unscored(f"the frame of {width}×{height} is smaller than the {side}×{side} window", window=window)
    margin = side - 1
    rows = max(1, _STRIP // width)

    def mean(i: int) -> float:
        x, y = clip.frames[i], reference.frames[i]
        strips = (slice(top, top + rows + margin) for top in range(0, height - margin, rows))
        total = math.fsum(float(similarity(x[s], y[s]).sum(dtype=np.float64)) for s in strips)
        return total / ((height - margin) * (width - margin) * 3)

    values = tuple(map_frames(mean, len(clip.frames)))
    return Score(math.fsum(values) / len(values), values, details={"window": window})


def _uniform(x: Image, y: Image) -> Map:
    """SSIM at every 7×7 window inside two images [H, W, 3]; float32 [H - 6, W - 6, 3].

    The window's sums, and the variances times 49·48, are exact in int32 (at most 49²·2·255² = 3.1e8), so nothing
    cancels; only the final quotient is float32.
    """
    import cv2

    def box(image: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        sums: npt.NDArray[np.int32] = cv2.boxFilter(image, cv2.CV_32S, (7, 7), normalize=False)
        return sums[3:-3, 3:-3]

    sx, sy = box(x), box(y)
    sxy = box(cv2.multiply(x, y, dtype=cv2.CV_32S))
    squares = box(cv2.add(cv2.multiply(x, x, dtype=cv2.CV_32S), cv2.multiply(y, y, dtype=cv2.CV_32S)))

    means = sx * sy
    mean_squares = sx * sx
    mean_squares += sy * sy
    covariance = sxy * 49
    covariance -= means
    variances = squares * 49
    variances -= mean_squares

    def scaled(sums: npt.NDArray[np.int32], factor: int, constant: float) -> npt.NDArray[np.float32]:
        out = sums.astype(np.float32)
        out *= np.float32(factor)
        out += np.float32(constant)
        return out

    numerator = scaled(means, 2, C1 * 49 * 49)
    numerator *= scaled(covariance, 2, C2 * 49 * 48)
    denominator = scaled(mean_squares, 1, C1 * 49 * 49)
    denominator *= scaled(variances, 1, C2 * 49 * 48)
    numerator /= denominator
    return numerator


def _gaussian(x: Image, y: Image) -> Map:
    """SSIM at every 11×11 window inside two images [H, W, 3]; float64 [H - 10, W - 10, 3]."""
    import cv2

    taps = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    taps /= taps.sum()

    def blur(image: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        means: npt.NDArray[np.float64] = cv2.sepFilter2D(image, cv2.CV_64F, taps, taps)
        return means[5:-5, 5:-5]

    a, b = x.astype(np.float64), y.astype(np.float64)
    ma, mb = blur(a), blur(b)
    means, mean_squares = ma * mb, ma * ma + mb * mb
    covariance = blur(a * b) - means
    variances = blur(a * a + b * b) - mean_squares
    return ((2 * means + C1) * (2 * covariance + C2)) / ((mean_squares + C1) * (variances + C2))
