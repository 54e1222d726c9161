"""VMAF through the bundled ffmpeg: order and bounds, sizes, and every reason to have no number."""

import json
import re
import subprocess
from fractions import Fraction

import cv2
import imageio_ffmpeg
import numpy as np
import pytest

from mxbench.metrics import score, vmaf
from mxbench.video import Clip, write_lossless

FPS = Fraction(30000, 1001)


def moving(count, height, width):
    grain = np.random.default_rng(0).normal(size=(height + count, width + count, 3)).astype(np.float32)
    picture = np.clip(cv2.GaussianBlur(grain, (0, 0), 2) * 200 + 128, 0, 255).astype(np.uint8)
    return Clip(np.stack([picture[i : i + height, i : i + width] for i in range(count)]), FPS)


def noisy(clip, sigma):
    values = clip.frames + np.random.default_rng(1).normal(0, sigma, clip.frames.shape)
    return Clip(np.clip(np.rint(values), 0, 255).astype(np.uint8), clip.fps)


def one(clip, reference):
    return score(["vmaf"], clip, reference)["vmaf"]


def test_this_machine_can():
    assert vmaf.missing() is None


def test_identical_is_high_and_noise_lowers_it_step_by_step():
    x = moving(5, 128, 160)
    values = [one(noisy(x, sigma) if sigma else x, x).value for sigma in (0, 2, 5, 10, 20)]
    assert values[0] > 95
    assert values == sorted(values, reverse=True)
    assert values[0] - values[4] > 15


def test_details_say_how(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = moving(3, 64, 64)
    got = one(noisy(x, 5), x)
    assert len(got.per_frame) == 3
    assert got.value == pytest.approx(np.mean(got.per_frame))
    assert got.details["model"] == "vmaf_v0.6.1"
    for word in ("yuv420p", "bt709", "limited", "bicubic"):
        assert word in got.details["conversion"]
    assert re.search(r"\d", got.details["ffmpeg"])
    assert not list(tmp_path.iterdir())  # nothing is left lying about


def test_it_compares_the_two_clips_frame_by_frame():
    x = moving(4, 64, 64)
    y = Clip(x.frames.copy(), FPS)
    y.frames[2] = noisy(x, 40).frames[2]
    got = one(y, x).per_frame
    assert min(got) == got[2]
    assert got[2] < 70 < got[1]


@pytest.mark.parametrize(("height", "width"), [(64, 96), (63, 97)])
def test_as_ffmpeg_on_two_files(tmp_path, height, width):
    """One picture of two halves through a pipe gives what two files and two inputs give."""
    x = moving(4, height, width)
    y = noisy(x, 6)
    write_lossless(tmp_path / "y.mkv", y.frames, FPS)
    write_lossless(tmp_path / "x.mkv", x.frames, FPS)
    convert = "scale=out_color_matrix=bt709:out_range=tv:flags=bicubic+accurate_rnd+full_chroma_int,format=yuv420p"
    graph = f"[0:v]{convert}[a];[1:v]{convert}[b];[a][b]libvmaf=log_fmt=json:log_path=log.json"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", "y.mkv", "-i", "x.mkv", "-lavfi", graph]
    subprocess.run([*command, "-f", "null", "-"], cwd=tmp_path, check=True)
    frames = json.loads((tmp_path / "log.json").read_text())["frames"]
    assert one(y, x).per_frame == pytest.approx([f["metrics"]["vmaf"] for f in frames], abs=1e-4)


def test_the_order_matters():
    x = moving(3, 96, 96)
    blurred = Clip(np.stack([cv2.GaussianBlur(f, (0, 0), 1.5) for f in x.frames]), FPS)
    assert one(blurred, x).value < one(x, blurred).value - 5  # VMAF rewards sharpening, punishes blur


def test_numbers_do_not_depend_on_threads(monkeypatch):
    x = moving(4, 64, 80)
    several = one(noisy(x, 5), x)
    monkeypatch.setattr(vmaf, "workers", lambda: 1)
    assert one(noisy(x, 5), x) == several


@pytest.mark.parametrize(("height", "width"), [(127, 129), (33, 48), (48, 33), (17, 17), (17, 200)])
def test_odd_and_small_sizes(height, width):
    x = moving(2, height, width)
    assert one(x, x).value > 90


def test_one_frame():
    x = moving(1, 64, 64)
    assert one(x, x).value > 95


@pytest.mark.parametrize(("height", "width"), [(16, 16), (16, 200), (5, 5), (1, 64)])
def test_too_small_is_unscored(height, width):
    x = moving(2, height, width)
    got = one(x, x)
    assert got.value is None
    assert f"{width}×{height}" in got.unscored


def test_no_ffmpeg(monkeypatch):
    def absent():
        raise RuntimeError("no ffmpeg exe could be found")

    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", absent)
    x = moving(2, 32, 32)
    assert "no ffmpeg" in vmaf.missing()
    assert "no ffmpeg" in one(x, x).unscored


def executable(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_ffmpeg_without_libvmaf(monkeypatch, tmp_path):
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", executable(tmp_path / "plain-ffmpeg", "echo ' ... scale  V->V'"))
    x = moving(2, 32, 32)
    assert vmaf.missing() == "plain-ffmpeg was built without libvmaf"
    assert one(x, x).unscored == "plain-ffmpeg was built without libvmaf"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo out of luck >&2; exit 3", "ended with code 3: out of luck"),
        ("exec 0<&-; exit 0", "ended with code 0: no message"),
        ("kill -SEGV $$", "ended with code -11"),
        ("cat > /dev/null; echo '{\"frames\": []}' > vmaf.json", "scored 0 of 2 frames"),
        ('cat > /dev/null; echo \'{"frames": [{"metrics": {"vmaf": NaN}}, {"metrics": {"vmaf": 1}}]}\' > vmaf.json',
         "scored 2 of 2 frames, or not with finite numbers"),
    ],
)  # fmt: skip
def test_a_failing_ffmpeg_is_a_reason(monkeypatch, tmp_path, script, reason):
    path = executable(tmp_path / "ffmpeg", f'case "$2" in -filters) echo " .. libvmaf  VV->V"; exit;; esac\n{script}')
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", path)
    x = moving(2, 300, 400)
    got = one(x, x)
    assert got.value is None
    assert reason in got.unscored
