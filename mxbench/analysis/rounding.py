"""How far a rounding moves a method's render: ``python -m mxbench.analysis.rounding --method mxattn``.

Two implementations of a method differ by the order in which they sum FP32 numbers. Exact attention hardly notices: that
is the noise floor of a table. A quantiser makes a jump of a difference that crosses one of its boundaries, every layer
and step makes more of them, and the renders part. Here each method is rendered as it is and with every output of
attention multiplied by 1 + 2^-23·n, n Gaussian; the PSNR between the two is the method's own noise floor. No two
implementations can be expected to draw pictures that are closer, unless they are equal to the bit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from statistics import fmean
from typing import Any

import numpy as np
import torch

from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState
from mxbench.dispatch import attend
from mxbench.errors import UserError
from mxbench.metrics.fidelity import psnr
from mxbench.models.attach import attach
from mxbench.models.base import Sampling
from mxbench.models.device import fits
from mxbench.models.render import PipelineModel
from mxbench.runs.plan import expand
from mxbench.runs.recipe import parse
from mxbench.video import Clip, to_uint8

__all__ = ["ROUNDING", "Moved", "main", "moved", "table"]

ROUNDING = 2.0**-23
"""Standard deviation of the relative change of an output: one spacing of FP32 at 1."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One prompt rendered by a method, and again with roundings; PSNR in dB, each frame capped at 100.

    Attributes:
        method: its name.
        prompt: the text.
        from_fp16: of the method's render against the FP16 render.
        again_from_fp16: of the moved render against the FP16 render.
        apart: between the method's two renders.
    """

    method: str
    prompt: str
    from_fp16: float
    again_from_fp16: float
    apart: float


class _Attention:
    """A method by the reference, in FP32 whatever the model's dtype; every output moved by ``size``."""

    def __init__(self, spec: AttentionSpec, size: float) -> None:
        self._spec, self._size, self._state = spec, size, GroupingState()
        self._dice = torch.Generator("cpu").manual_seed(0)
        self.seam: attach | None = None

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert self.seam is not None
        site = self.seam.site
        out = attend(q.float(), k.float(), v.float(), self._spec, impl="reference", site=site, state=self._state)
        if self._size:
            out = out * (1 + self._size * torch.randn(out.shape, generator=self._dice).to(out.device))
        return out.to(q.dtype)


def moved(
    model: PipelineModel,
    methods: Sequence[tuple[str, AttentionSpec]],
    prompt: str,
    *,
    sampling: Sampling,
    seed: int = 0,
    size: float = ROUNDING,
) -> list[Moved]:
    """Render a prompt by each method, twice, and by FP16.

    Args:
        model: a loaded model that is a diffusers pipeline.
        methods: names and what they compute.
        prompt: what to render.
        sampling: of each render.
        seed: of the noise.
        size: of the roundings.

    Raises:
        UserError: whatever ``attach`` refuses.
    """

    def draw(spec: AttentionSpec, by: float) -> Clip:
        attention = _Attention(spec, by)
        with attach(model.pipe, attention) as attention.seam:
            video = model.pipe(
                prompt,
                **model.arguments(sampling),
                generator=torch.Generator("cpu").manual_seed(seed),
                output_type="np",
            ).frames[0]
        return Clip(to_uint8(np.asarray(video)), Fraction(sampling.fps))

    exact, found = draw(AttentionSpec(), 0.0), []
    for name, spec in methods:
        one, other = draw(spec, 0.0), draw(spec, size)
        found.append(Moved(name, prompt, _psnr(one, exact), _psnr(other, exact), _psnr(other, one)))
    return found


def _psnr(clip: Clip, reference: Clip) -> float:
    value = psnr(clip, reference).value
    assert value is not None
    return value


def table(found: Sequence[Moved]) -> str:
    """A line a method in Markdown, means over prompts."""
    lines = [
        "| method | N | PSNR to FP16 | and with roundings | between the two | least |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(each.method for each in found):
        own = [each for each in found if each.method == name]
        means = (fmean(getattr(each, field) for each in own) for field in ("from_fp16", "again_from_fp16", "apart"))
        cells = " | ".join(f"{mean:.2f}" for mean in means)
        lines.append(f"| {name} | {len(own)} | {cells} | {min(each.apart for each in own):.2f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command.

    Raises:
        UserError: a name that does not exist, a model that is no pipeline, what ``attach`` refuses.
    """
    parser = argparse.ArgumentParser("python -m mxbench.analysis.rounding", description=__doc__)
    add = parser.add_argument
    add("--model", default="nano")
    add("--weights", help="a folder, a hub id, random or random:tiny (default: the model's own)")
    add("--method", action="append", help="may be repeated (default: fp16, mxfp4, mxattn, nvfp4-sage, sage2, vc8)")
    add("--limit", type=int, default=4, help="prompts")
    add("--steps", type=int, help="denoising steps (default: the model's)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    add("--json", action="store_true", help="every prompt, for programs")
    got = parser.parse_args(arguments)
    names = got.method or ["fp16", "mxfp4", "mxattn", "nvfp4-sage", "sage2", "vc8"]
    fields: dict[str, Any] = {
        "model": got.model,
        "weights": got.weights,
        "limit": got.limit,
        "methods": names,
        "noise_floor": False,
    }
    plan = expand(parse(fields | {"sampling": {} if got.steps is None else {"steps": got.steps}}), got.device)
    specs = {row.key: row.entry.schedule.main.spec for row in plan.rows}
    model = plan.load()
    if not isinstance(model, PipelineModel):
        raise UserError(f"{got.model} is no diffusers pipeline", "choose a model of `mxbench list models` that is one")
    found: list[Moved] = []
    with fits(plan.device, plan.memory):
        for prompt in plan.prompts:
            methods = [(name, spec) for name in names if (spec := specs[name]) is not None]
            found += moved(model, methods, prompt.text, sampling=plan.sampling)
            print(f"{len(found) // len(methods)}/{len(plan.prompts)}", file=sys.stderr)  # noqa: T201
    print(json.dumps([asdict(each) for each in found], indent=1) if got.json else table(found))  # noqa: T201


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
