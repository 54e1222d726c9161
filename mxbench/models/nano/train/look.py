"""What the networks draw so far: a picture of a few held-out prompts, rendered by the pipeline itself."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mxbench.models.nano import build, heldout
from mxbench.models.nano.scene import caption
from mxbench.models.nano.train.data import TEXT
from mxbench.models.nano.train.loop import Log
from mxbench.models.nano.train.state import Session

__all__ = ["look", "render", "strips"]

_SHOWN = (0, 4, 8, 12, 16)


def render(
    pipe: Any, prompts: Sequence[str], *, steps: int = 8, guidance: tuple[float, float] = (4.0, 3.0), seed: int = 0
) -> np.ndarray:
    """Clips of prompts, uint8 ``[B,17,128,128,3]``; each with a generator of its own, all with one seed."""
    found = pipe(
        list(prompts),
        height=128,
        width=128,
        num_frames=17,
        num_inference_steps=steps,
        guidance_scale=guidance[0],
        guidance_scale_2=guidance[1],
        negative_prompt="",
        max_sequence_length=TEXT,
        generator=[torch.Generator("cpu").manual_seed(seed) for _ in prompts],
        output_type="np",
    ).frames
    return np.asarray(np.round(np.asarray(found) * 255), np.uint8)


def strips(clips: np.ndarray, columns: int = 2) -> np.ndarray:
    """Five frames of each clip side by side, the clips one below the other in ``columns`` columns."""
    rows = [np.concatenate([clip[f] for f in _SHOWN], 1) for clip in clips]
    rows += [np.zeros_like(rows[0])] * (-len(rows) % columns)
    high = len(rows) // columns
    return np.concatenate([np.concatenate(rows[c * high : (c + 1) * high], 0) for c in range(columns)], 1)


def look(session: Session, log: Log) -> None:
    """Render held-out prompts and write ``preview.png`` to the output folder."""
    if "joint" not in session.facts:
        return
    from PIL import Image

    toy = session.options.toy
    prompts = [caption(s) for s in heldout.scenes()[: 1 if toy else 32]]
    parts = {name: copy.deepcopy(part).float().eval() for name, part in session.parts.items()}
    pipe = build.assemble(parts, session.architecture)
    clips = render(pipe, prompts, steps=2 if toy else 8)
    session.options.out.mkdir(parents=True, exist_ok=True)
    Image.fromarray(strips(clips)).save(session.options.out / "preview.png")
    log(preview=len(prompts), mean=float(clips.mean()))
