"""A transformer that calls attention as LongCat-Video's does: ``_process_attn(q, k, v, shape)`` on ``[B,H,N,D]``."""

from __future__ import annotations

from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.enable_bsa = heads, False
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def _process_attn(self, q, k, v, shape):
        return nn.functional.scaled_dot_product_attention(q, k, v)

    def forward(self, x, shape=None):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(self._process_attn(q, k, v, shape).transpose(1, 2).reshape(b, n, -1))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attn, self.norm, self.text = Attention(dim, heads), nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x, y, shape):
        x = x + self.attn(self.norm(x), shape=shape)
        return x + self.text(y)


class LongCatVideoTransformer3DModel(ModelMixin, ConfigMixin):
    @register_to_config
    def __init__(
        self,
        in_channels=16,
        out_channels=16,
        hidden_size=64,
        depth=3,
        num_heads=2,
        caption_channels=32,
        mlp_ratio=4,
        adaln_tembed_dim=32,
        frequency_embedding_size=32,
        patch_size=(1, 2, 2),
        enable_flashattn3=False,
        enable_flashattn2=False,
        enable_xformers=False,
        cp_split_hw=None,
        text_tokens_zero_pad=False,
    ) -> None:
        super().__init__()
        if not enable_xformers:
            raise RuntimeError("no kernel is enabled")
        self.patch_size, self.cp_split_hw = patch_size, cp_split_hw
        self.into = nn.Conv3d(in_channels, hidden_size, patch_size, patch_size)
        self.caption = nn.Linear(caption_channels, hidden_size)
        self.blocks = nn.ModuleList(Block(hidden_size, num_heads) for _ in range(depth))
        self.out = nn.ConvTranspose3d(hidden_size, out_channels, patch_size, patch_size)

    def disable_bsa(self):
        for block in self.blocks:
            block.attn.enable_bsa = False

    def forward(
        self,
        hidden_states,
        timestep,
        encoder_hidden_states,
        encoder_attention_mask=None,
        num_cond_latents=0,
        kv_cache_dict={},  # noqa: B006 - as it is there
    ):
        x = self.into(hidden_states) * (1 + timestep.view(-1, 1, 1, 1, 1) / 1000)
        shape = x.shape[2:]
        mask = encoder_attention_mask[:, :, None]
        text = (encoder_hidden_states.squeeze(1) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        y, x = self.caption(text), x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, y, tuple(shape))
        return self.out(x.transpose(1, 2).unflatten(2, shape)).float()
