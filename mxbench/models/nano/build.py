"""Build the nano pipeline from a seed: diffusers' own Wan2.2 classes, small, with random weights."""

from __future__ import annotations

from typing import Any

import torch

from mxbench.models.nano import tokenizer

__all__ = ["ARCHITECTURE", "SEED", "pipeline"]

SEED = 0

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
    # Random projections make nearly uniform attention whose output drowns in the residual stream; these factors give
    # rows with a few large weights and an output that matters, so that a method's error can be seen at all.
    "gains": {"qk_norm": 2.0, "v": 6.0, "out": 6.0, "proj_out": 2.0},
}


def pipeline(seed: int = SEED) -> Any:
    """A ``WanPipeline`` on the CPU in FP32; the same weights for the same seed, whatever the caller's generator."""
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
    from transformers import UMT5Config, UMT5EncoderModel

    words = tokenizer.build()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        experts = [WanTransformer3DModel(**ARCHITECTURE["transformer"]).eval() for _ in range(2)]
        vae = AutoencoderKLWan(**ARCHITECTURE["vae"]).eval()
        config = UMT5Config(vocab_size=len(words), **ARCHITECTURE["text_encoder"])
        text_encoder = UMT5EncoderModel(config).eval()
    for expert in experts:
        _sharpen(expert)
    pipe = WanPipeline(
        tokenizer=words,
        text_encoder=text_encoder,
        vae=vae,
        scheduler=UniPCMultistepScheduler(**ARCHITECTURE["scheduler"]),
        transformer=experts[0],
        transformer_2=experts[1],
        **ARCHITECTURE["pipeline"],
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


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
