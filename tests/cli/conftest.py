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
