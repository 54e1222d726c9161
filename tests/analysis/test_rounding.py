"""How far roundings move a render: nothing without them, little by exact attention, more by a quantiser."""

import json

import pytest

from mxbench import METHODS
from mxbench.analysis import rounding
from mxbench.analysis.rounding import main, moved, table
from mxbench.errors import UserError
from mxbench.models.base import Sampling
from mxbench.models.nano.model import RandomNano
from mxbench.runs.plan import Plan

TINY = Sampling(height=32, width=32, frames=5, fps=8, steps=2, guidance=(4.0, 3.0), max_sequence_length=16)


@pytest.fixture(scope="module")
def noise():
    """The seam's test model: Wan's classes with random weights."""
    return RandomNano()


def specs(*names):
    return [(name, METHODS[name].spec) for name in names]


def test_without_roundings_two_renders_are_one_and_exact_attention_is_the_fp16_render(noise):
    found = moved(noise, specs("fp16", "mxattn", "vc8"), "x", sampling=TINY, size=0.0)
    assert [each.method for each in found] == ["fp16", "mxattn", "vc8"]
    assert {each.apart for each in found} == {100.0}
    assert found[0].from_fp16 == 100.0
    assert all(each.from_fp16 == each.again_from_fp16 < 60 for each in found[1:])


def test_a_quantiser_makes_more_of_a_rounding_than_exact_attention(noise):
    exact, quantised = moved(noise, specs("fp16", "mxattn"), "x", sampling=TINY, size=1e-5)
    assert 60 < exact.apart < 100
    assert quantised.apart < exact.apart - 10
    lines = table([exact, quantised, exact]).splitlines()
    assert [line.split("|")[1:3] for line in lines[2:]] == [[" fp16 ", " 2 "], [" mxattn ", " 1 "]]


def test_the_command_prints_every_prompt_for_programs(noise, monkeypatch, capsys):
    monkeypatch.setattr(Plan, "load", lambda _: noise)
    monkeypatch.setattr(rounding, "moved", lambda *some, sampling: moved(*some, sampling=TINY))
    main(["--limit", "1", "--steps", "1", "--method", "mxfp4", "--device", "cpu", "--json"])
    (found,) = json.loads(capsys.readouterr().out)
    assert found["method"] == "mxfp4"
    assert found["apart"] > 0
    with pytest.raises(UserError, match="mxatn"):
        main(["--method", "mxatn"])
