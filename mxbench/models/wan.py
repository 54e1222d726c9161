"""The Wan family of diffusers: Wan2.1, Wan2.2 and the built-in nano model, which has Wan2.2's classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxbench.models.base import AttentionSite, Family

__all__ = ["WAN"]


def _sites(transformer: Any) -> Sequence[AttentionSite]:
    found = []
    for layer, block in enumerate(transformer.blocks):
        found += [AttentionSite(layer, "self", block.attn1), AttentionSite(layer, "cross", block.attn2)]
    return found


def _grid(transformer: Any, kwargs: dict[str, Any]) -> tuple[int, int, int]:
    _, _, frames, height, width = kwargs["hidden_states"].shape
    pt, ph, pw = transformer.config.patch_size
    return frames // pt, height // ph, width // pw


WAN = Family(
    name="wan",
    pipelines=("WanPipeline",),
    experts=("transformer", "transformer_2"),
    sites=_sites,
    grid=_grid,
)
