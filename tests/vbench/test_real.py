"""The real package, offline, on small random weights: every dimension, runs and files; the same as a call of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mxbench.runs.compare import column_of
from mxbench.vbench.aggregate import package_total
from mxbench.vbench.dimensions import DIMENSIONS
from mxbench.vbench.worker import Task, score

FAST = [name for name in DIMENSIONS if name != "imaging_quality"]
INSIDE = Path(__file__).parents[2] / "mxbench/vbench/inside"
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def at_home(weights, monkeypatch, tmp_path):
    monkeypatch.setenv("VBENCH_CACHE_DIR", str(weights))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MXBENCH_VBENCH_PYTHON", raising=False)


def answers(weights, clips, dimensions, workers=1):
    videos = sorted(clips.iterdir())
    tasks = [Task(name, video.name, video) for name in dimensions for video in videos]
    return score(tasks, python=sys.executable, folder=weights, workers=workers).answers


DIRECT = """
import json, sys
sys.path.insert(0, {inside!r})
import shims, os
shims.fit()
import torch
load = torch.load
torch.load = lambda *a, **k: load(*a, **({{"map_location": "cpu", "weights_only": False}} | k))
from vbench import VBench
package = VBench("cpu", "", {out!r})
for name in {names!r}:
    package.evaluate(videos_path={videos!r}, name=name, dimension_list=[name], local=True, mode="custom_input")
