"""The stage ``vae``: the Wan VAE learns to give the clips back, and to do it from latents of a known scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanAttentionBlock, WanResidualBlock
from torch.nn import functional

from mxbench.models.nano.draw import draw
from mxbench.models.nano.train.codec import Codec
from mxbench.models.nano.train.data import Feeder
from mxbench.models.nano.train.loop import Log
from mxbench.models.nano.train.optimise import for_vae
from mxbench.models.nano.train.options import Options
from mxbench.models.nano.train.state import Session
from mxbench.models.nano.train.trainee import Task, Trainee

__all__ = ["fit_statistics", "psnr", "run"]

_KL = 1e-4
_STATISTICS = 1024


def _loss(
    x: torch.Tensor, out: torch.Tensor, mean: torch.Tensor, log_variance: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Absolute and squared error, the error of edges in space and time, the error of coarse colour, and a light KL."""
    wrong = out - x
    squared = wrong.square().mean()
    edges = (wrong.diff(dim=-1).abs().mean() + wrong.diff(dim=-2).abs().mean()) + 0.5 * wrong.diff(dim=2).abs().mean()
    coarse = functional.avg_pool3d(wrong, (1, 8, 8)).abs().mean()
    kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    loss = wrong.abs().mean() + 4 * squared + edges + 0.5 * coarse + _KL * kl
    return loss, {"db": -10 * torch.log10(squared.detach() / 4), "kl": kl.detach()}


@torch.no_grad()
def _begin(vae: Any) -> None:
    """A start from which it learns several times faster than from diffusers' own: nearly linear, nearly lossless.

    Orthogonal filters, residual branches of nothing, and a narrow posterior, whose noise would drown the latents.
    """
    for module in vae.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Conv3d)):
            torch.nn.init.orthogonal_(module.weight)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
    for module in vae.modules():
        if isinstance(module, WanResidualBlock):
            torch.nn.init.zeros_(module.conv2.weight)
        elif isinstance(module, WanAttentionBlock):
            torch.nn.init.zeros_(module.proj.weight)
    half = vae.config.z_dim
    vae.quant_conv.weight[half:] = 0
    vae.quant_conv.bias[half:] = -6


def run(options: Options, session: Session, log: Log) -> None:
    """Train the VAE, fit the statistics of its latents, and measure it as the pipeline uses it."""
    world = session.world
    vae = session.parts["vae"].to(world.device).train()
    if "vae" not in session.facts:
        torch.manual_seed(options.seed)
        _begin(vae)
    trainee = Trainee({"vae": vae}, for_vae(vae, options.rate["vae"], world.device))
    path = session.resume("vae", trainee)
    if fresh := not trainee.done:
        feeder = Feeder((options.seed, 1, world.rank, trainee.step), options.batch["vae"], world.device, captions=False)
        paint, codec = session.compiled(draw), Codec(vae, compiled=options.compile)

        x = paint(feeder.next()[1])

        @torch.no_grad()
        def prepare(_: int) -> None:
            torch.sub(2 * paint(feeder.next()[1]), 1, out=x)

        def loss() -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
            with session.autocast():
                mean, log_variance = codec.encode(x)
                z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
                out = codec.decode(z)
            return _loss(x, out.float(), mean, log_variance)

        torch.manual_seed(options.seed * 1000 + world.rank + trainee.step)
        torch.backends.cudnn.benchmark = True
        seconds = options.minutes["vae"] * 60 / world.size
        session.train("vae", trainee, Task(prepare, loss), path, log, seconds=seconds)
        torch.backends.cudnn.benchmark = False
        feeder.close()
    vae.load_state_dict(trainee.averaged()["vae"])
    vae.eval().requires_grad_(False)
    if fresh:
        fit_statistics(options, session)
        session.note("vae", trainee, log, processes=world.size, psnr_db=psnr(options, session))
    mean, std = (session.architecture["vae"][k] for k in ("latents_mean", "latents_std"))
    vae.register_to_config(latents_mean=mean, latents_std=std)


@torch.no_grad()
def fit_statistics(options: Options, session: Session) -> None:
    """Write mean and standard deviation of every latent channel into the VAE's architecture."""
    vae, world = session.parts["vae"], session.world
    feeder = Feeder((options.seed, 2, world.rank), options.batch["vae"], world.device, captions=False)
    codec = Codec(vae)
    found = []
    for _ in range(1 if options.toy else -(-_STATISTICS // options.batch["vae"])):
        with session.autocast():
            found.append(codec.encode(draw(feeder.next()[1]) * 2 - 1)[0].float())
    feeder.close()
    latents = torch.cat(found).transpose(0, 1).flatten(1)
    both = torch.stack((latents.mean(1), latents.std(1)))
    world.share([both])
    mean, std = ([round(float(v), 6) for v in row] for row in both)
    session.architecture["vae"] |= {"latents_mean": mean, "latents_std": std}


@torch.no_grad()
def psnr(options: Options, session: Session) -> float:
    """Mean PSNR in dB of clips encoded and decoded in FP32 as the pipeline does it."""
    vae: Any = session.parts["vae"]
    feeder = Feeder((options.seed, 3), 1 if options.toy else 8, session.world.device, captions=False)
    found: list[float] = []
    for _ in range(1 if options.toy else 8):
        x = draw(feeder.next()[1])
        out = vae.decode(vae.encode(x * 2 - 1).latent_dist.mode()).sample / 2 + 0.5
        errors = (out - x).square().mean((1, 2, 3, 4))
        found += [-10 * math.log10(max(float(e), 1e-10)) for e in errors]
    feeder.close()
    return sum(found) / len(found)
