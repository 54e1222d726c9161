"""MiniMax-H3 on two processes: text, sound and video in one packed sequence that is cut in two."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from mxbench.models import facts, load
from mxbench.models.parallel import ParallelModel
from mxbench.policy import as_schedule

TINY = partial(load, "minimax-h3", weights="random:tiny")


@pytest.mark.slow  # gloo gathers pieces of one size alone: the prompt makes an even number of tokens
def test_two_ranks_render_what_one_does():
    sampling = facts("minimax-h3", "random:tiny", None).sampling
    arguments = ("a blue circle moves left again", 3, sampling, as_schedule("mxattn"), "reference")
    expected = TINY("cpu").render(*arguments)
    pair = ParallelModel(TINY, ("cpu", "cpu"), uneven=True)
    try:
        got = pair.render(*arguments)
    finally:
        pair.close()
    assert got.calls == expected.calls
    assert np.abs(got.latents - expected.latents).max() < 1e-4 * np.abs(expected.latents).max()
