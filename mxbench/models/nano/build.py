"""Build the nano pipeline: diffusers' own Wan2.2 classes, small, with weights from a seed or from those that ship."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mxbench.models.base import Sampling
from mxbench.models.nano import tokenizer, weights

__all__ = ["ARCHITECTURE", "SAMPLING", "SEED", "assemble", "modules", "pipeline", "trained"]

SEED = 0

SAMPLING = Sampling(height=128, width=128, frames=17, fps=8, steps=10, guidance=(4.0, 3.0), max_sequence_length=64)
"""How the model is sampled where nothing else is said. Steps were chosen on prompts that are not held out."""

ARCHITECTURE: dict[str, dict[str, Any]] = {
    # Patches of one latent cell give 1,280 tokens for 17 frames of 128×128: ten key tiles. Heads as in the real models.
    "transformer": {
        "patch_size": [1, 1, 1],
        "num_attention_heads": 2,
        "attention_head_dim": 128,
        "in_channels": 16,
        "out_channels": 16,
        "text_dim": 128,
        "freq_dim": 256,
        "ffn_dim": 1024,
        "num_layers": 8,
        "cross_attn_norm": True,
    },
    "vae": {
        "base_dim": 16,
        "z_dim": 16,
        "dim_mult": [1, 2, 2],
        "temperal_downsample": [True, True],
        "patch_size": 2,
        "in_channels": 12,
        "out_channels": 12,
        "scale_factor_spatial": 8,
        "scale_factor_temporal": 4,
    },
    "text_encoder": {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4},
    "scheduler": {
        "prediction_type": "flow_prediction",
        "use_flow_sigmas": True,
        "flow_shift": 3.0,
        "num_train_timesteps": 1000,
    },
    "pipeline": {"boundary_ratio": 0.875},
    # Of random weights only. Random projections make nearly uniform attention whose output drowns in the residual
    # stream; these factors give rows with a few large weights and an output that matters, so that a method's error
    # can be seen at all.
    "gains": {"qk_norm": 2.0, "v": 6.0, "out": 6.0, "proj_out": 2.0},
}


def modules(architecture: Mapping[str, Mapping[str, Any]] = ARCHITECTURE, seed: int = SEED) -> dict[str, Any]:
    """The four networks on the CPU in FP32: ``vae``, ``text_encoder``, ``transformer`` and ``transformer_2``.

    The same random weights for the same seed, whatever the caller's generator.
    """
    from diffusers import AutoencoderKLWan, WanTransformer3DModel
    from transformers import UMT5Config, UMT5EncoderModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        experts = [WanTransformer3DModel(**architecture["transformer"]).eval() for _ in range(2)]
        vae = AutoencoderKLWan(**architecture["vae"]).eval()
        config = UMT5Config(vocab_size=len(tokenizer.VOCABULARY), **architecture["text_encoder"])
        text_encoder = UMT5EncoderModel(config).eval()
    return {"vae": vae, "text_encoder": text_encoder, "transformer": experts[0], "transformer_2": experts[1]}


def assemble(parts: Mapping[str, Any], architecture: Mapping[str, Mapping[str, Any]] = ARCHITECTURE) -> Any:
    """The ``WanPipeline`` of four networks."""
    from diffusers import UniPCMultistepScheduler, WanPipeline

    pipe = WanPipeline(
        tokenizer=tokenizer.build(),
        scheduler=UniPCMultistepScheduler(**architecture["scheduler"]),
        **parts,
        **architecture["pipeline"],
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def pipeline(seed: int = SEED) -> Any:
    """A ``WanPipeline`` on the CPU in FP32 with random weights; the same for the same seed."""
    parts = modules(seed=seed)
    for name in ("transformer", "transformer_2"):
        _sharpen(parts[name])
    return assemble(parts)


def trained(folder: Path = weights.SHIPPED) -> Any:
    """A ``WanPipeline`` on the CPU in FP32 with the weights of a folder, by default those that come with mxbench.

    Raises:
        UserError: the weights are missing, damaged, or of another architecture.
    """
    found = weights.load(folder)
    parts = modules(found.architecture)
    # Of a training that stopped before its experts, one DiT serves all noise levels.
    states = {"transformer_2": found.parts.get("transformer", {}), **found.parts}
    for name, part in parts.items():
        weights.fill(part, states.get(name, {}))
    return assemble(parts, found.architecture)


@torch.no_grad()
def _sharpen(transformer: Any) -> None:
    gains = ARCHITECTURE["gains"]
    transformer.proj_out.weight *= gains["proj_out"]
    for block in transformer.blocks:
        attention = block.attn1
        attention.norm_q.weight *= gains["qk_norm"]
        attention.norm_k.weight *= gains["qk_norm"]
        attention.to_v.weight *= gains["v"]
        attention.to_out[0].weight *= gains["out"]
