"""The seam on the real classes of every family that has joint attention: masks, text tokens, counts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from mxbench import METHODS, attach
from mxbench.attention.site import Site
from mxbench.attention.spec import VSmooth
from mxbench.attention.value import GroupingState, arrange
from mxbench.errors import UserError
from mxbench.models import facts, load
from mxbench.models.attach import family_of
from mxbench.models.base import Layout
from mxbench.models.pipeline_folder import pipeline_of
from mxbench.models.render import PipelineModel
from mxbench.policy import Rule, Schedule, Use

CALLS = {"hunyuan": tiny.call_hunyuan, "hunyuan15": tiny.call_hunyuan15}
FAMILIES = [*CALLS, "minimax"]


@pytest.fixture(scope="module")
def pipes() -> dict[str, Any]:
    found = {name: getattr(tiny, name)() for name in FAMILIES}
    for name in CALLS:
        found[name].set_progress_bar_config(disable=True)
    return found


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_seam_alone_changes_nothing(pipes: dict[str, Any], name: str) -> None:
    PipelineModel(pipes[name]).self_test()


@pytest.mark.parametrize("name", CALLS)
def test_a_render_through_the_seam_is_the_stock_one_and_every_call_is_counted(pipes: dict[str, Any], name: str) -> None:
    pipe, call = pipes[name], CALLS[name]
    stock = call(pipe)
    with attach(pipe, plain) as seam:
        seamed = call(pipe)
    assert float((stock - seamed).norm() / stock.norm()) < 1e-4
    layers, branches = {"hunyuan": (5, 1), "hunyuan15": (3, 2)}[name]
    wanted = [(0, layer, "self", step, b) for layer in range(layers) for step in range(2) for b in range(branches)]
    assert seam.calls == dict.fromkeys(wanted, 1)
    with attach(pipe, "fp16"):
        assert float((stock - call(pipe)).norm() / stock.norm()) < 1e-4


@pytest.mark.parametrize("name", CALLS)
def test_a_method_sees_the_real_tokens_and_no_padding(pipes: dict[str, Any], name: str) -> None:
    pipe, call, seen = pipes[name], CALLS[name], set()

    def spy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.add((q.shape[-2], k.shape[-2]))
        return plain(q, k, v)

    with attach(pipe, spy) as seam:
        call(pipe)
    assert seam.site is not None
    frames, rows, columns = seam.site.grid
    real = frames * rows * columns + {"hunyuan": 5, "hunyuan15": 5 + 2}[name]
    assert seen == {(real, real)}


@pytest.mark.parametrize("method", ["fp16", "mxattn", "nvfp4-sage", "vc4", "vc8", "sage2"])
@pytest.mark.parametrize("name", CALLS)
def test_poison_in_the_padding_changes_nothing_and_a_token_more_does(
    pipes: dict[str, Any], name: str, method: str
) -> None:
    pipe, call = pipes[name], CALLS[name]
    with attach(pipe, method) as seam:
        clean, poisoned, more = call(pipe), call(pipe, poison=1e3), call(pipe, text=6)
    assert torch.isfinite(clean).all()
    assert seam.nonfinite == 0
    assert torch.equal(clean, poisoned)
    assert not torch.equal(clean, more)


@pytest.mark.parametrize("method", ["fp16", "mxattn", "vc8"])
@pytest.mark.parametrize("name", CALLS)
def test_poison_that_reaches_attention_itself_changes_nothing(pipes: dict[str, Any], name: str, method: str) -> None:
    """HunyuanVideo-1.5 zeroes its padding on the way: only here does the seam alone keep it out."""
    pipe, real = pipes[name], {"hunyuan": 5, "hunyuan15": 5 + 2}[name]
    poisoned = 0

    def poison(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        nonlocal poisoned
        given = dict(zip(("hidden_states", "encoder_hidden_states"), args, strict=False)) | kwargs
        joint = given.get("encoder_hidden_states")
        where, first = ("encoder_hidden_states", real) if joint is not None else ("hidden_states", tokens + real)
        given[where] = given[where].clone()
        given[where][:, first:] = 1e3
        poisoned += given[where][:, first:].numel()
        return (), given

    with attach(pipe, method) as seam:
        clean = CALLS[name](pipe)
    assert seam.site is not None and seam.site.grid is not None
    tokens = math.prod(seam.site.grid)
    hooks = [
        site.module.register_forward_pre_hook(poison, with_kwargs=True)
        for site in family_of(pipe).sites(pipe.transformer)
    ]
    try:
        with attach(pipe, method):
            assert torch.equal(clean, CALLS[name](pipe))
    finally:
        for hook in hooks:
            hook.remove()
    assert poisoned > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_method_runs(pipes: dict[str, Any], name: str, method: str) -> None:
    pipe = pipes[name]
    with attach(pipe, method) as seam, torch.no_grad():
        if name in CALLS:
            out = CALLS[name](pipe, steps=1)
        else:
            out = pipe.transformer(**family_of(pipe).inputs(pipe.transformer))[0]
    assert torch.isfinite(out).all()
    assert len(seam.calls) > 0


@pytest.mark.parametrize("name", CALLS)
def test_a_layer_that_no_rule_names_is_computed_as_diffusers_does(pipes: dict[str, Any], name: str) -> None:
    pipe, call = pipes[name], CALLS[name]
    stock, method = call(pipe), METHODS["mxfp4"].spec

    class Never(Schedule):
        def at(self, site: Site, n_experts: int) -> Use | None:
            return None if site.layer else super().at(site, n_experts)

    with attach(pipe, Never("plain", (Rule(Use("plain", None, plain)),))) as seam:
        same = call(pipe)
    assert float((stock - same).norm() / stock.norm()) < 1e-4
    assert {layer for _, layer, *_ in seam.calls} == {0}
    with attach(pipe, Never("mx", (Rule(Use("mx", method)),))):
        little = call(pipe)
    with attach(pipe, method):
        much = call(pipe)
    assert 0 < float((little - stock).norm()) < float((much - stock).norm())


def test_no_mask_of_every_token_against_every_other_is_made(pipes: dict[str, Any]) -> None:
    devices = set()

    class Looking(attach):
        def _serve(self, q: Any, k: Any, v: Any, options: dict[str, Any]) -> torch.Tensor:
            devices.add((options["attn_mask"].device.type, tuple(options["attn_mask"].shape)))
            return super()._serve(q, k, v, options)

    pipe = pipes["hunyuan15"]
    with Looking(pipe, "mxattn"):
        tiny.call_hunyuan15(pipe)
    tokens = 3 * 4 * 6 + 8 + 6 + 3
    assert devices == {("meta", (1, 1, tokens, tokens))}


def test_prompts_of_unlike_lengths_are_refused_in_one_batch(pipes: dict[str, Any]) -> None:
    transformer = pipes["hunyuan"].transformer
    inputs = family_of(pipes["hunyuan"]).inputs(transformer)
    inputs = {k: v.repeat_interleave(2, 0) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
    inputs["encoder_attention_mask"][1, 2:] = 0
    with (
        pytest.raises(UserError, match=r"34 to 37 tokens.*one prompt at a time"),
        attach(pipes["hunyuan"], "mxattn"),
        torch.no_grad(),
    ):
        transformer(**inputs)


def test_the_layout_of_a_packed_sequence(pipes: dict[str, Any]) -> None:
    transformer, family = pipes["minimax"].transformer, family_of(pipes["minimax"])
    inputs = family.inputs(transformer)
    assert family.layout(transformer, inputs) == Layout((2, 3, 4), first=9)
    inputs["position_ids"][-1, 2] = 17.0  # a keyframe's tokens lie elsewhere
    with pytest.raises(UserError, match=r"24 video tokens.*t2va"):
        family.layout(transformer, inputs)


@pytest.mark.parametrize("layout", ["cluster", "cube", "sequence"])
def test_v_smooth_groups_the_video_and_keeps_the_others_behind_it(layout: str) -> None:
    v = torch.randn(1, 2, 9 + 32 + 6, 16, generator=torch.Generator().manual_seed(0))
    site = Site(expert=0, layer=0, n_layers=1, kind="self", step=0, n_steps=4, grid=(2, 4, 4), first=9)
    order, means = arrange(v, VSmooth(layout=layout), site, GroupingState())  # type: ignore[arg-type]
    assert means
    assert order is not None
    assert order[..., 32:].eq(torch.tensor([*range(9), *range(41, 47)])).all()
    assert order[..., :32].sort().values.eq(torch.arange(9, 41)).all()
    by_itself = Site(expert=0, layer=0, n_layers=1, kind="self", step=0, n_steps=4, grid=(2, 4, 4))
    alone, _ = arrange(v[:, :, 9:41], VSmooth(layout=layout), by_itself, GroupingState())  # type: ignore[arg-type]
    assert alone is not None
    assert torch.equal(order[..., :32], alone + 9)


def test_weights_of_another_family_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
    assert pipeline_of(tmp_path) == "WanPipeline"
    load("wan2.2", "cpu", "random:tiny").pipe.save_pretrained(tmp_path / "wan")
    for name, wanted in (("hunyuanvideo", "HunyuanVideoPipeline"), ("hunyuanvideo-1.5", "HunyuanVideo15Pipeline")):
        with pytest.raises(UserError, match=f"holds a WanPipeline, and {name} is a {wanted}; pass its own weights"):
            facts(name, str(tmp_path / "wan"))
    assert facts("wan2.2", str(tmp_path / "wan")).n_layers == 3
