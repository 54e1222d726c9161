"""Wan2.2-T2V-A14B: two experts of 14 billion parameters, by diffusers' ``WanPipeline``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from mxbench.models.base import Sampling
from mxbench.models.chosen import SEED, ChosenModel, Make
from mxbench.models.nano import tokenizer
from mxbench.models.wan import KINDS, experts_at

__all__ = ["Wan22"]

_SCHEDULER = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "num_train_timesteps": 1000}

_FULL: dict[str, dict[str, Any]] = {
    # https://huggingface.co/Wan-AI/Wan2.2-T2V-A14B-Diffusers, the configs of its parts. Of the text encoder's 24 layers
    # random weights have one: it runs once a prompt and is no part of what is measured.
    "transformer": {
        "patch_size": [1, 2, 2],
        "num_attention_heads": 40,
        "attention_head_dim": 128,
        "in_channels": 16,
        "out_channels": 16,
        "text_dim": 4096,
        "freq_dim": 256,
        "ffn_dim": 13824,
        "num_layers": 40,
        "cross_attn_norm": True,
    },
    "vae": {},
    "text_encoder": {"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 1, "num_heads": 64},
    "scheduler": {**_SCHEDULER, "flow_shift": 12.0},
    "pipeline": {"boundary_ratio": 0.875},
}

_TINY: dict[str, dict[str, Any]] = {
    "transformer": {
        **_FULL["transformer"],
        "num_attention_heads": 2,
        "attention_head_dim": 32,
        "text_dim": 32,
        "freq_dim": 32,
        "ffn_dim": 64,
        "num_layers": 3,
    },
    "vae": {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1},
    "text_encoder": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2},
    "scheduler": _FULL["scheduler"],
    "pipeline": _FULL["pipeline"],
}


class Wan22(ChosenModel):
    """Wan2.2-T2V-A14B, with the settings of the MXAttention paper's Table 2: 81 frames of 720p in 40 steps."""

    NAME = "wan2.2"
    HUB = "Wan-AI/Wan2.2-T2V-A14B-Diffusers"
    PIPELINE = "WanPipeline"
    SAMPLING = Sampling(height=720, width=1280, frames=81, fps=16, steps=40, guidance=(4.0, 3.0))
    TINY = Sampling(height=64, width=64, frames=9, fps=8, steps=4, guidance=(4.0, 3.0), max_sequence_length=16)
    EXPERTS = 2
    BRANCHES = 2
    SPREADS = True
    KINDS = KINDS
    ARCHITECTURES: ClassVar = {"full": _FULL, "tiny": _TINY}

    @classmethod
    def random(cls, architecture: Mapping[str, Mapping[str, Any]], make: Make) -> Any:
        """See ``ChosenModel.random``."""
        from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
        from transformers import UMT5Config, UMT5EncoderModel

        config = UMT5Config(vocab_size=len(tokenizer.VOCABULARY), **architecture["text_encoder"])
        experts = [make(lambda: WanTransformer3DModel(**architecture["transformer"]), SEED + i) for i in range(2)]
        return WanPipeline(
            tokenizer=tokenizer.build(),
            text_encoder=make(lambda: UMT5EncoderModel(config)),
            vae=make(lambda: AutoencoderKLWan(**architecture["vae"]), dtype=torch.float32),
            scheduler=UniPCMultistepScheduler(**architecture["scheduler"]),
            transformer=experts[0],
            transformer_2=experts[1],
            **architecture["pipeline"],
        )

    @classmethod
    def experts_at(cls, scheduler: Mapping[str, Any], index: Mapping[str, Any]) -> Callable[[int], Sequence[int]]:
        """See ``ChosenModel.experts_at``."""
        return partial(experts_at, scheduler, index.get("boundary_ratio"))

    @classmethod
    def tokens(cls, config: Mapping[str, Any], sampling: Sampling) -> int:
        """See ``ChosenModel.tokens``."""
        pt, ph, pw = config["patch_size"]
        frames = (sampling.frames - 1) // 4 + 1
        return int((frames // pt) * (sampling.height // 8 // ph) * (sampling.width // 8 // pw))
