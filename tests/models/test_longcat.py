"""LongCat-Video behind a stand-in of its package, and without any package."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mxbench import attach
from mxbench.attention.methods import METHODS
from mxbench.errors import UserError
from mxbench.models import facts, load
from mxbench.models.longcatvideo import LongCatVideo
from mxbench.models.pipeline_folder import components_of
from mxbench.policy import as_schedule
from mxbench.policy.schedule import Rule, Schedule
from mxbench.policy.selector import Selector

STAND_IN = Path(__file__).parents[1] / "support" / "longcat_stand_in"
PROMPT = "a blue circle moves left"


def _forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] in ("longcat_video", "xformers")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def package():
    _forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(STAND_IN)
        yield
    _forget()


@pytest.fixture(scope="module")
def model(package):
    return load("longcat-video", "cpu", "random:tiny")


@pytest.fixture(scope="module")
def sampling(package):
    return facts("longcat-video", "random:tiny", None).sampling


def test_without_its_package_one_line_says_what_to_install():
    _forget()
    for use in (lambda: facts("longcat-video"), lambda: load("longcat-video", "cpu", "random:tiny")):
        with pytest.raises(UserError, match="its own package is not installed; git clone"):
            use()


def test_a_package_that_lacks_what_it_imports_names_that(monkeypatch, tmp_path):
    _forget()
    home = tmp_path / "longcat_video"
    home.mkdir()
    (home / "__init__.py").write_text("")
    (home / "pipeline_longcat_video.py").write_text("import some_kernel_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"cannot be imported without some_kernel_nobody_has; pip install some_kernel"):
        facts("longcat-video")
    _forget()


def test_the_paper_s_setting_has_its_tokens(package):
    known = facts("longcat-video", "random", None)
    assert known.work is not None
    assert known.work(known.sampling).tokens == 37_440
    assert (known.n_layers, known.n_experts) == (48, 1)


@pytest.mark.parametrize("memory", ["model", "group"])
def test_its_parts_are_not_offloaded(package, memory):
    with pytest.raises(UserError, match=f"--memory {memory}: LongCat-Video's own pipeline keeps all its parts on one"):
        LongCatVideo.load("cuda:0", "random:tiny", None, memory)


def test_the_seam_changes_nothing(model):
    model.self_test()


@pytest.mark.parametrize("method", METHODS)
def test_it_renders_by_every_method_with_every_call_counted(model, sampling, method):
    render = model.render(PROMPT, 3, sampling, as_schedule(method), "reference")
    assert render.frames.shape == (sampling.frames, sampling.height, sampling.width, 3)
    assert render.calls == 3 * sampling.steps
    assert render.nonfinite_calls == 0
    again = model.render(PROMPT, 3, sampling, as_schedule("fp16"), "reference")
    assert np.array_equal(render.latents, again.latents) is (method == "fp16")


def test_every_layer_of_every_step_comes_through_the_seam_once(model, sampling):
    with attach(model.pipe, "fp16") as seam:
        model.call(PROMPT, sampling, torch.Generator().manual_seed(0))
    wanted = [(0, i, "self", j, 0) for i in range(3) for j in range(sampling.steps)]  # a batch of both branches
    assert seam.calls == dict.fromkeys(wanted, 1)


def test_layers_that_a_policy_leaves_out_are_computed_by_the_package(model, sampling):
    calls = []

    def counted(q, k, v):
        calls.append(q.shape)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    first = Schedule("first", (Rule(as_schedule(counted).main, layers=Selector([0])),))
    render = model.render(PROMPT, 3, sampling, first, "reference")
    assert render.calls == len(calls) == sampling.steps
    assert set(calls) == {(2, 2, 3 * 2 * 3, 32)}  # both branches of guidance in one batch
    plain = model.pipe.dit.blocks[0].attn
    assert "_process_attn" not in plain.__dict__


def test_block_sparse_attention_is_refused(model, sampling):
    model.pipe.dit.blocks[1].attn.enable_bsa = True
    try:
        with pytest.raises(UserError, match="block-sparse attention is on"), attach(model.pipe, "mxattn"):
            pass
    finally:
        model.pipe.dit.disable_bsa()
    assert all("_process_attn" not in block.attn.__dict__ for block in model.pipe.dit.blocks)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"num_cond_latents": 1}, "continues a video"), ({"kv_cache_dict": {0: None}}, "continues a video")],
)
def test_what_is_no_text_to_video_is_refused(model, arguments, said):
    inputs = model.family.inputs(model.pipe.dit)
    with pytest.raises(UserError, match=said), attach(model.pipe, "mxattn"):
        model.pipe.dit(**inputs, **arguments)


def test_weights_come_from_a_folder_without_an_index(model, sampling, tmp_path):
    pipe, folder = model.pipe, tmp_path / "longcat"
    for name in ("dit", "vae", "text_encoder", "tokenizer", "scheduler"):
        getattr(pipe, name).save_pretrained(folder / name)
    assert not (folder / "model_index.json").exists()
    assert {name for name, _, _ in components_of(folder, None)} >= {"dit", "vae", "text_encoder"}
    known = facts("longcat-video", str(folder), None)
    assert known.weights.startswith("a folder")
    got = load("longcat-video", "cpu", str(folder)).render(PROMPT, 3, sampling, as_schedule("mxattn"), "reference")
    expected = model.render(PROMPT, 3, sampling, as_schedule("mxattn"), "reference")
    assert np.array_equal(got.latents, expected.latents)
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks vae/diffusion_pytorch_model\.safetensors"):
        facts("longcat-video", str(other), None)


def test_its_package_s_code_is_part_of_what_a_render_is(package, tmp_path, monkeypatch):
    before = facts("longcat-video", "random:tiny")
    shutil.copytree(STAND_IN, tmp_path / "other")
    (tmp_path / "other/longcat_video/more.py").write_text("A = 1\n")
    monkeypatch.setattr(sys.modules["longcat_video"], "__path__", [str(tmp_path / "other/longcat_video")])
    after = facts("longcat-video", "random:tiny")
    assert before.identity != after.identity
    assert before.weights != after.weights
    assert "longcat_video" in before.weights
