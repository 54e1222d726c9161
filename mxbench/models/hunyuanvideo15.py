"""HunyuanVideo-1.5: 8 billion parameters, joint attention over video and two texts, two forwards a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from mxbench.models.base import Sampling
from mxbench.models.chosen import ChosenModel, Make
from mxbench.models.nano import tokenizer

__all__ = ["HunyuanVideo15"]

_OTHER_TEXT = 256 + 729  # tokens of the second text encoder and of an image, padding as a rule

_FULL: dict[str, dict[str, Any]] = {
    # https://huggingface.co/hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-720p_t2v, the configs of its parts.
    # Random text encoders are three and one layers deep: they run once a prompt and are no part of what is measured.
    "transformer": {
        "in_channels": 65,
        "out_channels": 32,
        "num_attention_heads": 16,
        "attention_head_dim": 128,
        "num_layers": 54,
        "num_refiner_layers": 2,
        "text_embed_dim": 3584,
        "text_embed_2_dim": 1472,
        "image_embed_dim": 1152,
        "rope_axes_dim": [16, 56, 56],
        "target_size": 640,
        "task_type": "t2v",
    },
    "vae": {},
    "text_encoder": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "num_hidden_layers": 3,
    },
    "text_encoder_2": {"d_model": 1472, "d_kv": 64, "d_ff": 3584, "num_layers": 1, "num_heads": 6},
    "scheduler": {"shift": 9.0},
    "pipeline": {"vision_num_semantic_tokens": 729, "tokenizer_2_max_length": 256},
}

_TINY: dict[str, dict[str, Any]] = {
    "transformer": {
        **_FULL["transformer"],
        "in_channels": 9,
        "out_channels": 4,
        "num_attention_heads": 2,
        "attention_head_dim": 32,
        "num_layers": 3,
        "num_refiner_layers": 1,
        "text_embed_dim": 32,
        "text_embed_2_dim": 16,
        "image_embed_dim": 8,
        "rope_axes_dim": [8, 12, 12],
    },
    "vae": {"latent_channels": 4, "block_out_channels": [8, 8, 8, 8, 8], "layers_per_block": 1},
    "text_encoder": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
    },
    "text_encoder_2": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2},
    "scheduler": _FULL["scheduler"],
    "pipeline": {"vision_num_semantic_tokens": 4, "tokenizer_2_max_length": 8},
}


class HunyuanVideo15(ChosenModel):
    """HunyuanVideo-1.5 at 720p: 121 frames in 50 steps, 111,600 video tokens."""

    NAME = "hunyuanvideo-1.5"
    HUB = "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-720p_t2v"
    PIPELINE = "HunyuanVideo15Pipeline"
    SAMPLING = Sampling(height=720, width=1280, frames=121, fps=24, steps=50, guidance=(6.0,), max_sequence_length=1000)
    TINY = Sampling(height=128, width=128, frames=9, fps=8, steps=3, guidance=(6.0,), max_sequence_length=16)
    BRANCHES = 2
    ARCHITECTURES: ClassVar = {"full": _FULL, "tiny": _TINY}

    def arguments(self, sampling: Sampling) -> dict[str, Any]:
        """See ``PipelineModel.arguments``; the pipeline has guidance and the length of its text as attributes."""
        self.pipe.guider.guidance_scale = sampling.guidance[0]
        self.pipe.tokenizer_max_length = sampling.max_sequence_length
        return {
            "negative_prompt": sampling.negative_prompt,
            "height": sampling.height,
            "width": sampling.width,
            "num_frames": sampling.frames,
            "num_inference_steps": sampling.steps,
        }

    @classmethod
    def random(cls, architecture: Mapping[str, Mapping[str, Any]], make: Make) -> Any:
        """See ``ChosenModel.random``."""
        from diffusers import (
            AutoencoderKLHunyuanVideo15,
            ClassifierFreeGuidance,
            FlowMatchEulerDiscreteScheduler,
            HunyuanVideo15Pipeline,
            HunyuanVideo15Transformer3DModel,
        )
        from transformers import ByT5Tokenizer, Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel, T5Config, T5EncoderModel

        words = tokenizer.build()
        words.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        text = architecture["text_encoder"]
        half = text["hidden_size"] // text["num_attention_heads"] // 2
        rope = {"rope_type": "default", "mrope_section": [half // 4, half // 4, half - half // 4 * 2]}
        qwen = Qwen2_5_VLTextConfig(
            vocab_size=len(tokenizer.VOCABULARY),
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
            rope_parameters=rope,
            **text,
        )
        letters = ByT5Tokenizer()
        t5 = T5Config(vocab_size=len(letters), **architecture["text_encoder_2"])
        pipe = HunyuanVideo15Pipeline(
            text_encoder=make(lambda: Qwen2_5_VLTextModel(qwen)),
            tokenizer=words,
            transformer=make(lambda: HunyuanVideo15Transformer3DModel(**architecture["transformer"])),
            vae=make(lambda: AutoencoderKLHunyuanVideo15(**architecture["vae"]), dtype=torch.float32),
            scheduler=FlowMatchEulerDiscreteScheduler(**architecture["scheduler"]),
            text_encoder_2=make(lambda: T5EncoderModel(t5)),
            tokenizer_2=letters,
            guider=ClassifierFreeGuidance(guidance_scale=cls.SAMPLING.guidance[0]),
        )
        for name, value in architecture["pipeline"].items():
            setattr(pipe, name, value)
        pipe.system_message, pipe.prompt_template_encode_start_idx = "", 0  # of the model's own tokenizer
        return pipe

    @classmethod
    def tokens(cls, config: Mapping[str, Any], sampling: Sampling) -> int:
        """See ``ChosenModel.tokens``."""
        edge = 16 * config.get("patch_size", 1)
        video = ((sampling.frames - 1) // 4 + 1) * (sampling.height // edge) * (sampling.width // edge)
        return int(video + sampling.max_sequence_length + _OTHER_TEXT)