"""


def direct(weights, folder, out, names, python=sys.executable, fitted=True):
    """The package called over a folder, as its documentation says; its files of results.

    Not ``fitted`` is without any shim of ours but the one that openai-clip needs where setuptools is new.
    """
    home = out / "torch"
    (home / "hub/checkpoints").mkdir(parents=True)
    shutil.copy(weights / "dino_model/dino_vitbase16_pretrain.pth", home / "hub/checkpoints")
    code = DIRECT.format(inside=str(INSIDE), out=str(out), names=names, videos=str(folder))
    if not fitted:
        code = code.replace("shims.fit()", "shims._pkg_resources()")
    env = os.environ | {"VBENCH_CACHE_DIR": str(weights), "TORCH_HOME": str(home)}  # threads too: they round otherwise
    subprocess.run([python, "-c", code], check=True, capture_output=True, env=env)
    return {name: json.loads((out / f"{name}_eval_results.json").read_text())[name] for name in names}


def test_every_dimension_scores_good_clips_and_names_the_others(weights, clips):
    found = {(one.task.dimension, one.task.key): one for one in answers(weights, clips, FAST)}
    for name in FAST:
        assert found[name, "lossless.mkv"].value is not None
        assert found[name, 'it\'s "lossy" .. é.MP4'].value is not None
        assert found[name, "broken.mp4"].reason == "it cannot be read as a video"
        alone = found[name, "one.mp4"]
        assert (alone.value is None) == (DIMENSIONS[name].frames > 1)
        assert alone.value is not None or "1 frame" in alone.reason


@pytest.mark.slow
def test_imaging_on_two_frames(weights, tmp_path):
    import numpy as np

    from mxbench.video import write_lossless

    write_lossless(tmp_path / "two.mkv", np.random.default_rng(1).integers(0, 256, (2, 48, 64, 3), np.uint8), 8)
    (one,) = score(
        [Task("imaging_quality", "two", tmp_path / "two.mkv")], python=sys.executable, folder=weights
    ).answers
    assert one.value == one.raw / 100


def test_scores_are_a_direct_call_s_to_the_bit_and_so_is_its_total(weights, clips, tmp_path):
    folder = tmp_path / "staged"
    folder.mkdir()
    shutil.copy(clips / 'it\'s "lossy" .. é.MP4', folder / "0.mp4")
    shutil.copy(clips / "lossless.mkv", folder / "1.mp4")
    names = ["subject_consistency", "background_consistency", "aesthetic_quality", "motion_smoothness"]
    theirs = direct(weights, folder, tmp_path / "out", names)
    ours = answers(weights, folder, names)
    for name in names:
        total, each = theirs[name]
        wanted = {Path(one["video_path"]).name: one["video_results"] for one in each}
        mine = [one for one in ours if one.task.dimension == name]
        assert {one.task.key: one.value for one in mine} == wanted

        class Score:
            def __init__(self, one):
                self.value, self.details = one.value, {"frames": one.frames}

        assert package_total(name, [Score(one) for one in mine]) == pytest.approx(total, rel=1e-12)


@pytest.mark.slow
def test_scores_are_a_direct_call_s_with_the_real_torchvision_too(clips, tmp_path):
    """The stand-in is on no side: the interpreter has a torchvision of its own, and the direct call no shim for it."""
    python = os.environ.get("MXBENCH_TEST_VBENCH")
    if not python:
        pytest.skip("MXBENCH_TEST_VBENCH names no interpreter that `mxbench vbench setup --venv` made")
    weights, folder = tmp_path / "weights", tmp_path / "staged"
    made = subprocess.run([python, str(SUPPORT / "vbench_weights.py"), str(weights)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    folder.mkdir()
    shutil.copy(clips / 'it\'s "lossy" .. é.MP4', folder / "0.mp4")
    shutil.copy(clips / "lossless.mkv", folder / "1.mp4")
    names = ["subject_consistency", "background_consistency", "aesthetic_quality"]
    theirs = direct(weights, folder, tmp_path / "out", names, python, fitted=False)
    tasks = [Task(name, video.name, video) for name in names for video in sorted(folder.iterdir())]
    found = score(tasks, python=python, folder=weights)
    assert found.environment.versions["torchvision"] not in ("stand-in", "None")
    wanted = {(n, Path(one["video_path"]).name): one["video_results"] for n in names for one in theirs[n][1]}
    assert {(one.task.dimension, one.task.key): one.value for one in found.answers} == wanted
    assert len(wanted) == 6


def test_three_workers_score_as_one_does(weights, clips):
    one, three = (answers(weights, clips, ["subject_consistency", "aesthetic_quality"], n) for n in (1, 3))
    assert [(a.task, a.value, a.reason) for a in one] == [(a.task, a.value, a.reason) for a in three]


def test_a_score_that_is_no_number_is_none(weights, clips, tmp_path):
    import torch

    cache = tmp_path / "cache"
    shutil.copytree(weights, cache)
    path = cache / "aesthetic_model/emb_reader/sa_0_4_vit_l_14_linear.pth"
    torch.save({name: value * float("nan") for name, value in torch.load(path).items()}, path)
    said = {one.task.key: one.reason for one in answers(cache, clips, ["aesthetic_quality"])}
    assert said["lossless.mkv"] == "the package returned nan"


def test_a_damaged_file_is_said_to_be(weights, clips, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(weights, cache)
    path = cache / "raft_model/models/raft-things.pth"
    path.write_bytes(path.read_bytes()[:-1000])
    said = {one.task.key: one.reason for one in answers(cache, clips, ["dynamic_degree"])}
    assert said["lossless.mkv"].startswith("its model cannot be loaded (")
    assert said["broken.mp4"] == "it cannot be read as a video"


def test_the_command_scores_clips_as_a_user_would(weights, clips, tmp_path):
    program = [
        sys.executable,
        "-c",
        "from mxbench.cli.main import main; main()",
        "score",
        str(clips),
        "--vbench",
        "--json",
    ]
    program += [word for name in FAST for word in ("-D", name)]
    env = os.environ | {"VBENCH_CACHE_DIR": str(weights), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=env)
    found = json.loads(done.stdout)
    assert done.returncode == 1  # for the clip that is broken
    assert all(found["scores"]["lossless.mkv"][column_of(name)]["value"] is not None for name in FAST)
    assert found["vbench"]["versions"]["vbench"] == "0.1.5"


def test_the_packages_reach_no_network(weights, clips, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(weights, cache)
    (cache / "aesthetic_model/emb_reader/sa_0_4_vit_l_14_linear.pth").unlink()
    found = answers(cache, clips, ["aesthetic_quality"])
    said = {one.task.key: one.reason for one in found}
    assert "would download" in said["lossless.mkv"]
