"""LongCat-Video, by its own package: self-attention over the video, and cross-attention to texts of any length.

It is not in diffusers, and dispatches by itself: a method of the attention module computes on ``[B,H,N,D]``. Both
branches of guidance are one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mxbench.errors import UserError
from mxbench.models.base import AttentionSite, Family, Layout

__all__ = ["LONGCAT"]

_PLAIN = {
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
    "_parallel_config": None,
}


def _sites(transformer: Any) -> Sequence[AttentionSite]:
    return [AttentionSite(layer, "self", block.attn) for layer, block in enumerate(transformer.blocks)]


def _layout(transformer: Any, kwargs: dict[str, Any]) -> Layout:
    split = transformer.cp_split_hw
    if split is not None and tuple(split) != (1, 1):
        raise UserError(f"LongCat-Video is split over GPUs by its own code, as {list(split)}", "load it on one GPU")
    if kwargs.get("num_cond_latents") or kwargs.get("kv_cache_dict"):
        raise UserError("LongCat-Video continues a video here", "use its text to video, generate_t2v")
    _, _, frames, height, width = kwargs["hidden_states"].shape
    pt, ph, pw = transformer.patch_size
    return Layout((frames // pt, height // ph, width // pw))


def _inputs(transformer: Any) -> dict[str, Any]:
    config, generator = transformer.config, torch.Generator("cpu").manual_seed(0)
    weight = next(transformer.parameters())
    shape = [2, config.in_channels, *(n * p for n, p in zip((2, 4, 4), transformer.patch_size, strict=True))]
    return {
        "hidden_states": torch.randn(shape, generator=generator).to(weight),
        "timestep": torch.tensor([500.0, 500.0], device=weight.device),
        "encoder_hidden_states": torch.randn(2, 1, 8, config.caption_channels, generator=generator).to(weight),
        "encoder_attention_mask": torch.tensor([[1] * 3 + [0] * 5, [1] * 6 + [0] * 2], device=weight.device),
    }


def _take(module: Any, serve: Callable[..., torch.Tensor]) -> Callable[[], None]:
    if module.enable_bsa:
        raise UserError("LongCat-Video's block-sparse attention is on", "call disable_bsa() on its dit")
    own = module._process_attn

    def process(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: Any) -> torch.Tensor:
        def plain(*operands: torch.Tensor) -> torch.Tensor:
            computed: torch.Tensor = own(*(t.transpose(1, 2) for t in operands), shape)
            return computed.transpose(1, 2)

        return serve(*(t.transpose(1, 2) for t in (q, k, v)), _PLAIN, plain).transpose(1, 2)

    module._process_attn = process  # in the instance's own names, before the class's

    def undo() -> None:
        del module.__dict__["_process_attn"]

    return undo


LONGCAT = Family(
    name="longcat",
    pipelines=("LongCatVideoPipeline",),
    experts=("dit",),
    sites=_sites,
    layout=_layout,
    inputs=_inputs,
    take=_take,
)
