"""The Wan family of diffusers: Wan2.1, Wan2.2 and the built-in nano model, which has Wan2.2's classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mxbench.models.base import AttentionSite, Family, Layout

__all__ = ["WAN"]


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


WAN = Family(
    name="wan",
    pipelines=("WanPipeline",),
    experts=("transformer", "transformer_2"),
    sites=_sites,
    layout=_layout,
    inputs=_inputs,
)
