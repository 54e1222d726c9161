"""HunyuanVideo and HunyuanVideo-1.5: joint attention over video and text, the text padded behind its real tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mxbench.models.base import AttentionSite, Family, Layout

__all__ = ["HUNYUAN", "HUNYUAN15"]


def _sites(transformer: Any) -> Sequence[AttentionSite]:
    """Dual-stream blocks and, behind them, single-stream ones."""
    blocks = [*transformer.transformer_blocks, *getattr(transformer, "single_transformer_blocks", ())]
    return [AttentionSite(layer, "self", block.attn) for layer, block in enumerate(blocks)]


def _grid(transformer: Any, kwargs: dict[str, Any]) -> tuple[int, int, int]:
    _, _, frames, height, width = kwargs["hidden_states"].shape
    config = transformer.config
    return frames // config.patch_size_t, height // config.patch_size, width // config.patch_size


def _behind(grid: tuple[int, int, int], text: torch.Tensor) -> Layout:
    """The video, and behind it so many text tokens of each batch element."""
    frames, rows, columns = grid
    return Layout(grid, valid=tuple(frames * rows * columns + int(n) for n in text.tolist()))


def _layout(transformer: Any, kwargs: dict[str, Any]) -> Layout:
    return _behind(_grid(transformer, kwargs), kwargs["encoder_attention_mask"].sum(1, dtype=torch.int64))


def _layout15(transformer: Any, kwargs: dict[str, Any]) -> Layout:
    """Real tokens of both text encoders, and of the image where there is one, are put before all padding."""
    masks = kwargs["encoder_attention_mask"], kwargs["encoder_attention_mask_2"]
    text = sum(mask.bool().sum(1, dtype=torch.int64) for mask in masks)
    images = kwargs["image_embeds"]
    return _behind(_grid(transformer, kwargs), text + images.shape[1] * bool((images != 0).any()))


def _shared(transformer: Any) -> tuple[dict[str, Any], Any]:
    config, generator = transformer.config, torch.Generator("cpu").manual_seed(0)
    weight = transformer.proj_out.weight

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(weight)

    p, pt = config.patch_size, config.patch_size_t
    return {
        "hidden_states": normal(1, config.in_channels, 2 * pt, 4 * p, 4 * p),
        "timestep": torch.tensor([500.0], device=weight.device),
        "encoder_hidden_states": normal(1, 8, config.text_embed_dim),
        "encoder_attention_mask": torch.tensor([[1] * 5 + [0] * 3], device=weight.device),
        "return_dict": False,
    }, normal


def _inputs(transformer: Any) -> dict[str, Any]:
    shared, normal = _shared(transformer)
    config = transformer.config
    guidance = torch.tensor([6000.0]).to(shared["hidden_states"]) if config.guidance_embeds else None
    return {**shared, "pooled_projections": normal(1, config.pooled_projection_dim), "guidance": guidance}


def _inputs15(transformer: Any) -> dict[str, Any]:
    shared, normal = _shared(transformer)
    config = transformer.config
    return {
        **shared,
        "encoder_hidden_states_2": normal(1, 6, config.text_embed_2_dim),
        "encoder_attention_mask_2": torch.tensor([[1, 1, 0, 0, 0, 0]], device=shared["timestep"].device),
        "image_embeds": normal(1, 3, config.image_embed_dim) * 0,
    }


HUNYUAN = Family(
    name="hunyuanvideo",
    pipelines=("HunyuanVideoPipeline",),
    experts=("transformer",),
    sites=_sites,
    layout=_layout,
    inputs=_inputs,
)

HUNYUAN15 = Family(
    name="hunyuanvideo-1.5",
    pipelines=("HunyuanVideo15Pipeline",),
    experts=("transformer",),
    sites=_sites,
    layout=_layout15,
    inputs=_inputs15,
    hides=True,
)
