"""How much of what the held-out prompts state is in the clips: ``python -m mxbench.models.nano.evaluate``.

Beside the render stand the reader's accuracy on true clips of the same prompts, and its rate of hits where every clip
is compared with another clip's prompt.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from mxbench.errors import UserError
from mxbench.models.device import resolve
from mxbench.models.nano import build, heldout, weights
from mxbench.models.nano.build import SAMPLING
from mxbench.models.nano.draw import draw, to_device
from mxbench.models.nano.judge import KINDS, compare, rates, total
from mxbench.models.nano.layout import lay_out
from mxbench.models.nano.reader import read
from mxbench.models.nano.scene import Scene, caption, random_scene
from mxbench.models.nano.show import COLUMNS, cut, render, strips
from mxbench.models.placement import placed

__all__ = ["evaluate", "main", "seen", "table", "true_clips"]

_SHIFTS = (7, 13, 29)
"""By how many prompts the clips are moved for the chance rate."""


def seen(n: int, seed: int = 777) -> tuple[Scene, ...]:
    """Scenes of the training distribution, none of which has an object of a held-out prompt."""
    rng = np.random.default_rng(seed)
    return tuple(random_scene(rng) for _ in range(n))


def true_clips(scenes: Sequence[Scene], seed: int = 0) -> np.ndarray:
    """Drawn clips of scenes, uint8 ``[B,17,128,128,3]``."""
    rng = np.random.default_rng(seed)
    clips, fit = lay_out(scenes, rng)
    while not fit.all():
        clips, fit = lay_out(scenes, rng)
    parts = [draw(to_device(clips.take(slice(i, i + 8)), "cpu")) for i in range(0, len(scenes), 8)]
    return np.concatenate([(p * 255).round().byte().permute(0, 2, 3, 4, 1).numpy() for p in parts])


def evaluate(clips: np.ndarray, scenes: Sequence[Scene]) -> dict[str, dict[str, float]]:
    """Rates of hits by kind, of the clips ``[B,F,H,W,3]`` and of the clips beside other prompts."""
    readings = [read(clip) for clip in clips]
    shuffled = [
        compare(reading, scene)
        for shift in sorted({shift % len(scenes) for shift in _SHIFTS} - {0})
        for reading, scene in zip(readings, [*scenes[shift:], *scenes[:shift]], strict=True)
    ]
    straight = [compare(reading, scene) for reading, scene in zip(readings, scenes, strict=True)]
    # A single clip has no other prompt.
    return {"clips": rates(total(straight)), "shuffled": rates(total(shuffled)) if shuffled else {}}


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Rates in percent, a line a kind."""
    lines = [f"{'':12}" + "".join(f"{name:>16}" for name in columns)]
    for kind in (*KINDS, "all"):
        cells = (f"{100 * rates[kind]:15.1f}%" if kind in rates else f"{'–':>16}" for rates in columns.values())
        lines.append(f"{kind:12}" + "".join(cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command.

    Raises:
        UserError: weights that are missing or damaged, or a device that is not there.
    """
    parser = argparse.ArgumentParser("python -m mxbench.models.nano.evaluate", description=__doc__)
    add = parser.add_argument
    add("--weights", type=Path, default=weights.SHIPPED, help="folder of weights; those that ship by default")
    add("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    add("--half", action="store_true", help="in FP16, all but the VAE; FP32 otherwise")
    add("--limit", type=int, help="only the first prompts")
    add("--seen", type=int, metavar="N", help="N prompts of the training distribution instead, to choose settings on")
    add("--seed", type=int, default=0, help="of the noise")
    add("--steps", type=int, default=SAMPLING.steps)
    add("--guidance", type=float, nargs=2, default=SAMPLING.guidance)
    add("--batch", type=int, default=8)
    add("--out", type=Path, help="write strips.png here, all clips in one picture")
    add("--columns", type=int, default=COLUMNS, help="of that picture")
    add("--strips", type=Path, help="read the clips of such a picture and render nothing")
    add("--json", action="store_true")
    got = parser.parse_args(arguments)
    for name in ("limit", "seen", "steps", "batch", "columns"):
        if (value := getattr(got, name)) is not None and value < 1:
            raise UserError(f"--{name} {value} leaves nothing to do", "give 1 or more")
    from PIL import Image

    scenes = (heldout.scenes() if got.seen is None else seen(got.seen))[: got.limit]
    if got.strips is not None:
        try:
            clips = cut(np.asarray(Image.open(got.strips).convert("RGB")))[: len(scenes)]
        except (OSError, ValueError):
            raise UserError(f"{got.strips} is no picture that --out has made", "give its strips.png") from None
        if len(clips) < len(scenes):
            raise UserError(f"{got.strips} holds {len(clips)} clips of {len(scenes)} prompts", "give that --limit too")
    else:
        device = resolve(got.device)
        pipe = placed(build.trained(got.weights), device, half=got.half)
        prompts = [caption(s) for s in scenes]
        with torch.no_grad():
            clips = render(pipe, prompts, steps=got.steps, guidance=tuple(got.guidance), seed=got.seed, batch=got.batch)
    if got.out is not None:
        got.out.mkdir(parents=True, exist_ok=True)
        Image.fromarray(strips(clips, got.columns)).save(got.out / "strips.png")
    rendered = evaluate(clips, scenes)
    columns = {
        "render": rendered["clips"],
        "true clips": evaluate(true_clips(scenes), scenes)["clips"],
        "shuffled": rendered["shuffled"],
    }
    print(json.dumps(columns) if got.json else table(columns))  # noqa: T201 - the command's result


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
