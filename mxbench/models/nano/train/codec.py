"""The Wan VAE on whole clips. diffusers goes frame group by frame group with a cache; this computes the same at once.

Training needs it: one graph of 17 frames is several times faster than five of one to four, and ``decode`` clamps. A
causal convolution over three frames is one planar convolution over their stacked channels, which GPUs do best. A test
holds both ways equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResample, WanResidualBlock, patchify, unpatchify
from torch.nn import functional

__all__ = ["Codec"]

# All inner functions take planes [B·T,C,H,W] and the number of frames T.


def _planar(layer: Any, stacked: torch.Tensor) -> torch.Tensor:
    weight = layer.weight.permute(0, 2, 1, 3, 4).flatten(1, 2)
    high, wide = weight.shape[-2:]
    # Channels last on both sides, or each convolution turns its operands itself, there and back.
    weight, stacked = (x.contiguous(memory_format=torch.channels_last) for x in (weight, stacked))
    return functional.conv2d(stacked, weight, layer.bias, padding=(high // 2, wide // 2))


def _causal(layer: Any, x: torch.Tensor, frames: int) -> torch.Tensor:
    """A causal convolution: each frame sees itself and two before it, zeros before the first."""
    if layer.kernel_size[0] == 1:
        return _planar(layer, x)
    padded = functional.pad(x.unflatten(0, (-1, frames)), (0, 0, 0, 0, 0, 0, 2, 0))
    return _planar(layer, torch.cat((padded[:, :-2], padded[:, 1:-1], padded[:, 2:]), 2).flatten(0, 1))


def _norm(layer: Any, x: torch.Tensor) -> torch.Tensor:
    scaled = functional.normalize(x.float(), dim=1) * (layer.scale * layer.gamma.view(1, -1, 1, 1))
    return functional.silu(scaled).to(x.dtype)


def _residual(block: Any, x: torch.Tensor, frames: int) -> torch.Tensor:
    shortcut = x if isinstance(block.conv_shortcut, torch.nn.Identity) else _causal(block.conv_shortcut, x, frames)
    x = _causal(block.conv1, _norm(block.norm1, x), frames)
    return _causal(block.conv2, _norm(block.norm2, x), frames) + shortcut


def _resample(layer: Any, x: torch.Tensor, frames: int) -> tuple[torch.Tensor, int]:
    if layer.mode == "upsample3d" and frames > 1:
        # The first frame stays one frame, and those after it never see it.
        split = x.unflatten(0, (-1, frames))
        pairs = _causal(layer.time_conv, split[:, 1:].flatten(0, 1), frames - 1)
        pairs = pairs.unflatten(1, (2, -1)).flatten(0, 1).unflatten(0, (-1, 2 * (frames - 1)))
        frames = 2 * frames - 1
        x = torch.cat((split[:, :1], pairs), 1).flatten(0, 1)
    x = layer.resample(x)
    if layer.mode == "downsample3d" and frames > 1:
        split = x.unflatten(0, (-1, frames))
        threes = torch.cat((split[:, :-2:2], split[:, 1:-1:2], split[:, 2::2]), 2).flatten(0, 1)
        frames = (frames + 1) // 2
        rest = _planar(layer.time_conv, threes).unflatten(0, (-1, frames - 1))
        x = torch.cat((split[:, :1], rest), 1).flatten(0, 1)
    return x, frames


def _in_float32(layer: Any, x: torch.Tensor, frames: int) -> torch.Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return _causal(layer, x.float(), frames)


class Codec:
    """A Wan VAE without attention on its scales, on whole clips.

    Args:
        vae: an ``AutoencoderKLWan``; its own parameters are used, so gradients reach them.
        compiled: compile the residual blocks, one compilation for all of one shape.
    """

    def __init__(self, vae: Any, *, compiled: bool = False) -> None:
        self._vae, self._patch = vae, int(vae.config.patch_size)
        self._residual: Callable[..., torch.Tensor] = _residual
        if compiled:
            # Every shape of a block counts as a compilation again, and past the limit they would run uncompiled.
            torch._dynamo.config.recompile_limit = 64
            self._residual = torch.compile(_residual, dynamic=False)

    def _middle(self, block: Any, x: torch.Tensor, frames: int) -> torch.Tensor:
        x = self._residual(block.resnets[0], x, frames)
        for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
            x = self._residual(resnet, attention(x.unsqueeze(2)).squeeze(2), frames)
        return x

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log variance of the latents ``[B,16,5,16,16]`` of clips in [-1,1] ``[B,3,17,128,128]``."""
        encoder = self._vae.encoder
        n, frames = x.shape[0], x.shape[2]
        x = patchify(x, self._patch).transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)
        x = _causal(encoder.conv_in, x, frames)
        for layer in encoder.down_blocks:
            if isinstance(layer, WanResample):
                x, frames = _resample(layer, x, frames)
            elif isinstance(layer, WanResidualBlock):
                x = self._residual(layer, x, frames)
            else:
                raise TypeError(type(layer).__name__)
        x = _norm(encoder.norm_out, self._middle(encoder.mid_block, x, frames))
        x = _in_float32(self._vae.quant_conv, _in_float32(encoder.conv_out, x, frames), frames)
        mean, log_variance = x.unflatten(0, (n, frames)).transpose(1, 2).chunk(2, 1)
        return mean, log_variance.clamp(-30, 20)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """Clips ``[B,3,17,128,128]`` of latents; not clamped."""
        decoder = self._vae.decoder
        n, frames = z.shape[0], z.shape[2]
        x = z.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)
        x = _causal(decoder.conv_in, _causal(self._vae.post_quant_conv, x, frames), frames)
        x = self._middle(decoder.mid_block, x, frames)
        for block in decoder.up_blocks:
            for resnet in block.resnets:
                x = self._residual(resnet, x, frames)
            if block.upsamplers is not None:
                x, frames = _resample(block.upsamplers[0], x, frames)
        x = _in_float32(decoder.conv_out, _norm(decoder.norm_out, x), frames)
        result: torch.Tensor = unpatchify(x.unflatten(0, (n, frames)).transpose(1, 2), self._patch)
        return result
