"""MiniMax-H3: one packed sequence of text, sound and video, without padding. Its pipeline is modular only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from mxbench.errors import UserError
from mxbench.models.base import AttentionSite, Family, Layout

__all__ = ["MINIMAX"]


def _sites(transformer: Any) -> Sequence[AttentionSite]:
    """Without the token refiner, whose attention is dispatched too."""
    return [AttentionSite(layer, "self", block.attn) for layer, block in enumerate(transformer.transformer_blocks)]


def _layout(_transformer: Any, kwargs: dict[str, Any]) -> Layout:
    """The video's tokens are the last, in raster order; their places in the grid are in ``position_ids``."""
    indices, places = kwargs["video_indices"], kwargs["position_ids"]
    frames, rows, columns = (int(places[indices, axis].unique().numel()) for axis in range(3))
    count, length = int(indices.numel()), int(places.shape[0])
    if count != frames * rows * columns or int(indices[0]) != length - count or int(indices[-1]) != length - 1:
        raise UserError(
            f"the packed sequence holds {count} video tokens, which are no {frames}×{rows}×{columns} at its end",
            "use the workflow t2va, which has no keyframes and no references",
        )
    return Layout((frames, rows, columns), first=length - count)


def _inputs(transformer: Any) -> dict[str, Any]:
    config, generator = transformer.config, torch.Generator("cpu").manual_seed(0)
    weight = transformer.context_embedder.weight
    grid, text, sound = (2, 3, 4), 5, 4
    video = math.prod(grid)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(weight)

    places = torch.zeros(text + sound + video, 3, dtype=torch.float64)
    places[text + sound :] = torch.cartesian_prod(*(torch.arange(n) for n in grid)).double()
    rows = torch.arange(text + sound + video)
    tags = torch.tensor([1] * text + [2] * sound + [0] * video)
    inputs = {
        "hidden_states": normal(1, video, config.in_channels * math.prod(config.patch_size)),
        "audio_hidden_states": normal(1, sound, config.audio_in_channels),
        "encoder_hidden_states": normal(1, text, config.text_dim),
        "timestep": torch.tensor([0.5]),
        "timestep_indices": torch.zeros(text + sound + video, dtype=torch.long),
        "token_tags": tags,
        "position_ids": places,
        "video_indices": rows[text + sound :],
        "audio_indices": rows[text : text + sound],
        "text_indices": rows[:text],
        "return_dict": False,
    }
    return {k: v.to(weight.device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}


MINIMAX = Family(
    name="minimax-h3",
    pipelines=("MiniMaxH3ModularPipeline",),
    experts=("transformer",),
    sites=_sites,
    layout=_layout,
    inputs=_inputs,
)
