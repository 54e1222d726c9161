"""LongCat-Video: 13.6 billion parameters, text to video at 480p, by its own package, which is not in diffusers."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self
from unittest import mock

import torch

from mxbench.errors import UserError
from mxbench.models.base import ModelFacts, Sampling
from mxbench.models.chosen import SEED, ChosenModel, Make
from mxbench.models.nano import tokenizer

__all__ = ["LongCatVideo"]

_FULL: dict[str, dict[str, Any]] = {
    # https://huggingface.co/meituan-longcat/LongCat-Video, dit/config.json, which are the defaults of its class. Of the
    # text encoder's 24 layers random weights have one: it runs once a prompt and is no part of what is measured.
    "dit": {
        "in_channels": 16,
        "out_channels": 16,
        "hidden_size": 4096,
        "depth": 48,
        "num_heads": 32,
        "caption_channels": 4096,
        "mlp_ratio": 4,
        "adaln_tembed_dim": 512,
        "frequency_embedding_size": 256,
        "patch_size": [1, 2, 2],
        "text_tokens_zero_pad": True,
    },
    "vae": {},
    "text_encoder": {"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 1, "num_heads": 64},
    "scheduler": {"num_train_timesteps": 1000, "shift": 12.0},
}

_TINY: dict[str, dict[str, Any]] = {
    "dit": {
        **_FULL["dit"],
        "hidden_size": 64,
        "depth": 3,
        "num_heads": 2,
        "caption_channels": 32,
        "adaln_tembed_dim": 32,
        "frequency_embedding_size": 32,
    },
    "vae": {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1},
    "text_encoder": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2},
    "scheduler": _FULL["scheduler"],
}

_CLASSES = {
    "pipeline_longcat_video": "LongCatVideoPipeline",
    "modules.scheduling_flow_match_euler_discrete": "FlowMatchEulerDiscreteScheduler",
    "modules.autoencoder_kl_wan": "AutoencoderKLWan",
    "modules.longcat_video_dit": "LongCatVideoTransformer3DModel",
}
_KERNELS = {
    "flash_attn_interface": "enable_flashattn3",
    "flash_attn": "enable_flashattn2",
    "xformers": "enable_xformers",
}


def _package() -> dict[str, Any]:
    """The classes of its package, by their names.

    Raises:
        UserError: it is not there, or lacks what it imports; it says what to install.
    """
    try:
        return {cls: getattr(importlib.import_module(f"longcat_video.{home}"), cls) for home, cls in _CLASSES.items()}
    except ImportError as error:
        missing = error.name or str(error)
        if missing.partition(".")[0] == "longcat_video":
            raise UserError(
                "LongCat-Video is not in diffusers, and its own package is not installed",
                "git clone https://github.com/meituan-longcat/LongCat-Video, put that folder on PYTHONPATH, and "
                "pip install einops loguru regex flash-attn xformers",
            ) from None
        raise UserError(
            f"LongCat-Video's own package cannot be imported without {missing}", f"pip install {missing}"
        ) from error


def _digest() -> str:
    """What tells its package's code apart: it has no versions."""
    digest = hashlib.sha256()
    for place in map(Path, importlib.import_module("longcat_video").__path__):
        for file in sorted(place.rglob("*.py")):
            digest.update(file.relative_to(place).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


class LongCatVideo(ChosenModel):
    """LongCat-Video at its own 480p: 93 frames of 832×480 in 50 steps, 37,440 tokens, as the VC paper has it.

    Both branches of guidance are one forward of a batch of two.
    """

    NAME = "longcat-video"
    HUB = "meituan-longcat/LongCat-Video"
    PIPELINE = "LongCatVideoPipeline"
    TRANSFORMER = "dit"
    BRANCHES = 2
    COMPONENTS = ("tokenizer", "text_encoder", "vae", "scheduler", "dit")
    SAMPLING = Sampling(height=480, width=832, frames=93, fps=15, steps=50, guidance=(4.0,))
    TINY = Sampling(height=32, width=48, frames=9, fps=8, steps=3, guidance=(4.0,), max_sequence_length=16)
    ARCHITECTURES: ClassVar = {"full": _FULL, "tiny": _TINY}

    @classmethod
    def facts(cls, weights: str | None = None, revision: str | None = None) -> ModelFacts:
        """See ``ChosenModel.facts``; without its package nothing is looked for or fetched.

        Raises:
            UserError: its package is not installed, or weights that are not to be had.
        """
        _package()
        known, package = super().facts(weights, revision), _digest()
        said = f"{known.weights}; longcat_video {package}"
        return replace(known, weights=said, identity={**known.identity, "package": package})

    @classmethod
    def load(
        cls, device: str, weights: str | None = None, revision: str | None = None, memory: str | None = None
    ) -> Self:
        """See ``ChosenModel.load``.

        Raises:
            UserError: parts are to be offloaded, which its pipeline, all of one device, does not know.
        """
        if memory in ("model", "group"):
            raise UserError(
                f"--memory {memory}: LongCat-Video's own pipeline keeps all its parts on one device",
                "use --memory whole-tiled, or a larger GPU",
            )
        return super().load(device, weights, revision, memory)

    @classmethod
    def layers(cls, config: Mapping[str, Any]) -> int:
        """See ``ChosenModel.layers``."""
        return int(config["depth"])

    @classmethod
    def heads(cls, config: Mapping[str, Any]) -> tuple[int, int]:
        """See ``ChosenModel.heads``."""
        return int(config["num_heads"]), int(config["hidden_size"])

    @classmethod
    def tokens(cls, config: Mapping[str, Any], sampling: Sampling) -> int:
        """See ``ChosenModel.tokens``."""
        _, rows, columns = config["patch_size"]
        video = ((sampling.frames - 1) // 4 + 1) * (sampling.height // 8 // rows) * (sampling.width // 8 // columns)
        return int(video)

    def call(self, prompt: str, sampling: Sampling, generator: torch.Generator) -> Any:
        """See ``PipelineModel.call``: noise is made here, for its pipeline makes it where the model is."""
        pipe, home = self.pipe, importlib.import_module("longcat_video.pipeline_longcat_video")
        shape = (
            1,
            pipe.dit.config.in_channels,
            (sampling.frames - 1) // pipe.vae_scale_factor_temporal + 1,
            sampling.height // pipe.vae_scale_factor_spatial,
            sampling.width // pipe.vae_scale_factor_spatial,
        )
        with mock.patch.object(home, "tqdm", partial(home.tqdm, disable=True)):
            return pipe.generate_t2v(
                prompt=prompt,
                negative_prompt=sampling.negative_prompt,
                height=sampling.height,
                width=sampling.width,
                num_frames=sampling.frames,
                num_inference_steps=sampling.steps,
                guidance_scale=sampling.guidance[0],
                latents=torch.randn(shape, generator=generator),
                max_sequence_length=sampling.max_sequence_length,
                output_type="np",
            )[0]

    @classmethod
    def stored(cls, path: Path, dtype: torch.dtype) -> Any:
        """See ``ChosenModel.stored``."""
        from transformers import AutoTokenizer, UMT5EncoderModel

        found = _package()
        local = {"local_files_only": True}
        return _pipeline(
            found,
            tokenizer=AutoTokenizer.from_pretrained(path, subfolder="tokenizer", **local),
            text_encoder=UMT5EncoderModel.from_pretrained(path, subfolder="text_encoder", dtype=dtype, **local),
            vae=found["AutoencoderKLWan"].from_pretrained(path, subfolder="vae", torch_dtype=torch.float32, **local),
            scheduler=found["FlowMatchEulerDiscreteScheduler"].from_pretrained(path, subfolder="scheduler", **local),
            dit=found["LongCatVideoTransformer3DModel"].from_pretrained(
                path, subfolder="dit", cp_split_hw=[1, 1], torch_dtype=dtype, **local
            ),
        )

    @classmethod
    def random(cls, architecture: Mapping[str, Mapping[str, Any]], make: Make) -> Any:
        """See ``ChosenModel.random``."""
        from transformers import UMT5Config, UMT5EncoderModel

        found = _package()
        config = UMT5Config(vocab_size=len(tokenizer.VOCABULARY), **architecture["text_encoder"])
        dit = {**architecture["dit"], "cp_split_hw": [1, 1], **_kernel()}
        return _pipeline(
            found,
            tokenizer=tokenizer.build(),
            text_encoder=make(lambda: UMT5EncoderModel(config), SEED + 2),
            vae=make(lambda: found["AutoencoderKLWan"](**architecture["vae"]), dtype=torch.float32),
            scheduler=found["FlowMatchEulerDiscreteScheduler"](**architecture["scheduler"]),
            dit=make(lambda: found["LongCatVideoTransformer3DModel"](**dit)),
        )


def _kernel() -> dict[str, bool]:
    """The first kernel that is installed, for what its package computes by itself: attention to the text."""
    from importlib.util import find_spec

    name = next((name for name in _KERNELS if find_spec(name) is not None), None)
    if name is None:
        raise UserError("LongCat-Video computes attention to the text by flash-attn or xformers", "install either")
    return {_KERNELS[name]: True}


def _pipeline(found: Mapping[str, Any], **parts: Any) -> Any:
    """Its pipeline, with its parts by their names as those of diffusers have them."""
    pipe = found["LongCatVideoPipeline"](**parts)
    pipe.components = parts
    pipe.device = "cpu"
    return pipe
