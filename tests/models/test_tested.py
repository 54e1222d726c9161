"""A diffusers that the seam was not tested with is one line, before anything is loaded."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from mxbench import attach
from mxbench.errors import UserError
from mxbench.models import load, tested
from mxbench.models.nano.model import RandomNano


@pytest.mark.parametrize("installed", ["0.41.9", "0.43.0", "0.420.1", "1.42"])
def test_another_diffusers_is_refused(monkeypatch, installed):
    pipe = RandomNano().pipe
    monkeypatch.setattr(tested, "version", lambda _: installed)
    for what in (lambda: load("wan2.2", "cpu", "random:tiny"), lambda: attach(pipe, "mxattn").__enter__()):
        with pytest.raises(UserError, match=f"diffusers {installed} is outside the tested range") as told:
            what()
        assert 'pip install "diffusers==0.42.*"' in str(told.value.fix)


def test_no_diffusers_is_said(monkeypatch):
    def none(_):
        raise PackageNotFoundError

    monkeypatch.setattr(tested, "version", none)
    with pytest.raises(UserError, match="not installed"):
        tested.check_diffusers()


def test_the_range_is_that_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bounds,) = (r.specifier for each in project["dependencies"] if (r := Requirement(each)).name == "diffusers")
    for installed in ("0.41.9", "0.42.0", "0.42.1", "0.42.7", "0.43.0", "1.0.0"):
        if Version(installed) in bounds:
            assert tested.is_tested(installed)
    assert not [v for v in ("0.41.9", "0.43.0", "1.0.0") if tested.is_tested(v) or Version(v) in bounds]
