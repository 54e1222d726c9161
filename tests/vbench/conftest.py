"""Interpreters that stand in for one that holds vbench, and the real package on small weights."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mxbench.video import write_lossless, write_preview

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def stand_in(tmp_path):
    """Writes an interpreter that runs a program of a test in place of the worker: it is handed ``job`` and ``say``."""

    def write(program):
        script = tmp_path / "program.py"
        script.write_text(
            "import json, os, signal, sys\n"
            "job = json.load(open(sys.argv[-1]))\n"
            "def say(kind, **fields):\n"
            "    print(json.dumps({'kind': kind, **fields}), flush=True)\n"
            "def ready(): say('ready', versions={'vbench': '0.1.5'}, device='cpu', threads=1)\n"
            "def begin(task): say('begin', dimension=task[0], key=task[1])\n"
            "def score(task, value=0.5):\n"
            "    begin(task)\n"
            "    say('score', dimension=task[0], key=task[1], value=value, frames=5, seconds=0.1,\n"
            "        memory=1, device_memory=0)\n" + program
        )
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        python.chmod(0o755)
        return str(python)

    return write


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A cache of small random weights, made by the interpreter that holds the package."""
    if importlib.util.find_spec("vbench") is None:
        if os.environ.get("CI"):
            pytest.fail("vbench is not installed: run `mxbench vbench setup --no-weights`")
        pytest.skip("vbench is not installed: `mxbench vbench setup --no-weights`")
    folder = tmp_path_factory.mktemp("vbench")
    program = [sys.executable, str(SUPPORT / "vbench_weights.py"), str(folder)]
    subprocess.run(program, check=True, capture_output=True)
    return folder


@pytest.fixture
def clips(tmp_path):
    """Two good clips in a lossless file and a lossy one, one of a single frame, and one that is none."""
    folder = tmp_path / "clips"
    folder.mkdir()
    rng = np.random.default_rng(0)
    first = rng.integers(0, 256, size=(48, 64, 3), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
    frames = np.stack([np.roll(first, 3 * i, 1) for i in range(5)])
    write_lossless(folder / "lossless.mkv", frames, 8)
    write_preview(folder / 'it\'s "lossy" .. é.MP4', frames, 8)
    write_preview(folder / "one.mp4", frames[:1], 8)
    (folder / "broken.mp4").write_bytes(b"no video" * 100)
    return folder
