"""Processes of a shared render that end early: one line, and nothing waits for them."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from mxbench.errors import UserError
from mxbench.models import facts, load, parallel
from mxbench.models.parallel import ParallelModel
from mxbench.policy import as_schedule

PROMPT = "a blue circle moves left"
TINY = partial(load, "wan2.2", weights="random:tiny")


def fails_on_rank_one(q, k, v):
    if torch.distributed.get_rank() == 1:
        raise UserError("this rank has had enough", "give it a rest")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("end", ["kill", "raise"])
def test_a_rank_that_ends_is_one_line_and_the_model_renders_no_more(end, monkeypatch):
    monkeypatch.setattr(parallel, "_PATIENCE", 2.0)
    model = ParallelModel(TINY, ("cpu", "cpu"))
    sampling = facts("wan2.2", "random:tiny", None).sampling
    _, process = model._ranks[0]
    try:
        if end == "kill":

            def on_step(_done, _total):
                process.kill()

            with pytest.raises(UserError, match="the process of GPU 1 ended with -9; run again"):
                model.render(PROMPT, 3, sampling, as_schedule("fp16"), "sdpa", on_step)
        else:
            with pytest.raises(UserError, match="GPU 1: this rank has had enough; run again"):
                model.render(PROMPT, 3, sampling, as_schedule(fails_on_rank_one), "reference")
        with pytest.raises(UserError, match="the other GPUs of this render are gone"):
            model.render(PROMPT, 3, sampling, as_schedule("fp16"), "sdpa")
    finally:
        model.close()
    assert not process.is_alive()
    model.close()


def no_weights(device: str) -> None:
    if torch.multiprocessing.parent_process() is not None:
        raise UserError("this rank has no weights", "fetch them")
    return TINY(device)


def test_a_rank_that_cannot_load_ends_all(monkeypatch):
    with pytest.raises(UserError, match="GPU 1: this rank has no weights"):
        ParallelModel(no_weights, ("cpu", "cpu"))
    assert not torch.distributed.is_initialized()


def test_a_rank_that_died_between_two_renders_is_one_line():
    model = ParallelModel(TINY, ("cpu", "cpu"))
    sampling = facts("wan2.2", "random:tiny", None).sampling
    try:
        _, process = model._ranks[0]
        process.kill()
        process.join()
        for _ in range(2):
            with pytest.raises(UserError, match="run again; what is done is kept"):
                model.render(PROMPT, 3, sampling, as_schedule("fp16"), "sdpa")
    finally:
        model.close()
