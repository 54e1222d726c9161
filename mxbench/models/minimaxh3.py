"""MiniMax-H3: 33 billion parameters over one packed sequence of text, sound and video; a modular pipeline of diffusers.

Its workflow t2va, text to video and audio, is what is rendered; the sound is made and left out of the clip. Guidance is
baked into the weights: there is one forward a step, no negative prompt and no scale. The VAE decodes in blended tiles,
as the model was released.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from mxbench.models.base import Frames, Sampling
from mxbench.models.chosen import ChosenModel, Make
from mxbench.models.nano import tokenizer

__all__ = ["MiniMaxH3"]

_TEXT = 100  # tokens of a prompt, which is not padded: an estimate
_RATE = 40  # latents of sound a second, for each of two channels

_FULL: dict[str, dict[str, Any]] = {
    # https://huggingface.co/MiniMaxAI/MiniMax-H3, the configs of its parts; those of the transformer and the VAEs are
    # diffusers' defaults. The random text encoder has the 51 layers that the model reads, and narrow ones: it runs once
    # a prompt and is no part of what is measured.
    "transformer": {
        "num_attention_heads": 56,
        "attention_head_dim": 128,
        "hidden_size": 5376,
        "num_layers": 50,
        "num_refiner_layers": 2,
        "ffn_dim": 14336,
        "in_channels": 24,
        "audio_in_channels": 32,
        "patch_size": [1, 2, 2],
        "text_dim": 5120,
    },
    "vae": {},
    "audio_vae": {"latents_mean": [0.0] * 32, "latents_std": [1.0] * 32},
    "text_encoder": {
        "hidden_size": 5120,
        "intermediate_size": 128,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "num_hidden_layers": 51,
    },
    "scheduler": {"shift": 12.0},
    "audio_scheduler": {"shift": 3.0},
}

_TINY: dict[str, dict[str, Any]] = {
    "transformer": {
        "num_attention_heads": 2,
        "attention_head_dim": 32,
        "hidden_size": 48,
        "num_layers": 3,
        "num_refiner_layers": 1,
        "ffn_dim": 64,
        "in_channels": 24,
        "audio_in_channels": 8,
        "patch_size": [1, 2, 2],
        "text_dim": 32,
        "freq_dim": 32,
        "time_embed_hidden_dim": 48,
        "time_embed_dim": 24,
        "rope_freq_dim": 4,
    },
    "vae": {
        "block_out_channels": [8] * 6,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "decoder_num_layers": 1,
        "decoder_num_attention_heads": 2,
        "decoder_attention_head_dim": 16,
        "decoder_num_register_tokens": 1,
    },
    "audio_vae": {
        "encoder_dim": 4,
        "latent_dim": 32,
        "latent_channels": 8,
        "num_attention_heads": 2,
        "decoder_dim": 128,
        "latents_mean": [0.0] * 8,
        "latents_std": [1.0] * 8,
    },
    "text_encoder": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "num_hidden_layers": 51,
    },
    "scheduler": _FULL["scheduler"],
    "audio_scheduler": _FULL["audio_scheduler"],
}


class _TextAlone:
    """Of a Qwen3-VL processor what a prompt without pictures asks for; the real one needs torchvision."""

    def create_mm_token_type_ids(self, ids: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[0] * len(each) for each in ids]


class MiniMaxH3(ChosenModel):
    """MiniMax-H3 on its own canvas at 243 frames: 73,386 tokens of video and sound.

    They come nearest to the VC paper's 73.5K, which states neither size nor length; a prompt's own tokens come on top.
    The schedule of 50 points drives 49 steps.
    """

    NAME = "minimax-h3"
    HUB = "MiniMaxAI/MiniMax-H3"
    PIPELINE = "MiniMaxH3ModularPipeline"
    COMPONENTS = ("text_encoder", "tokenizer", "scheduler", "audio_scheduler", "transformer", "vae", "audio_vae")
    IGNORES = ("guidance", "negative_prompt", "max_sequence_length")
    TILES = True
    FRAMES = Frames(step=17, first=5, least=124, most=345)
    MULTIPLE = 32
    SPREADS = True
    UNEVEN = True
    SAMPLING = Sampling(height=768, width=1344, frames=243, fps=24, steps=49, guidance=(1.0,))
    TINY = Sampling(height=64, width=64, frames=124, fps=24, steps=3, guidance=(1.0,))
    ARCHITECTURES: ClassVar = {"full": _FULL, "tiny": _TINY}

    def arguments(self, sampling: Sampling) -> dict[str, Any]:
        """See ``PipelineModel.arguments``: N steps are driven by N + 1 points of the schedule."""
        return {
            "height": sampling.height,
            "width": sampling.width,
            "num_frames": sampling.frames,
            "num_inference_steps": sampling.steps + 1,
        }

    def call(self, prompt: str, sampling: Sampling, generator: torch.Generator) -> Any:
        """See ``PipelineModel.call``."""
        told = self.arguments(sampling)
        return self.pipe(prompt=prompt, **told, generator=generator, output_type="np", output="videos")[0]

    def clip_of(self, latents: torch.Tensor) -> torch.Tensor:
        """See ``PipelineModel.clip_of``: the packed video's rows, ``[tokens, channels]``."""
        return latents

    @classmethod
    def tokens(cls, config: Mapping[str, Any], sampling: Sampling) -> int:
        """See ``ChosenModel.tokens``."""
        _, rows, columns = config["patch_size"]
        video = (
            ((sampling.frames - 5) // 17 * 5 + 2) * (sampling.height // 16 // rows) * (sampling.width // 16 // columns)
        )
        return int(video) + 2 * round(sampling.frames / 24 * _RATE) + _TEXT

    @classmethod
    def stored(cls, path: Path, dtype: torch.dtype) -> Any:
        """See ``ChosenModel.stored``: part by part, wherever the index says that they are."""
        index = json.loads((path / "modular_model_index.json").read_text(encoding="utf-8"))
        pipe = _pipeline()
        found: dict[str, Any] = {"processor": _TextAlone()}
        for name in cls.COMPONENTS:
            told = index[name][2] if isinstance(index.get(name), list) and len(index[name]) == 3 else {}
            with _quiet():
                found[name] = pipe._component_specs[name].load(
                    pretrained_model_name_or_path=str(path),
                    subfolder=told.get("subfolder") or name,
                    local_files_only=True,
                    **({"dtype": torch.float32 if name.endswith("vae") else dtype} if name in _NETWORKS else {}),
                )
        pipe.update_components(**found)
        return pipe

    @classmethod
    def random(cls, architecture: Mapping[str, Mapping[str, Any]], make: Make) -> Any:
        """See ``ChosenModel.random``."""
        from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel
        from diffusers.schedulers.scheduling_minimax_h3 import MiniMaxH3Scheduler
        from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

        text = architecture["text_encoder"]
        half = text["head_dim"] // 2
        rope = {"rope_type": "default", "mrope_section": [half - half // 4 * 2, half // 4, half // 4]}
        config = Qwen3VLConfig(
            text_config={"vocab_size": len(tokenizer.VOCABULARY), "rope_parameters": rope, **text},
            vision_config={
                "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "num_position_embeddings": 16,
                "out_hidden_size": text["hidden_size"], "deepstack_visual_indexes": [0],
            },
        )  # fmt: skip
        pipe = _pipeline()
        with _quiet():
            sound = make(lambda: AutoencoderKLMiniMaxH3Audio(**architecture["audio_vae"]), dtype=torch.float32)
        pipe.update_components(
            text_encoder=make(lambda: Qwen3VLForConditionalGeneration(config)),
            tokenizer=tokenizer.build(),
            processor=_TextAlone(),
            transformer=make(lambda: MiniMaxH3Transformer3DModel(**architecture["transformer"])),
            vae=make(lambda: AutoencoderKLMiniMaxH3(**architecture["vae"]), dtype=torch.float32),
            audio_vae=sound,
            scheduler=MiniMaxH3Scheduler(**architecture["scheduler"]),
            audio_scheduler=MiniMaxH3Scheduler(**architecture["audio_scheduler"]),
        )
        return pipe


_NETWORKS = ("text_encoder", "transformer", "vae", "audio_vae")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of the audio VAE's weight normalisation."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.nn.utils.weight_norm` is deprecated", FutureWarning)
        yield


def _pipeline() -> Any:
    """The pipeline of the workflow t2va, without its parts."""
    from diffusers import MiniMaxH3ModularPipeline
    from diffusers.modular_pipelines.minimax_h3.modular_blocks_minimax_h3 import MiniMaxH3Blocks

    return MiniMaxH3ModularPipeline(MiniMaxH3Blocks().get_workflow("t2va"))
