"""Cosine and PSNR against exact integers, Fractions and scikit-image."""

import math
from fractions import Fraction

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio

from mxbench.metrics import score
from mxbench.metrics.fidelity import PSNR_CAP, frame_sums, shared_sums
from mxbench.video import Clip

FPS = Fraction(16)


def clip(frames):
    return Clip(np.asarray(frames, np.uint8), FPS)


def noise(*shape, seed=0):
    return clip(np.random.default_rng(seed).integers(0, 256, size=(*shape, 3)))


def exact(x, y):
    """Python integers: Σx², Σy², Σxy of one frame."""
    a, b = x.reshape(-1).tolist(), y.reshape(-1).tolist()
    return sum(v * v for v in a), sum(v * v for v in b), sum(v * w for v, w in zip(a, b, strict=True))


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 5), (2, 31, 47), (1, 128, 128), (5, 17, 2)])
def test_sums_are_exact(shape):
    x, y = noise(*shape), noise(*shape, seed=1)
    for got, a, b in zip(frame_sums(x, y), x.frames, y.frames, strict=True):
        assert (got.xx, got.yy, got.xy) == exact(a, b)
        assert got.count == a.size


def test_sums_are_exact_where_they_are_largest():
    white = clip(np.full((1, 720, 1280, 3), 255))
    (sums,) = frame_sums(white, white)
    assert sums.xx == sums.yy == sums.xy == 255 * 255 * 720 * 1280 * 3
    assert sums.squared_error == 0
    odd = white.frames.copy()
    odd[0, -1, -1, -1] = 254  # one value by one level, in 2.7 million
    (sums,) = frame_sums(clip(odd), white)
    assert sums.squared_error == 1
    assert sums.psnr == pytest.approx(10 * math.log10(255**2 * odd.size), abs=1e-12)
    assert sums.cosine < 1 or sums.cosine == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("shape", [(3, 5, 5), (2, 31, 47), (1, 128, 128)])
def test_values_match_fractions(shape):
    x, y = noise(*shape), noise(*shape, seed=1)
    result = score(["cosine", "psnr", "psnr_clip"], x, y)
    sums = [exact(a, b) for a, b in zip(x.frames, y.frames, strict=True)]
    cosines = [xy / math.sqrt(xx * yy) for xx, yy, xy in sums]
    errors = [Fraction(xx + yy - 2 * xy, x.frames[0].size) for xx, yy, xy in sums]
    levels = [10 * math.log10(Fraction(255**2) / e) for e in errors]
    assert result["cosine"].per_frame == pytest.approx(cosines, abs=1e-15)
    assert result["cosine"].value == pytest.approx(np.mean(cosines), abs=1e-15)
    assert result["psnr"].per_frame == pytest.approx(levels, abs=1e-12)
    assert result["psnr"].value == pytest.approx(np.mean(levels), abs=1e-12)
    whole = 10 * math.log10(Fraction(255**2) / (sum(errors) / len(errors)))
    assert result["psnr_clip"].value == pytest.approx(whole, abs=1e-12)


def test_fifteen_decibels_do_not_wrap():
    """Subtracting uint8 arrays reads 28 dB on such a pair."""
    x = noise(2, 64, 64)
    y = clip(np.clip(x.frames.astype(int) + np.random.default_rng(1).normal(0, 47, x.frames.shape), 0, 255))
    value = score(["psnr"], y, x)["psnr"].value
    expected = np.mean([peak_signal_noise_ratio(a, b, data_range=255) for a, b in zip(x.frames, y.frames, strict=True)])
    assert value == pytest.approx(expected, abs=1e-9)
    assert 14 < value < 17
    wrapped = np.mean(10 * np.log10(255**2 / np.mean((x.frames - y.frames).astype(float) ** 2, axis=(1, 2, 3))))
    assert abs(wrapped - value) > 1


@pytest.mark.parametrize("offset", [1, 3, 100])
def test_a_constant_offset_has_its_closed_form(offset):
    x = clip(np.random.default_rng(0).integers(0, 256 - offset, size=(3, 20, 30, 3)))
    y = clip(x.frames + np.uint8(offset))
    result = score(["psnr", "psnr_clip"], y, x)
    for one in result.values():
        assert one.value == pytest.approx(20 * math.log10(255 / offset), abs=1e-12)


def test_identical_clips():
    x = noise(4, 16, 16)
    result = score(["cosine", "psnr", "psnr_clip"], clip(x.frames.copy()), x)
    assert result["cosine"].value == 1.0
    assert result["cosine"].per_frame == (1.0,) * 4
    assert result["psnr"].value == result["psnr_clip"].value == PSNR_CAP
    assert result["psnr"].per_frame == (math.inf,) * 4
    assert result["psnr"].details["identical_frames"] == result["psnr_clip"].details["identical_frames"] == 4


def test_one_identical_frame_counts_as_the_cap():
    x = noise(3, 16, 16)
    y = x.frames.copy()
    y[1:] ^= 1
    result = score(["psnr", "psnr_clip"], clip(y), x)
    level = 20 * math.log10(255)
    assert result["psnr"].per_frame == pytest.approx((math.inf, level, level))
    assert result["psnr"].value == pytest.approx((PSNR_CAP + 2 * level) / 3)
    assert result["psnr"].details["identical_frames"] == 1
    assert result["psnr_clip"].value == pytest.approx(level + 10 * math.log10(3 / 2))


def test_frames_and_clip_differ_as_the_papers_do():
    x = clip(np.full((2, 16, 16, 3), 100))
    y = x.frames.copy()
    y[0] += 1
    y[1] += 50
    result = score(["psnr", "psnr_clip"], clip(y), x)
    assert result["psnr"].value - result["psnr_clip"].value > 10


def test_black_frames_have_no_direction():
    x = noise(3, 8, 8)
    dark = x.frames.copy()
    dark[0] = 0
    one = score(["cosine"], clip(dark), x)["cosine"]
    assert one.per_frame[0] == 0
    assert one.details == {"black_frames": 1}
    both = score(["cosine"], clip(dark), clip(dark))["cosine"]
    assert both.value == 1
    assert both.details == {"black_frames": 1}


def test_sums_are_shared_only_within_one_call():
    x, y = noise(2, 8, 8), noise(2, 8, 8, seed=1)
    with shared_sums():
        assert frame_sums(x, y) is frame_sums(x, y)
    before = score(["psnr"], x, y)["psnr"].value
    x.frames[:] = y.frames
    assert score(["psnr"], x, y)["psnr"].value == PSNR_CAP != before


def test_views_score_as_their_copies():
    x, y = noise(6, 20, 24), noise(6, 20, 24, seed=1)
    views = [Clip(c.frames[::-2, 1:-1, ::-1], FPS) for c in (x, y)]
    copies = [clip(v.frames.copy()) for v in views]
    names = ["cosine", "psnr", "ssim", "ssim_gaussian"]
    assert score(names, *views) == score(names, *copies)
