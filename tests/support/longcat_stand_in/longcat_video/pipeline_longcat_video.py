"""A pipeline that samples as LongCat-Video's does, both branches of guidance in one batch."""

from __future__ import annotations

import numpy as np
import torch
from tqdm import tqdm

from longcat_video.modules import longcat_video_dit  # noqa: F401 - it comes with it


class LongCatVideoPipeline:
    def __init__(self, tokenizer, text_encoder, vae, scheduler, dit) -> None:
        self.tokenizer, self.text_encoder, self.vae = tokenizer, text_encoder, vae
        self.scheduler, self.dit, self.device = scheduler, dit, "cuda"
        self.vae_scale_factor_temporal = vae.config.scale_factor_temporal
        self.vae_scale_factor_spatial = vae.config.scale_factor_spatial

    def to(self, device):
        self.device = device
        for part in (self.dit, self.text_encoder, self.vae):
            part.to(device)
        return self

    @torch.no_grad()
    def generate_t2v(
        self,
        prompt=None,
        negative_prompt=None,
        height=480,
        width=832,
        num_frames=93,
        num_inference_steps=50,
        guidance_scale=4.0,
        latents=None,
        output_type="np",
        max_sequence_length=512,
    ):
        told = self.tokenizer(
            [negative_prompt, prompt], padding="max_length", max_length=max_sequence_length, truncation=True,
            return_tensors="pt",
        ).to(self.device)  # fmt: skip
        text = self.text_encoder(told.input_ids, told.attention_mask).last_hidden_state[:, None]
        latents = latents.to(self.device, torch.float32)
        self.scheduler.set_timesteps(sigmas=np.linspace(1, 0.001, num_inference_steps), device=self.device)
        for t in tqdm(self.scheduler.timesteps, desc="Denoising"):
            out = self.dit(
                hidden_states=torch.cat([latents] * 2).to(self.dit.dtype),
                timestep=t.expand(2).to(self.dit.dtype),
                encoder_hidden_states=text.to(self.dit.dtype),
                encoder_attention_mask=told.attention_mask,
            )
            without, with_prompt = out.chunk(2)
            out = without + guidance_scale * (with_prompt - without)
            latents = self.scheduler.step(-out, t, latents, return_dict=False)[0]
        video = self.vae.decode(latents.to(self.vae.dtype), return_dict=False)[0]
        return (video / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 4, 1).float().cpu().numpy()
