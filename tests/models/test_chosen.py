"""Models with weights of the user's choice: random ones, and a folder of them, on Wan2.2's own classes at tiny size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mxbench import METHODS
from mxbench.errors import UserError
from mxbench.models import facts, load
from mxbench.models.base import Sampling
from mxbench.policy import as_schedule

SMALL = {
    "wan2.2": Sampling(32, 48, 5, 8, steps=2, guidance=(4.0, 3.0), max_sequence_length=16),
    "hunyuanvideo": Sampling(32, 48, 5, 8, steps=2, guidance=(6.0,), max_sequence_length=16),
    "hunyuanvideo-1.5": Sampling(64, 96, 5, 8, steps=2, guidance=(6.0,), max_sequence_length=16),
}
# Edge of a tiny clip, and its calls: steps, branches, layers.
TINY = {"wan2.2": (64, 4 * 2 * 3), "hunyuanvideo": (64, 3 * 1 * 4), "hunyuanvideo-1.5": (128, 3 * 2 * 3)}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: load(name, "cpu", "random:tiny") for name in SMALL}


@pytest.mark.parametrize(
    ("name", "size", "tokens", "billions"),
    [
        ("wan2.2", (40, 2, 720, 1280, 81, 40), 75_600, 2 * 14.3),
        ("hunyuanvideo", (60, 1, 720, 1280, 129, 50), 118_800, 12.8),
        ("hunyuanvideo-1.5", (54, 1, 720, 1280, 121, 50), 111_600, 8.3),
    ],
)
def test_the_papers_setting_is_known_without_weights(
    name: str, size: tuple[int, ...], tokens: int, billions: float
) -> None:
    known = facts(name, "random")
    assert known.weights == "random weights, seed 0"
    s = known.sampling
    assert (known.n_layers, known.n_experts, s.height, s.width, s.frames, s.steps) == size
    assert ((s.frames - 1) // 4 + 1) * (s.height // 16) * (s.width // 16) == tokens
    assert known.need is not None
    need = known.need(s)
    assert known.n_experts * need.largest == pytest.approx(2e9 * billions, rel=0.01)  # in BF16
    assert known.dtypes == {"cpu": "float32", "cuda": "bfloat16"}


@pytest.mark.parametrize(
    ("name", "tokens", "attention", "linear", "forwards"),
    [
        ("wan2.2", 75_600, 4.7, 2.2, 80),
        ("hunyuanvideo", 119_056, 10.5, 3.1, 50),
        ("hunyuanvideo-1.5", 113_585, 5.7, 1.9, 100),
    ],
)
def test_what_a_clip_takes(name: str, tokens: int, attention: float, linear: float, forwards: int) -> None:
    """Against figures that were worked out by hand, in PFLOP a forward."""
    known = facts(name, "random")
    assert known.work is not None
    work = known.work(known.sampling)
    assert (work.tokens, work.forwards) == (tokens, forwards)
    assert round(work.attention / 1e15, 1) == attention
    assert round(work.linear / 1e15, 1) == linear
    assert work.flops == work.forwards * (work.attention + work.linear)


@pytest.mark.parametrize("name", SMALL)
def test_random_weights_render_by_every_layer_and_again_the_same(models: dict[str, Any], name: str) -> None:
    model, sampling, steps = models[name], facts(name, "random:tiny").sampling, []
    model.self_test()
    render = model.render("x", 0, sampling, as_schedule("mxattn"), "reference", lambda *done: steps.append(done))
    edge, calls = TINY[name]
    assert render.frames.shape == (9, edge, edge, 3)
    assert render.calls == calls
    assert steps == [(i + 1, sampling.steps) for i in range(sampling.steps)]
    again = load(name, "cpu", "random:tiny").render("x", 0, sampling, as_schedule("mxattn"), "reference")
    assert np.array_equal(render.latents, again.latents)
    other = model.render("another prompt", 0, sampling, as_schedule("mxattn"), "reference")
    assert not np.array_equal(render.latents, other.latents)


def test_a_folder_renders_as_the_weights_that_were_saved_there(models: dict[str, Any], tmp_path: Path) -> None:
    models["wan2.2"].pipe.save_pretrained(tmp_path / "wan")
    known = facts("wan2.2", str(tmp_path / "wan"))
    assert known.weights.startswith("a folder, ")
    assert (known.n_layers, known.n_experts) == (3, 2)
    assert known.identity["weights"] not in str(tmp_path)
    assert known.sampling.steps == 40
    saved = load("wan2.2", "cpu", str(tmp_path / "wan")).render(
        "x", 1, SMALL["wan2.2"], as_schedule("vc4"), "reference"
    )
    direct = models["wan2.2"].render("x", 1, SMALL["wan2.2"], as_schedule("vc4"), "reference")
    assert np.array_equal(saved.frames, direct.frames)
    assert np.array_equal(saved.latents, direct.latents)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SMALL)
def test_every_method_renders_every_model(models: dict[str, Any], name: str, method: str) -> None:
    render = models[name].render("x", 0, SMALL[name], as_schedule(method), "auto")
    assert np.isfinite(render.latents).all()
    assert render.nonfinite_calls == 0


def test_what_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not built on a CPU; run it on a GPU, or use --weights random:tiny"):
        load("wan2.2", "cpu", "random")
    with pytest.raises(UserError, match=r"model_index\.json"):
        facts("wan2.2", str(tmp_path))
    with pytest.raises(UserError, match="nano brings its own weights along"):
        facts("nano", "random")


def test_parameters_kept_in_fp32_stay_so() -> None:
    from mxbench.models.chosen import Make
    from mxbench.models.wan22 import Wan22

    pipe = Wan22.random(Wan22.ARCHITECTURES["tiny"], Make("cpu", torch.bfloat16, "cpu"))
    kinds = {name: p.dtype for name, p in pipe.transformer.named_parameters()}
    assert kinds["blocks.0.attn1.to_q.weight"] == torch.bfloat16
    assert kinds["blocks.0.scale_shift_table"] == torch.float32
    assert {p.dtype for p in pipe.vae.parameters()} == {torch.float32}
