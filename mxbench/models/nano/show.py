"""Render prompts with a nano pipeline in batches, and put clips into one picture and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mxbench.models.nano.build import SAMPLING

__all__ = ["COLUMNS", "SHOWN", "cut", "render", "strips"]

SHOWN = (0, 4, 8, 12, 16)
"""The frames of a clip that a strip shows."""
COLUMNS = 4


def render(
    pipe: Any,
    prompts: Sequence[str],
    *,
    steps: int = SAMPLING.steps,
    guidance: tuple[float, ...] = SAMPLING.guidance,
    seed: int = 0,
    batch: int = 64,
) -> np.ndarray:
    """Clips of prompts, uint8 ``[B,17,128,128,3]``; each starts from the noise that ``seed`` alone would give it."""
    found = []
    for at in range(0, len(prompts), batch):
        some = list(prompts[at : at + batch])
        video = pipe(
            some,
            height=SAMPLING.height,
            width=SAMPLING.width,
            num_frames=SAMPLING.frames,
            num_inference_steps=steps,
            guidance_scale=guidance[0],
            guidance_scale_2=guidance[1],
            negative_prompt="",
            max_sequence_length=SAMPLING.max_sequence_length,
            generator=[torch.Generator("cpu").manual_seed(seed) for _ in some],
            output_type="np",
        ).frames
        found.append(np.round(np.asarray(video) * 255).astype(np.uint8))
    return np.concatenate(found)


def strips(clips: np.ndarray, columns: int = COLUMNS) -> np.ndarray:
    """Five frames of each clip side by side, the clips one below the other in ``columns`` columns."""
    rows = [np.concatenate([clip[f] for f in SHOWN], 1) for clip in clips]
    rows += [np.zeros_like(rows[0])] * (-len(rows) % columns)
    high = len(rows) // columns
    return np.concatenate([np.concatenate(rows[c * high : (c + 1) * high], 0) for c in range(columns)], 1)


def cut(picture: np.ndarray, edge: int = 128) -> np.ndarray:
    """The clips ``[B,5,H,W,3]`` of a picture that :func:`strips` made."""
    n = len(SHOWN)
    tall, wide = picture.shape[0] // edge, picture.shape[1] // (edge * n)
    tiles = picture.reshape(tall, edge, wide, n, edge, 3)
    result: np.ndarray = tiles.transpose(2, 0, 3, 1, 4, 5).reshape(wide * tall, n, edge, edge, 3)
    return result
