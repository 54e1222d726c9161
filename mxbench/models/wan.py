"""The Wan family of diffusers: Wan2.1, Wan2.2 and the built-in nano model, which has Wan2.2's classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from mxbench.errors import UserError
from mxbench.models.base import AttentionSite, Family, Layout

__all__ = ["KINDS", "WAN", "experts_at"]

KINDS = ("self", "cross")


def _sites(transformer: Any) -> Sequence[AttentionSite]:
    found = []
    for layer, block in enumerate(transformer.blocks):
        found += [AttentionSite(layer, "self", block.attn1), AttentionSite(layer, "cross", block.attn2)]
    return found


def _layout(transformer: Any, kwargs: dict[str, Any]) -> Layout:
    _, _, frames, height, width = kwargs["hidden_states"].shape
    pt, ph, pw = transformer.config.patch_size
    return Layout((frames // pt, height // ph, width // pw))


def _inputs(transformer: Any) -> dict[str, Any]:
    config, generator = transformer.config, torch.Generator("cpu").manual_seed(0)
    weight = transformer.proj_out.weight
    shape = [1, config.in_channels, *(n * p for n, p in zip((2, 4, 4), config.patch_size, strict=True))]
    return {
        "hidden_states": torch.randn(shape, generator=generator).to(weight),
        "timestep": torch.tensor([500], device=weight.device),
        "encoder_hidden_states": torch.randn(1, 8, config.text_dim, generator=generator).to(weight),
        "return_dict": False,
    }


def experts_at(scheduler: Mapping[str, Any], boundary: float | None, steps: int) -> Sequence[int]:
    """Which of Wan2.2's two transformers computes each step: the first down to the boundary in the noise.

    Args:
        scheduler: its config, as diffusers writes it.
        boundary: the pipeline's ``boundary_ratio``; None where the first computes all.
        steps: of the render.
    """
    return _experts_at(tuple(sorted((k, v) for k, v in scheduler.items() if _plain(v))), boundary, steps)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


@cache
def _experts_at(scheduler: tuple[tuple[str, Any], ...], boundary: float | None, steps: int) -> Sequence[int]:
    import diffusers

    if boundary is None:
        return (0,) * steps
    config = dict(scheduler)
    try:
        made = getattr(diffusers, config.get("_class_name", "UniPCMultistepScheduler")).from_config(config)
        made.set_timesteps(steps)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise UserError(f"the weights' scheduler_config.json makes no scheduler: {error}", "bring it again") from error
    return tuple(int(t < boundary * made.config.num_train_timesteps) for t in made.timesteps.tolist())


WAN = Family(
    name="wan",
    pipelines=("WanPipeline",),
    experts=("transformer", "transformer_2"),
    sites=_sites,
    layout=_layout,
    inputs=_inputs,
)
