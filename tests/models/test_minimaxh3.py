"""MiniMax-H3 as a model: its modular pipeline, its own numbers of frames, and weights part by part from a folder."""

import json
import math

import numpy as np
import pytest
import torch

from mxbench import attach
from mxbench.errors import UserError
from mxbench.models import facts, load
from mxbench.models.base import Frames
from mxbench.models.minimaxh3 import MiniMaxH3
from mxbench.policy import as_schedule
from mxbench.runs.plan import expand
from mxbench.runs.recipe import parse

TINY = MiniMaxH3.TINY


@pytest.fixture(scope="module")
def model():
    return load("minimax-h3", "cpu", "random:tiny")


def test_the_setting_comes_nearest_to_the_vc_paper_s_tokens():
    known = facts("minimax-h3", "random")
    s = known.sampling
    assert (known.n_layers, known.n_experts, s.steps, "guidance" in known.ignores) == (50, 1, 49, True)
    work = known.work(s)
    assert work.tokens == pytest.approx(73_500, rel=0.005)  # the paper's; it states no size
    video = (5 * ((s.frames - 5) // 17) + 2) * (768 // 32) * (1344 // 32)
    assert work.tokens == video + 2 * round(s.frames / 24 * 40) + 100
    others = [n for n in range(124, 346) if n in known.frames and n != s.frames]
    at = {n: known.work(type(s)(768, 1344, n, 24, 49, (1.0,))).tokens for n in others}
    assert min(abs(n - 73_500) for n in at.values()) > abs(work.tokens - 73_500)
    assert work.linear == pytest.approx(2.0 * 33.1e9 * work.tokens, rel=0.01)
    assert known.need(s).largest == pytest.approx(2 * 33.1e9, rel=0.01)


def test_it_renders_by_every_layer_and_the_render_is_not_fp16_s(model):
    model.self_test()
    renders = {
        name: model.render("a red circle moves left", 0, TINY, as_schedule(name), "reference")
        for name in ("fp16", "mxattn")
    }
    for render in renders.values():
        assert render.frames.shape == (124, 64, 64, 3)
        assert render.calls == TINY.steps * 3  # one forward a step, three layers
        frames, edge = 5 * ((124 - 5) // 17) + 2, 64 // 32
        assert render.latents.shape == (frames * edge * edge, 24 * 4)
        assert render.nonfinite_calls == 0
    assert not np.array_equal(renders["fp16"].latents, renders["mxattn"].latents)
    again = load("minimax-h3", "cpu", "random:tiny").render(
        "a red circle moves left", 0, TINY, as_schedule("mxattn"), "reference"
    )
    assert np.array_equal(again.frames, renders["mxattn"].frames)


def test_every_layer_of_every_step_comes_through_the_seam_once(model):
    with attach(model.pipe, "fp16") as seam:
        model.call("x", TINY, torch.Generator().manual_seed(0))
    assert seam.calls == dict.fromkeys([(0, i, "self", j, 0) for i in range(3) for j in range(TINY.steps)], 1)


def test_weights_come_from_a_folder_part_by_part_wherever_its_index_points(model, tmp_path):
    root, index = tmp_path / "h3", {"_class_name": "MiniMaxH3ModularPipeline"}
    for name in (*MiniMaxH3.COMPONENTS, "transformer_ref"):
        if name != "transformer_ref":  # of another workflow: named by the index, and not brought along
            getattr(model.pipe, name).save_pretrained(root / name)
        kind = type(getattr(model.pipe, name if name != "transformer_ref" else "transformer"))
        library = "diffusers" if kind.__module__.startswith("diffusers") else "transformers"
        where = {"pretrained_model_name_or_path": "/nowhere", "subfolder": name, "type_hint": [library, kind.__name__]}
        index[name] = [library, kind.__name__, where]
    (root / "modular_model_index.json").write_text(json.dumps(index))
    known = facts("minimax-h3", str(root))
    assert known.weights.startswith("a folder, ")
    assert (known.n_layers, known.frames, known.sampling) == (3, MiniMaxH3.FRAMES, MiniMaxH3.SAMPLING)
    saved = load("minimax-h3", "cpu", str(root))
    for name in ("transformer", "vae", "audio_vae", "text_encoder"):
        ours, theirs = (getattr(each.pipe, name).state_dict() for each in (saved, model))
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), name
    assert saved.pipe.scheduler.shift == 12.0
    assert saved.pipe.audio_scheduler.shift == 3.0
    saved.pipe.update_components(tokenizer=model.pipe.tokenizer)  # the stand-in's words are not in Qwen2's format
    one, two = (m.render("x", 1, TINY, as_schedule("vc8"), "reference") for m in (saved, model))
    assert np.array_equal(one.frames, two.frames)


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"frames": 125}, r"125 frames cannot be decoded; the VAE takes 17k \+ 5 from 124 to 345, such as 124"),
        ({"frames": 5}, "such as 124"),
        ({"frames": 362}, "such as 345"),
        ({"height": 720}, "height 720 is no multiple of 32; use 704"),
        ({"guidance": 4.0}, "takes no guidance; leave guidance out"),
        ({"max_sequence_length": 64}, "takes no max sequence length"),
        ({"negative_prompt": "blurry"}, "takes no negative prompt"),
    ],
)
def test_what_it_does_not_render_is_said_before_any_time_is_spent(sampling, said):
    fields = {"model": "minimax-h3", "weights": "random:tiny", "methods": ["mxattn"], "sampling": sampling}
    with pytest.raises(UserError, match=said):
        expand(parse(fields), "cpu")


def test_its_decoding_in_tiles_is_part_of_a_cell():
    fields = {"model": "minimax-h3", "weights": "random:tiny", "methods": ["mxattn"]}
    assert expand(parse(fields), "cpu").environment["vae_tiling"] == "on"
    assert expand(parse(fields | {"model": "wan2.2"}), "cpu").environment["vae_tiling"] == "off"


@pytest.mark.parametrize("rule", [Frames(), Frames(17, 5, 124, 345), Frames(8, 1, 9)])
def test_the_nearest_number_of_frames(rule):
    allowed = [rule.step * k + rule.first for k in range(200)]
    allowed = [n for n in allowed if n >= rule.least and n <= (rule.most or math.inf)]
    for frames in range(1, 400):
        assert (frames in rule) is (frames in allowed)
        assert rule.near(frames) == min(allowed, key=lambda n: (abs(n - frames), -n))
