"""Renders on two GPUs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from mxbench.models import facts, load
from mxbench.models.parallel import ParallelModel
from mxbench.policy import as_schedule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two CUDA devices"),
]

CASES = [("wan2.2", name) for name in ("fp16", "mxattn", "nvfp4-sage", "vc8")] + [("minimax-h3", "mxattn")]


@pytest.mark.parametrize(("model", "method"), CASES)
def test_two_gpus_render_what_one_does(model: str, method: str) -> None:
    """Up to BF16: products of a piece of the sequence may be rounded otherwise than of the whole."""
    known = facts(model, "random:tiny", None)
    tiny = partial(load, model, weights="random:tiny")
    # Of MiniMax-H3 this prompt makes an odd number of tokens, which the GPUs share unevenly.
    arguments = ("a blue circle moves left", 3, known.sampling, as_schedule(method), "auto")
    expected = tiny("cuda:0").render(*arguments)
    pair = ParallelModel(tiny, ("cuda:0", "cuda:1"), uneven=known.uneven)
    try:
        pair.self_test()
        got = pair.render(*arguments)
    finally:
        pair.close()
    assert got.calls == expected.calls
    assert np.linalg.norm(got.latents - expected.latents) < 0.05 * np.linalg.norm(expected.latents)
