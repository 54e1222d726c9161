"""The table METRICS, scores as JSON, pairs, and what needs no decoding to say no."""

import json
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from vbench_files import fill

from mxbench.errors import UserError
from mxbench.metrics import METRICS, Metric, Score, align, check_pair, metric, score
from mxbench.video import Clip

VBENCH = {
    "subject_consistency": "Subject",
    "background_consistency": "Background",
    "imaging_quality": "Imaging",
    "aesthetic_quality": "Aesthetic",
    "motion_smoothness": "Motion",
    "dynamic_degree": "Dynamic",
}
OURS = ["cosine", "ssim", "ssim_gaussian", "psnr", "psnr_clip", "vmaf", "temporal_flickering"]


def noise(count=3, height=32, width=40, fps=16, seed=0):
    rng = np.random.default_rng(seed)
    return Clip(rng.integers(0, 256, size=(count, height, width, 3), dtype=np.uint8), Fraction(fps))


def test_the_table():
    assert list(METRICS) == [*OURS, *VBENCH]
    for name, entry in METRICS.items():
        assert isinstance(entry, Metric)
        assert entry.name == name
        assert entry.version >= 1
        assert entry.source.endswith(".")
        assert entry.digits in range(1, 7)
    assert len({entry.label for entry in METRICS.values()}) == len(METRICS)
    assert METRICS["temporal_flickering"].label == "Flicker (unfiltered)"


def test_unknown_names_offer_the_nearest():
    with pytest.raises(UserError, match=r"unknown metric 'psrn'; did you mean psnr.*mxbench list metrics"):
        metric("psrn")
    with pytest.raises(UserError, match="unknown metric"):
        score(["psnr", "fvd"], noise(), noise())


@pytest.mark.parametrize("name", VBENCH)
def test_vbench_is_known_and_honest(name, monkeypatch, tmp_path):
    """A worker scores it, and whole runs at a time: here it has a reason and no number, set up or not."""
    monkeypatch.setenv("VBENCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MXBENCH_VBENCH_PYTHON", sys.executable)
    assert metric(name).label == VBENCH[name]
    assert metric(name).worker
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert metric(name).missing() == "VBench is not installed: `mxbench vbench setup`"
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    assert metric(name).missing().startswith(f"VBench lacks {tmp_path}/")
    got = score([name], noise())[name]
    assert (got.value, got.unscored) == (None, metric(name).missing())
    fill(tmp_path, [name])
    assert metric(name).missing() is None
    assert "mxbench score --vbench" in score([name], noise())[name].unscored


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_gives_legal_json_that_comes_back(name):
    for clip, reference in ((noise(), noise(seed=1)), (noise(), noise()), (noise(1, 5, 5), noise(1, 5, 5))):
        got = score([name], clip, reference)[name]
        text = json.dumps(got.to_json(), allow_nan=False)
        assert Score.from_json(json.loads(text)) == got


@pytest.mark.parametrize("name", [n for n in OURS if METRICS[n].higher_is_better and METRICS[n].needs_reference])
def test_noise_makes_every_fidelity_worse(name):
    ramp = np.linspace(0, 255, 64)[:, None, None] + np.zeros((4, 64, 64, 3))
    clean = Clip(np.rint(ramp).astype(np.uint8), Fraction(16))
    grain = np.random.default_rng(0).normal(size=ramp.shape)
    values = [
        score([name], Clip(np.clip(ramp + s * grain, 0, 255).astype(np.uint8), Fraction(16)), clean)[name].value
        for s in (1, 4, 16, 64)
    ]
    assert values == sorted(values, reverse=True)


def test_scores_come_in_the_order_asked_for_and_without_a_reference_unscored():
    got = score(["temporal_flickering", "psnr"], noise())
    assert list(got) == ["temporal_flickering", "psnr"]
    assert got["temporal_flickering"].value is not None
    assert got["psnr"].unscored == "there is no reference clip"


def test_one_frame_clips_score():
    got = score(OURS, noise(1), noise(1, seed=1))
    assert [name for name, one in got.items() if one.value is None] == ["temporal_flickering"]
    assert all(len(one.per_frame) == 1 for one in got.values() if one.value is not None)


def test_inf_per_frame_is_a_string_in_json():
    one = Score(100.0, (math.inf, 30.5), details={"identical_frames": 1})
    data = one.to_json()
    assert data["per_frame"] == ["inf", 30.5]
    assert Score.from_json(json.loads(json.dumps(data, allow_nan=False))) == one


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": None},
        {"value": 1.0, "unscored": "why"},
        {"value": math.nan},
        {"value": math.inf},
        {"value": 1.0, "per_frame": (1.0, math.nan)},
    ],
)
def test_a_score_is_a_number_or_a_reason(wrong):
    with pytest.raises(ValueError, match=r"score|NaN"):
        Score(**wrong)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (noise(2), r"the clip has 3 frames and the reference has 2 frames; .*--align to compare the first 2"),
        (noise(height=33), r"the clip is 40×32 and the reference is 40×33; .*never resizes"),
        (noise(fps=Fraction(24000, 1001)), r"16 frames a second and the reference at 24000/1001"),
    ],
)
def test_pairs_that_do_not_match(other, message):
    with pytest.raises(UserError, match=message):
        check_pair(noise(), other)
    with pytest.raises(UserError, match=message):
        score(["psnr"], noise(), other)
    assert score(["temporal_flickering"], noise(), other)  # which asks for no reference


def test_the_message_can_name_the_files():
    with pytest.raises(UserError, match=r"a\.mp4 has 3 frames and b\.mp4 has 1 frame;"):
        check_pair(noise(), noise(1), names=("a.mp4", "b.mp4"))


def test_align_cuts_the_longer_and_says_so():
    long, short = noise(5), noise(3, seed=1)
    clip, reference, note = align(long, short)
    assert note == "the clip cut from 5 to 3 frames"
    np.testing.assert_array_equal(clip.frames, long.frames[:3])
    assert reference.frames is not None and len(reference.frames) == 3
    assert align(short, long)[2] == "the reference cut from 5 to 3 frames"
    assert align(short, short)[2] is None
    check_pair(clip, reference)
    for wrong in (noise(5, height=33), noise(5, fps=8)):
        with pytest.raises(UserError):
            align(short, wrong)


def test_importing_the_table_is_cheap():
    heavy = {"av", "cv2", "scipy", "skimage", "imageio_ffmpeg", "torch", "pandas", "matplotlib"}
    code = "import sys, mxbench.metrics; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not heavy & set(loaded)
