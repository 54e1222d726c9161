"""Renders that several processes share. They are CPU processes here: gloo in place of NCCL, and all else the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from mxbench.attention.methods import METHODS
from mxbench.errors import UserError
from mxbench.models import facts, load
from mxbench.models.base import Render
from mxbench.models.parallel import ParallelModel, check
from mxbench.policy import as_schedule
from mxbench.runs.environment import environment

PROMPT = "a blue circle moves left"
TINY = partial(load, "wan2.2", weights="random:tiny")


def rendered(model, method: str = "mxattn") -> Render:
    sampling = facts("wan2.2", "random:tiny", None).sampling
    return model.render(PROMPT, 3, sampling, as_schedule(method), "reference")


@pytest.fixture(scope="module")
def pair():
    model = ParallelModel(TINY, ("cpu", "cpu"))
    yield model
    model.close()


@pytest.fixture(scope="module")
def alone():
    return TINY("cpu")


def test_the_seam_changes_nothing_on_two_ranks(pair):
    pair.self_test()


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_render_what_one_does(pair, alone, method):
    """Statistics are per head, so that a method sees what it always does; other products may be rounded otherwise."""
    got, expected = rendered(pair, method), rendered(alone, method)
    assert got.calls == expected.calls
    assert got.nonfinite_calls == expected.nonfinite_calls == 0
    scale = np.abs(expected.latents).max()
    assert np.abs(got.latents - expected.latents).max() < 1e-4 * scale


def test_cross_attention_sees_pieces_and_is_refused(pair):
    schedule = as_schedule("mxattn")
    crossed = replace(schedule, rules=(replace(schedule.rules[0], kind="cross"),))
    sampling = facts("wan2.2", "random:tiny", None).sampling
    with pytest.raises(UserError, match="cross-attention sees pieces of the queries"):
        pair.render(PROMPT, 3, sampling, crossed, "reference")
    assert rendered(pair).calls  # it goes on


@pytest.mark.parametrize(
    ("model", "device", "memory", "gpus", "says"),
    [
        ("wan2.2", "cuda:0", None, 0, "--gpus 0 renders nothing"),
        ("hunyuanvideo", "cuda:0", None, 2, "no plan that spreads hunyuanvideo"),
        ("wan2.2", "cpu", None, 2, "this one is on cpu"),
        ("wan2.2", "cuda:1", None, 2, "takes cuda:0 to cuda:1, and torch sees 8"),
        ("wan2.2", "cuda:0", None, 9, "takes cuda:0 to cuda:8, and torch sees 8"),
        ("wan2.2", "cuda:0", "model", 2, "--memory model keeps parts on the CPU"),
        ("wan2.2", "cuda:0", "whole", 3, "2 attention heads, which 3 GPUs cannot share; give 1 or 2"),
        ("nano", "cuda:0", None, 8, "2 attention heads, which 8 GPUs cannot share; give 1 or 2"),
    ],
)
def test_what_cannot_be_spread(model, device, memory, gpus, says, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    known = facts(model, None if model == "nano" else "random:tiny", None)
    with pytest.raises(UserError) as caught:
        check(model, known, known.sampling, device, memory, gpus)
    assert says in str(caught.value)
    check(model, known, known.sampling, device, memory, 1)


def test_tokens_must_be_shared_evenly(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    known = facts("wan2.2", "random", None)
    for gpus in (2, 4, 8):
        check("wan2.2", known, known.sampling, "cuda:0", "whole", gpus)
    odd = replace(known.sampling, frames=1, height=48, width=80)  # 15 tokens
    with pytest.raises(UserError, match="15 tokens, which 2 GPUs cannot share"):
        check("wan2.2", known, odd, "cuda:0", "whole", 2)


def test_the_number_of_gpus_is_part_of_the_environment():
    assert environment("cpu", "float32", gpus=1) == environment("cpu", "float32")
    assert environment("cpu", "float32", gpus=2)["context_parallel"] == "ulysses, 2 GPUs"
