"""The command line, as the tests of every command run it."""

from __future__ import annotations

import sys

import pytest

from mxbench.cli import main as main_module


@pytest.fixture
def mxbench_cli(monkeypatch, capsys, tmp_path):
    """Run the command line in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        monkeypatch.setattr(sys, "argv", ["mxbench", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main_module.main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return invoke


@pytest.fixture
def fake_model(monkeypatch):
    from fakes import FakeModel

    from mxbench.runs import runner

    model = FakeModel()
    monkeypatch.setitem(runner.run.__kwdefaults__, "loader", lambda *_: model)
    return model


WORKER = """import json, sys
job = json.load(open(sys.argv[-1]))
def say(kind, **fields): print(json.dumps({"kind": kind, **fields}), flush=True)
say("ready", versions={"vbench": "0.1.5"}, device="cpu", threads=1)
for dimension, key, path in job["tasks"]:
    say("begin", dimension=dimension, key=key)
    open("ASKED", "a").write(f"{dimension} {key}\\n")
    if "bad" in key:
        say("failed", dimension=dimension, key=key, reason="it cannot be read as a video")
        continue
    value = 50.0 if dimension == "imaging_quality" else 0.5
    cost = {"seconds": 0.5, "memory": 9, "device_memory": 0}
    say("score", dimension=dimension, key=key, value=value, frames=5, **cost)
say("end")
"""


@pytest.fixture
def vbench(mxbench_cli, monkeypatch, tmp_path):
    """An interpreter that stands in and an empty cache; returns the cache."""
    (tmp_path / "worker.py").write_text(WORKER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path / "worker.py"}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("MXBENCH_VBENCH_PYTHON", str(python))
    monkeypatch.setenv("VBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "cache"
