"""Pipelines with tiny random transformers and without text encoders: their calls bring embeddings along."""

from __future__ import annotations

from typing import Any

import torch


def _random(transformer: torch.nn.Module) -> Any:
    """Weights from a seed, large enough that attention matters."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=g) * 1.5 / parameter[0].numel() ** 0.5)
            elif not name.endswith("weight"):  # weights of norms stay one
                parameter.copy_(torch.randn(parameter.shape, generator=g) * 0.1)
    return transformer.eval()


def hunyuan() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoPipeline, HunyuanVideoTransformer3DModel

    transformer = HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=32, num_layers=2, num_single_layers=3,
        num_refiner_layers=1, text_embed_dim=16, pooled_projection_dim=8, rope_axes_dim=(8, 12, 12),
    )  # fmt: skip
    parts = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "vae"))
    return HunyuanVideoPipeline(
        transformer=_random(transformer), scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0), **parts
    )


def call_hunyuan(pipe: Any, *, text: int = 5, padded: int = 8, poison: float = 0.0, steps: int = 2) -> torch.Tensor:
    """Latents of a call with ``text`` real tokens of ``padded``, the others full of ``poison``."""
    g = torch.Generator().manual_seed(1)
    embeds = torch.randn(1, padded, 16, generator=g)
    embeds[:, text:] = poison
    mask = (torch.arange(padded) < text)[None].long()
    return pipe(
        prompt_embeds=embeds, prompt_attention_mask=mask, pooled_prompt_embeds=torch.randn(1, 8, generator=g),
        height=32, width=48, num_frames=9, num_inference_steps=steps, output_type="latent",
        generator=torch.Generator().manual_seed(2),
    ).frames  # fmt: skip


def hunyuan15() -> Any:
    from diffusers import (
        AutoencoderKLHunyuanVideo15,
        ClassifierFreeGuidance,
        FlowMatchEulerDiscreteScheduler,
        HunyuanVideo15Pipeline,
        HunyuanVideo15Transformer3DModel,
    )

    transformer = HunyuanVideo15Transformer3DModel(
        in_channels=9, out_channels=4, num_attention_heads=2, attention_head_dim=32, num_layers=3, num_refiner_layers=1,
        text_embed_dim=16, text_embed_2_dim=12, image_embed_dim=10, rope_axes_dim=(8, 12, 12), target_size=640,
    )  # fmt: skip
    vae = AutoencoderKLHunyuanVideo15(
        latent_channels=4, block_out_channels=(8, 8, 8, 8, 8), layers_per_block=1, spatial_compression_ratio=16
    )
    parts = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    pipe = HunyuanVideo15Pipeline(
        transformer=_random(transformer),
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
        guider=ClassifierFreeGuidance(guidance_scale=6.0),
        **parts,
    )
    pipe.vision_num_semantic_tokens = 3
    return pipe


def call_hunyuan15(pipe: Any, *, text: int = 5, poison: float = 0.0, steps: int = 2) -> torch.Tensor:
    """Latents of a call with ``text`` real tokens of 8, and 2 of 6 of the second encoder."""
    g = torch.Generator().manual_seed(1)
    given: dict[str, Any] = {}
    for prefix in ("", "negative_"):
        for suffix, width, real, padded in (("", 16, text, 8), ("_2", 12, 2, 6)):
            embeds = torch.randn(1, padded, width, generator=g)
            embeds[:, real:] = poison
            given[f"{prefix}prompt_embeds{suffix}"] = embeds
            given[f"{prefix}prompt_embeds_mask{suffix}"] = (torch.arange(padded) < real)[None].long()
    return pipe(
        **given, height=64, width=96, num_frames=9, num_inference_steps=steps, output_type="latent",
        generator=torch.Generator().manual_seed(2),
    ).frames  # fmt: skip


def minimax() -> Any:
    """Of its modular pipeline the parts that the seam reads."""
    from diffusers import MiniMaxH3ModularPipeline, MiniMaxH3Transformer3DModel
    from diffusers.schedulers.scheduling_minimax_h3 import MiniMaxH3Scheduler

    transformer = MiniMaxH3Transformer3DModel(
        num_attention_heads=2, attention_head_dim=32, hidden_size=48, num_layers=3, num_refiner_layers=1, ffn_dim=64,
        in_channels=4, audio_in_channels=6, text_dim=16, freq_dim=32, time_embed_hidden_dim=48, time_embed_dim=24,
        rope_freq_dim=4,
    )  # fmt: skip
    pipe = MiniMaxH3ModularPipeline()
    pipe.update_components(transformer=_random(transformer), scheduler=MiniMaxH3Scheduler())
    pipe.scheduler.set_timesteps(4)
    return pipe
