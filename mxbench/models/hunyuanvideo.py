"""HunyuanVideo: 13 billion parameters, joint attention over video and text, by diffusers' ``HunyuanVideoPipeline``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from mxbench.models.base import Sampling
from mxbench.models.chosen import ChosenModel, Make
from mxbench.models.nano import tokenizer

__all__ = ["HunyuanVideo"]

_FULL: dict[str, dict[str, Any]] = {
    # https://huggingface.co/hunyuanvideo-community/HunyuanVideo, the configs of its parts.
    # Random text encoders are three and one layers deep: they run once a prompt and are no part of what is measured.
    "transformer": {
        "in_channels": 16,
        "out_channels": 16,
        "num_attention_heads": 24,
        "attention_head_dim": 128,
        "num_layers": 20,
        "num_single_layers": 40,
        "num_refiner_layers": 2,
        "patch_size": 2,
        "patch_size_t": 1,
        "text_embed_dim": 4096,
        "pooled_projection_dim": 768,
        "rope_axes_dim": [16, 56, 56],
    },
    "vae": {},
    "text_encoder": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 3,
    },
    "text_encoder_2": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 1,
    },
    "scheduler": {"shift": 7.0},
}

_TINY: dict[str, dict[str, Any]] = {
    "transformer": {
        **_FULL["transformer"],
        "num_attention_heads": 2,
        "attention_head_dim": 32,
        "num_layers": 2,
        "num_single_layers": 2,
        "num_refiner_layers": 1,
        "text_embed_dim": 32,
        "pooled_projection_dim": 16,
        "rope_axes_dim": [8, 12, 12],
    },
    "vae": {"block_out_channels": [8, 8, 8, 8], "layers_per_block": 1, "norm_num_groups": 4},
    "text_encoder": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
    },
    "text_encoder_2": {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1},
    "scheduler": _FULL["scheduler"],
}


class HunyuanVideo(ChosenModel):
    """HunyuanVideo, with the settings of the MXAttention paper's Table 2: 129 frames of 720p in 50 steps."""

    NAME = "hunyuanvideo"
    HUB = "hunyuanvideo-community/HunyuanVideo"
    IGNORES = ("negative_prompt",)
    PIPELINE = "HunyuanVideoPipeline"
    SAMPLING = Sampling(height=720, width=1280, frames=129, fps=24, steps=50, guidance=(6.0,), max_sequence_length=256)
    TINY = Sampling(height=64, width=64, frames=9, fps=8, steps=3, guidance=(6.0,), max_sequence_length=16)
    ARCHITECTURES: ClassVar = {"full": _FULL, "tiny": _TINY}

    def arguments(self, sampling: Sampling) -> dict[str, Any]:
        """See ``PipelineModel.arguments``; guidance is embedded, and there is no negative prompt."""
        told: dict[str, Any] = {
            "height": sampling.height,
            "width": sampling.width,
            "num_frames": sampling.frames,
            "num_inference_steps": sampling.steps,
            "guidance_scale": sampling.guidance[0],
            "max_sequence_length": sampling.max_sequence_length,
        }
        if self.random_weights:  # the model's own template has tokens that the random model's tokenizer lacks
            told["prompt_template"] = {"template": "{}", "crop_start": 0}
        return told

    @classmethod
    def layers(cls, config: Mapping[str, Any]) -> int:
        """See ``ChosenModel.layers``: dual-stream blocks, and single-stream ones behind them."""
        return int(config["num_layers"]) + int(config["num_single_layers"])

    @classmethod
    def random(cls, architecture: Mapping[str, Mapping[str, Any]], make: Make) -> Any:
        """See ``ChosenModel.random``."""
        from diffusers import (
            AutoencoderKLHunyuanVideo,
            FlowMatchEulerDiscreteScheduler,
            HunyuanVideoPipeline,
            HunyuanVideoTransformer3DModel,
        )
        from transformers import CLIPTextConfig, CLIPTextModel, LlamaConfig, LlamaModel

        words = len(tokenizer.VOCABULARY)
        llama = LlamaConfig(
            vocab_size=words, pad_token_id=0, bos_token_id=1, eos_token_id=1, **architecture["text_encoder"]
        )
        clip = CLIPTextConfig(
            vocab_size=words, pad_token_id=0, bos_token_id=1, eos_token_id=1, **architecture["text_encoder_2"]
        )
        return HunyuanVideoPipeline(
            text_encoder=make(lambda: LlamaModel(llama)),
            tokenizer=tokenizer.build(),
            text_encoder_2=make(lambda: CLIPTextModel(clip)),
            tokenizer_2=tokenizer.build(),
            transformer=make(lambda: HunyuanVideoTransformer3DModel(**architecture["transformer"])),
            vae=make(lambda: AutoencoderKLHunyuanVideo(**architecture["vae"]), dtype=torch.float32),
            scheduler=FlowMatchEulerDiscreteScheduler(**architecture["scheduler"]),
        )

    @classmethod
    def tokens(cls, config: Mapping[str, Any], sampling: Sampling) -> int:
        """See ``ChosenModel.tokens``."""
        edge = 8 * config["patch_size"]
        video = ((sampling.frames - 1) // 4 + 1) * (sampling.height // edge) * (sampling.width // edge)
        return int(video + sampling.max_sequence_length)
