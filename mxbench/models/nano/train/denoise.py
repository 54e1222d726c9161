"""The stages ``joint`` and ``experts``: flow matching in the VAE's latents, as the pipeline samples from it.

A latent at noise level s in [0,1] is ``(1-s)·x0 + s·noise``, its target ``noise - x0``, its timestep ``1000·s``, with
``s = shift·u / (1 + (shift-1)·u)`` and u uniform: the density of the levels that the sampler visits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mxbench.models.nano import tokenizer
from mxbench.models.nano.draw import draw
from mxbench.models.nano.train.blocks import prepared
from mxbench.models.nano.train.codec import Codec
from mxbench.models.nano.train.data import Feeder, Pool, tokens
from mxbench.models.nano.train.loop import Log
from mxbench.models.nano.train.optimise import optimisers
from mxbench.models.nano.train.options import Options
from mxbench.models.nano.train.state import Session
from mxbench.models.nano.train.text import embed
from mxbench.models.nano.train.trainee import Task, Trainee

__all__ = ["flops", "run_experts", "run_joint"]

_DROPPED = 0.1
"""Share of captions that are left out, for guidance."""
_RENEW = 256
"""Clips drawn and encoded at a time."""
_TAKEN = 8
"""How often a clip is taken from the pool, on average."""


def flops(architecture: Mapping[str, Mapping[str, Any]], n: int = 1280) -> float:
    """Floating-point operations of one training sample: forward and twice that backward, attention recomputed."""
    t = architecture["transformer"]
    width = t["num_attention_heads"] * t["attention_head_dim"]
    linear = 2 * n * (6 * width * width + 2 * width * t["ffn_dim"])
    attention = 4 * n * (n + 64) * width
    return float(t["num_layers"] * (3 * linear + 3.5 * attention))


def _pool(options: Options, session: Session, stage: int, step: int) -> tuple[Feeder, Pool]:
    """Latents of this process's own clips."""
    vae, device = session.parts["vae"], session.world.device
    mean, std = (
        torch.tensor(session.architecture["vae"][k], device=device).view(1, -1, 1, 1, 1)
        for k in ("latents_mean", "latents_std")
    )
    paint, codec = session.compiled(draw), Codec(vae, compiled=options.compile)

    @torch.no_grad()
    def encode(params: dict[str, torch.Tensor]) -> torch.Tensor:
        x = paint(params) * 2 - 1
        with session.autocast():
            latents = codec.encode(x)[0].float()
        return (latents - mean) / std

    feeder = Feeder(
        (options.seed, 4 + stage, session.world.rank, step), 2 if options.toy else _RENEW, device, captions=True
    )
    return feeder, Pool(feeder, encode, options.pool)


def _task(options: Options, session: Session, pool: Pool, dit: Any, low: float, high: float) -> Task:
    """A step on a batch with u between ``low`` and ``high``."""
    device, text_encoder = session.world.device, session.parts["text_encoder"]
    shift = float(session.architecture["scheduler"]["flow_shift"])
    empty = tokens(tokenizer.build(), [""]).to(device)
    n = options.batch["joint"]
    every = max(1, (2 if options.toy else _RENEW) * _TAKEN // n)
    strata = torch.arange(n, device=device)

    def prepare(number: int) -> None:
        if number % every == every - 1:
            pool.renew()

    def loss() -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        ids, x = pool.take(n)
        ids = torch.where(torch.rand(n, 1, device=device) < _DROPPED, empty, ids)
        u = low + (high - low) * (strata + torch.rand(n, device=device)) / n
        s = shift * u / (1 + (shift - 1) * u)
        level = s.view(-1, 1, 1, 1, 1)
        noise = torch.randn_like(x)
        with torch.no_grad():
            text = embed(text_encoder, ids)
        with session.autocast():
            out = dit((1 - level) * x + level * noise, 1000 * s, text, return_dict=False)[0]
        wrong = (out.float() - (noise - x)).square().mean((1, 2, 3, 4))
        told = wrong.detach()
        bins = {"low": s < 0.5, "middle": (s >= 0.5) & (s < 0.875), "high": s >= 0.875}
        return wrong.mean(), {
            k: (told * b).sum() / b.sum().clamp(min=1) for k, b in bins.items() if low == 0 and high == 1
        }

    return Task(prepare, loss)


def run_joint(options: Options, session: Session, log: Log) -> None:
    """Train one DiT over all noise levels."""
    world, parts = session.world, session.parts
    dit = parts["transformer"].requires_grad_(True)
    trainee = Trainee({"transformer": dit}, optimisers(dit, options.rate["joint"], world.device))
    path = session.resume("joint", trainee)
    if not trainee.done:
        log(stage="joint", tflop_a_sample=flops(session.architecture) / 1e12)
        torch.manual_seed(options.seed * 1000 + 100 + world.rank + trainee.step)
        feeder, pool = _pool(options, session, 0, trainee.step)
        log(stage="joint", pool=pool.size, std=float(pool.latents.float().std()))
        with prepared(dit, session):
            task = _task(options, session, pool, dit, 0.0, 1.0)
            session.train("joint", trainee, task, path, log, seconds=options.minutes["joint"] * 60 / world.size)
        feeder.close()
        session.note("joint", trainee, log, processes=world.size)
    dit.load_state_dict(trainee.averaged()["transformer"])
    dit.eval().requires_grad_(False)
    if "expert-2" not in session.facts:
        parts["transformer_2"].load_state_dict(dit.state_dict())


def run_experts(options: Options, session: Session, log: Log) -> None:
    """Train each expert on its own noise levels, on its own GPUs, or one after the other."""
    world = session.world
    if world.size == 1:
        for expert in (0, 1):
            _expert(expert, options, session, world, log, options.minutes["experts"] * 30)
    else:
        mine, half = world.halves()
        own = Log(log.path if mine == 0 else log.path.with_name("log-2.jsonl"), half)
        _expert(mine, options, session, half, own, options.minutes["experts"] * 60 / world.size)
    world.wait()
    for expert in (0, 1):
        trainee = _trainee(expert, options, session)
        trainee.load(options.folder / f"expert-{expert + 1}.pt")
        session.note(f"expert-{expert + 1}", trainee, log)
        part = session.parts[_name(expert)]
        part.load_state_dict(trainee.averaged()[_name(expert)])
        part.eval().requires_grad_(False)


def _name(expert: int) -> str:
    return ("transformer", "transformer_2")[expert]


def _trainee(expert: int, options: Options, session: Session) -> Trainee:
    dit = session.parts[_name(expert)].requires_grad_(True)
    return Trainee({_name(expert): dit}, optimisers(dit, options.rate["experts"], session.world.device))


def _expert(expert: int, options: Options, session: Session, world: Any, log: Log, seconds: float) -> None:
    stage = f"expert-{expert + 1}"
    trainee = _trainee(expert, options, session)
    path = session.resume(stage, trainee)
    if not trainee.done:
        shift = float(session.architecture["scheduler"]["flow_shift"])
        s = float(session.architecture["pipeline"]["boundary_ratio"])
        boundary = s / (shift - (shift - 1) * s)
        low, high = ((boundary, 1.0), (0.0, boundary))[expert]
        torch.manual_seed(options.seed * 1000 + 200 + session.world.rank + trainee.step)
        feeder, pool = _pool(options, session, 1 + expert, trainee.step)
        dit = session.parts[_name(expert)]
        with prepared(dit, session):
            task = _task(options, session, pool, dit, low, high)
            session.train(stage, trainee, task, path, log, seconds=seconds, world=world)
        feeder.close()
    else:
        trainee.save(path)
