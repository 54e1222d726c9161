"""Render a prompt with a diffusers pipeline, and prove that the seam by itself changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from mxbench.errors import CellFailed, UserError
from mxbench.models.attach import attach, family_of
from mxbench.models.base import Render, Sampling
from mxbench.policy import Schedule
from mxbench.video import to_uint8

__all__ = ["PipelineModel"]


class PipelineModel:
    """The parts of ``VideoModel`` that every diffusers pipeline of a known family shares."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.family = family_of(pipe)

    def arguments(self, sampling: Sampling) -> dict[str, Any]:
        """Sampling in the pipeline's own words."""
        high, low = (*sampling.guidance, None)[:2]
        return {
            "height": sampling.height,
            "width": sampling.width,
            "num_frames": sampling.frames,
            "num_inference_steps": sampling.steps,
            "guidance_scale": high,
            "guidance_scale_2": low,
            "negative_prompt": sampling.negative_prompt,
            "max_sequence_length": sampling.max_sequence_length,
        }

    def call(self, prompt: str, sampling: Sampling, generator: torch.Generator) -> Any:
        """The frames of a call of the pipeline, ``[F,H,W,3]`` in [0, 1]."""
        return self.pipe(prompt, **self.arguments(sampling), generator=generator, output_type="np").frames[0]

    def clip_of(self, latents: torch.Tensor) -> torch.Tensor:
        """The latents of the one clip, from what a step of the scheduler made."""
        return latents[0]

    def render(
        self,
        prompt: str,
        seed: int,
        sampling: Sampling,
        schedule: Schedule,
        impl: str,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Render:
        """Render one prompt; see ``VideoModel.render``.

        Raises:
            CellFailed: frames that are no numbers, or attention calls that did not come.
            UserError: what the seam refuses.
        """
        latents: list[torch.Tensor] = []
        ends: list[float] = []
        sick: list[int] = []

        def after_step(made: torch.Tensor) -> None:
            latents[:] = [made]
            ends.append(time.perf_counter())
            if not sick and not bool(torch.isfinite(made).all()):
                sick.append(len(ends) - 1)
            if on_step is not None:
                on_step(len(ends), sampling.steps)

        begun = time.perf_counter()
        with attach(self.pipe, schedule, impl=impl) as seam, _told(self.pipe.scheduler, after_step):
            video = self.call(prompt, sampling, torch.Generator("cpu").manual_seed(seed))
        done = time.perf_counter()
        self._check_calls(seam, schedule, sampling)
        if sick:
            raise CellFailed(f"NaN or infinity in the latents from step {sick[0]}")
        return Render(
            frames=to_uint8(np.asarray(video)),
            latents=self.clip_of(latents[0]).float().cpu().numpy(),
            fps=Fraction(sampling.fps),
            denoise_s=ends[-1] - begun,
            decode_s=done - ends[-1],
            calls=sum(seam.calls.values()),
            nonfinite_calls=seam.nonfinite,
            widened_calls=seam.widened,
        )

    def _check_calls(self, seam: attach, schedule: Schedule, sampling: Sampling) -> None:
        """Every step must have computed every site that the schedule names, once a guidance branch."""
        steps = {step for _, _, _, step, _ in seam.calls}
        for rule in schedule.rules:
            wanted = rule.steps.indices(sampling.steps)
            if rule.experts.items is None and not wanted <= steps:
                raise CellFailed(f"attention of step {min(wanted - steps)} never came through the seam")
        if any(count != 1 for count in seam.calls.values()):
            raise CellFailed("an attention site was computed twice in one forward")

    def self_test(self) -> None:
        """One small forward of each expert with and without the seam: bit for bit, or nearly where it cuts padding off.

        Raises:
            UserError: they differ, so every table of this run would be about the seam and not about a method.
        """
        for name in self.family.experts:
            expert = getattr(self.pipe, name, None)
            if expert is None:
                continue
            inputs = self.family.inputs(expert)
            where = getattr(self.pipe, "_execution_device", None)  # an offloaded expert lies elsewhere
            if where is not None:
                inputs = {k: v.to(where) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
            with torch.no_grad():
                plain = _sample(expert(**inputs))
                with attach(self.pipe, _identity):
                    seamed = _sample(expert(**inputs))
            allowed = 0.0
            # Where padding is cut off, or attention is not diffusers' own kernel, sums are rounded otherwise.
            if self.family.take is not None or self.family.layout(expert, inputs).valid is not None:
                allowed = 20 * torch.finfo(plain.dtype).eps * float(plain.abs().max())
            worst = float((plain - seamed).abs().max())
            if not worst <= allowed:
                raise UserError(
                    f"the seam changes the output of {name} by {worst:.2g} with an identity kernel",
                    "report this with the output of `mxbench doctor`; no table can be trusted here",
                )


def _sample(output: Any) -> torch.Tensor:
    """What a transformer returns: the tensor, or the first of what it returns."""
    found: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return found


@contextmanager
def _told(scheduler: Any, after_step: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call ``after_step`` with the latents of every denoising step: not every pipeline has a callback."""
    step = scheduler.step

    def stepping(*args: Any, **kwargs: Any) -> Any:
        made = step(*args, **kwargs)
        after_step(made[0] if isinstance(made, tuple) else made.prev_sample)
        return made

    scheduler.step = stepping
    try:
        yield
    finally:
        del scheduler.step


def _identity(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as diffusers' own backend computes it."""
    from mxbench.models import backend

    plain = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
    return backend.stock(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), plain).transpose(1, 2)
