"""Models with weights of the user's choice: random ones, and a folder of them, on Wan2.2's own classes at tiny size."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mxbench import attach
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


@pytest.fixture(scope="module")
def saved(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "wan"
    models["wan2.2"].pipe.save_pretrained(folder)
    return folder


def changed(folder: Path, tmp_path: Path, name: str, **fields: Any) -> str:
    copy = tmp_path / "wan"
    shutil.copytree(folder, copy)
    file = copy / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return str(copy)


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("transformer/config.json", {"num_layers": 2}, "hold, beside what it asks for, blocks.2."),
        ("transformer_2/config.json", {"num_layers": 5}, "lack blocks.3."),
        ("transformer/config.json", {"ffn_dim": 128}, "have another shape of blocks.0.ffn"),
        ("transformer/config.json", {"patch_size": "x"}, "makes no WanTransformer3DModel"),
        ("vae/config.json", {"dim_mult": 7}, "cannot be loaded: TypeError"),
        ("text_encoder/config.json", {"d_ff": 5}, "cannot be loaded"),
    ],
)
def test_configs_that_do_not_fit_their_weights_are_one_line(
    saved: Path, tmp_path: Path, name: str, fields: dict[str, Any], said: str
) -> None:
    folder = changed(saved, tmp_path, name, **fields)
    with pytest.raises(UserError) as caught:
        load("wan2.2", "cpu", folder)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_scheduler_that_is_none_is_one_line(saved: Path, tmp_path: Path) -> None:
    folder = changed(saved, tmp_path, "scheduler/scheduler_config.json", _class_name="NoScheduler")
    with pytest.raises(UserError, match="makes no scheduler"):
        facts("wan2.2", folder).experts(4)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_config_that_is_none_is_one_line_before_anything_is_loaded(saved: Path, tmp_path: Path, text: str) -> None:
    folder = changed(saved, tmp_path, "transformer/config.json")
    Path(folder, "transformer/config.json").write_text(text)
    with pytest.raises(UserError, match=r"config.json is no "):
        facts("wan2.2", folder)


def test_what_a_folder_takes_is_what_is_loaded_of_it_whatever_its_dtype(saved: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    sampling, copy = SMALL["wan2.2"], tmp_path / "half"
    shutil.copytree(saved, copy)
    for file in copy.rglob("*.safetensors"):
        save_file({name: value.to(torch.bfloat16) for name, value in load_file(file).items()}, file)
    one, other, random = (facts("wan2.2", weights) for weights in (str(saved), str(copy), "random:tiny"))
    assert one.need(sampling) == other.need(sampling)
    assert one.work(sampling) == other.work(sampling) == random.work(sampling)


@pytest.mark.parametrize("name", ["wan2.2", "hunyuanvideo-1.5"])
def test_without_guidance_a_step_is_one_forward_and_the_estimate_knows_it(models: dict[str, Any], name: str) -> None:
    plain = replace(SMALL[name], guidance=tuple(1.0 for _ in SMALL[name].guidance))
    known = facts(name, "random:tiny")
    for sampling in (SMALL[name], plain):
        render = models[name].render("x", 0, sampling, as_schedule("fp16"), "sdpa")
        assert render.calls == known.work(sampling).forwards * known.n_layers


@pytest.mark.parametrize("weights", ["random:tiny", "saved"])
def test_which_expert_computes_a_step_is_known_before_it_does(
    models: dict[str, Any], saved: Path, weights: str
) -> None:
    """Against the calls that the seam counts."""
    known, model = facts("wan2.2", str(saved) if weights == "saved" else weights), models["wan2.2"]
    for steps in (2, 4, 7):
        with attach(model.pipe, "fp16") as seam:
            model.call("x", replace(SMALL["wan2.2"], steps=steps), torch.Generator().manual_seed(0))
        counted = {step: expert for expert, _, _, step, _ in seam.calls}
        wanted = [(counted[j], i, "self", j, b) for i in range(3) for j in range(steps) for b in (0, 1)]
        assert seam.calls == dict.fromkeys(wanted, 1)
        assert list(known.experts(steps)) == [counted[step] for step in range(steps)]
        assert set(counted.values()) == ({0} if steps == 2 else {0, 1})
