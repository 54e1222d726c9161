"""What the networks draw so far: the held-out prompts, rendered by the pipeline itself, and what the VAE gives back."""

from __future__ import annotations

import copy

import numpy as np
import torch

from mxbench.models.nano import build, heldout
from mxbench.models.nano.build import SAMPLING
from mxbench.models.nano.draw import draw, to_device
from mxbench.models.nano.layout import sample
from mxbench.models.nano.scene import caption
from mxbench.models.nano.show import render, strips
from mxbench.models.nano.train.loop import Log
from mxbench.models.nano.train.state import Session

__all__ = ["look"]


@torch.no_grad()
def _again(session: Session, n: int) -> np.ndarray:
    """True clips and, below each, what the VAE makes of them."""
    _, clips = sample(np.random.default_rng(session.options.seed + 99), n)
    x = draw(to_device(clips, session.world.device))
    vae = session.parts["vae"]
    out = vae.decode(vae.encode(x * 2 - 1).latent_dist.mode()).sample / 2 + 0.5
    both = torch.stack((x, out.clamp(0, 1)), 1).flatten(0, 1).permute(0, 2, 3, 4, 1)
    return np.asarray((both * 255).round().byte().cpu().numpy())


def look(session: Session, log: Log) -> None:
    """Write ``vae.png``, and ``preview.png`` with all held-out prompts, to the output folder."""
    from PIL import Image

    toy, out = session.options.toy, session.options.out
    out.mkdir(parents=True, exist_ok=True)
    if "vae" in session.facts:
        Image.fromarray(strips(_again(session, 1 if toy else 12), 1 if toy else 4)).save(out / "vae.png")
    if "joint" not in session.facts:
        return
    prompts = [caption(s) for s in heldout.scenes()[: 1 if toy else None]]
    parts = {name: copy.deepcopy(part).float().eval() for name, part in session.parts.items()}
    clips = render(build.assemble(parts, session.architecture), prompts, steps=2 if toy else SAMPLING.steps)
    Image.fromarray(strips(clips, 1 if toy else 4)).save(out / "preview.png")
    log(preview=len(prompts), mean=float(clips.mean()))
