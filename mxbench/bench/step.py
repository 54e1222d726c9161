"""What a denoising step of a video model takes by each method: ``python -m mxbench.bench.step --model wan2.2``.

The pipeline renders as a user's would, at full size and with random weights unless others are named, and is stopped
after a few steps; nothing is decoded. A forward of a transformer is timed whole, and its attention within it: the calls
of self-attention that a method computes, pre-passes included. Methods take turns, prompt by prompt. The first step is
told apart: there V-Smooth makes its groupings, and kernels may be compiled.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from mxbench.attention.methods import METHODS
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState
from mxbench.bench.provenance import provenance
from mxbench.dispatch import IMPLS, attend, default_impl, lloyd, unsupported
from mxbench.errors import UserError, unknown_name
from mxbench.models import MODELS, chooses, facts, load
from mxbench.models.attach import attach
from mxbench.models.base import Sampling
from mxbench.models.device import fits, resolve
from mxbench.models.memory import MEMORY
from mxbench.models.render import PipelineModel

__all__ = ["Forward", "Stepped", "forwards", "main", "table"]

FP16 = "fp16"


class _Enough(Exception):
    """Raised by a hook to leave the pipeline."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward of a transformer.

    Attributes:
        step: of the render, from 0.
        ms: of the whole forward.
        attention_ms: of its calls of self-attention.
        calls: how many these were.
    """

    step: int
    ms: float
    attention_ms: float
    calls: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """A method's forwards.

    Attributes:
        method: its name.
        impl: what computed it.
        found: the forwards, of all repeats.
        peak: bytes that torch had allocated at most, weights included; None on a CPU.
    """

    method: str
    impl: str
    found: tuple[Forward, ...]
    peak: int | None

    def ms(self, *, first: bool) -> float:
        """Median of a forward of the first step, or of the later ones."""
        return median(f.ms for f in self.found if (f.step == 0) is first)

    @property
    def attention(self) -> float:
        """Median milliseconds of attention in a forward after the first step."""
        return median(f.attention_ms for f in self.found if f.step > 0)


class _Watch:
    """Marks in time: CUDA events, or the clock of a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, one: Any, other: Any) -> float:
        """Milliseconds; waits for the device."""
        if not self._cuda:
            return float(other - one) * 1e3
        other.synchronize()
        return float(one.elapsed_time(other))


class _Attention:
    """A method, each call between two marks."""

    def __init__(self, spec: AttentionSpec, impl: str, watch: _Watch) -> None:
        self._spec, self._impl, self._watch = spec, impl, watch
        self._state = GroupingState(lloyd=lloyd)
        self.seam: attach | None = None
        self.marks: list[tuple[Any, Any]] = []

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert self.seam is not None
        begun = self._watch.mark()
        out = attend(q, k, v, self._spec, impl=self._impl, site=self.seam.site, state=self._state)
        self.marks.append((begun, self._watch.mark()))
        return out


def forwards(
    model: PipelineModel,
    spec: AttentionSpec,
    impl: str,
    sampling: Sampling,
    *,
    device: torch.device,
    steps: int,
    prompt: str,
) -> list[Forward]:
    """Render the first steps of a prompt by a method, seed 0.

    Args:
        model: a loaded model.
        spec: the method.
        impl: a name in ``IMPLS``.
        sampling: of the whole render; its ``steps`` are the schedule's, of which the first are taken.
        device: where it computes; offloaded parts lie elsewhere.
        steps: how many.
        prompt: what to render.

    Raises:
        UserError: whatever ``attach`` refuses.
    """
    watch = _Watch(device)
    attention = _Attention(spec, impl, watch)
    marks: list[list[Any]] = []  # of a forward: step, begin, end, calls before it

    def before(*_: Any) -> None:
        index = model.pipe.scheduler.step_index
        if (step := 0 if index is None else int(index)) >= steps:
            raise _Enough
        marks.append([step, watch.mark(), None, len(attention.marks)])

    def after(*_: Any) -> None:
        marks[-1][2] = watch.mark()

    hooks = []
    try:
        for transformer in _transformers(model):
            hooks += [transformer.register_forward_pre_hook(before), transformer.register_forward_hook(after)]
        with attach(model.pipe, attention) as attention.seam, suppress(_Enough):
            model.call(prompt, sampling, torch.Generator("cpu").manual_seed(0))
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    ends = [mark[3] for mark in marks[1:]] + [len(attention.marks)]
    for (step, begun, ended, first), last in zip(marks, ends, strict=True):
        inside = sum(watch.between(one, other) for one, other in attention.marks[first:last])
        found.append(Forward(step, watch.between(begun, ended), inside, last - first))
    return found


def _transformers(model: PipelineModel) -> list[Any]:
    return [t for name in model.family.experts if (t := getattr(model.pipe, name, None)) is not None]


def table(stepped: Sequence[Stepped]) -> str:
    """A line a method in Markdown; ratios are to FP16, where it was run."""
    base = next((each for each in stepped if each.method == FP16), None)
    lines = [
        "| method | by | forward, ms | × FP16 | first step, ms | attention, ms | of the forward | calls | peak, GiB |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in stepped:
        ms = each.ms(first=False)
        ratio = f"{base.ms(first=False) / ms:.2f}" if base is not None else "–"
        peak = f"{each.peak / 2**30:.1f}" if each.peak is not None else "–"
        lines.append(
            f"| {each.method} | {each.impl} | {ms:.0f} | {ratio} | {each.ms(first=True):.0f} | {each.attention:.0f} "
            f"| {each.attention / ms:.0%} | {each.found[-1].calls} | {peak} |"
        )
    return "\n".join(lines)


def _measure(
    model: PipelineModel, impls: Mapping[str, str], sampling: Sampling, device: str, steps: int, repeats: int
) -> list[Stepped]:
    on = torch.device(device)
    found: dict[str, list[Forward]] = {name: [] for name in impls}
    peaks: dict[str, int | None] = dict.fromkeys(impls)
    for repeat in range(repeats):
        for name in impls:
            gc.collect()  # groupings of the method before, which a cycle holds, are not this one's memory
            if on.type == "cuda":
                torch.cuda.reset_peak_memory_stats(on)
            found[name] += forwards(
                model,
                METHODS[name].spec,
                impls[name],
                sampling,
                device=on,
                steps=steps,
                prompt=f"a step of a video, {repeat}",
            )
            if on.type == "cuda":
                peaks[name] = max(peaks[name] or 0, torch.cuda.max_memory_allocated(on))
            print(f"{name}: {found[name][-1].ms:.0f} ms", file=sys.stderr, flush=True)  # noqa: T201
    return [Stepped(name, impls[name], tuple(found[name]), peaks[name]) for name in impls]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command.

    Raises:
        UserError: a name that does not exist, weights that are not to be had, what does not fit or cannot run here.
    """
    parser = argparse.ArgumentParser("python -m mxbench.bench.step", description=__doc__)
    add = parser.add_argument
    add("--model", default="wan2.2", help="a model that is a diffusers pipeline")
    add("--weights", default="random", help="a folder, a hub id, random or random:tiny")
    add("--memory", choices=list(MEMORY), help="default: whole")
    add("--method", action="append", help="may be repeated (default: fp16, mxattn, vc8, sage2, mxfp4, nvfp4)")
    add("--impl", default="auto", choices=["auto", *IMPLS])
    add("--device", default="auto")
    add("--guided", action="store_true", help="with classifier-free guidance: as many forwards a step as a render has")
    add("--steps", type=int, default=2, help="of the render, at least two")
    add("--repeats", type=int, default=1)
    got = parser.parse_args(arguments)
    names: list[str] = got.method or [FP16, "mxattn", "vc8", "sage2", "mxfp4", "nvfp4"]
    for name in names:
        if name not in METHODS:
            raise unknown_name("method", name, METHODS)
    if got.model not in MODELS:
        raise unknown_name("model", got.model, MODELS)
    if got.steps < 2 or got.repeats < 1:
        raise UserError("a first step and a later one are told apart", "give --steps 2 and --repeats 1, or more")
    weights = got.weights if chooses(got.model) else None
    known = facts(got.model, weights, None)
    device = resolve(got.device, known.dtypes)
    sampling = known.sampling
    if got.steps >= sampling.steps:
        raise UserError(
            f"--steps {got.steps}: the render has {sampling.steps}, and is stopped before its end", "give fewer"
        )
    if not got.guided and "negative_prompt" not in known.ignores:  # else guidance is no second forward
        sampling = replace(sampling, guidance=tuple(1.0 for _ in sampling.guidance))
    impls = _impls(names, got.impl, torch.device(device), getattr(torch, known.dtype_on(device)))
    model = load(got.model, device, weights, None, got.memory)
    if not isinstance(model, PipelineModel):
        raise UserError(f"{got.model} is no diffusers pipeline", "choose a model of `mxbench list models` that is one")
    with torch.no_grad(), fits(device, got.memory or "whole"):
        stepped = _measure(model, impls, sampling, device, got.steps, got.repeats)
    command = "python -m mxbench.bench.step " + " ".join(sys.argv[1:] if arguments is None else arguments)
    for key, value in provenance(device, command.strip()).items():
        print(f"* {key}: {value}")  # noqa: T201 - the command's result
    print(f"* model: {got.model}, {known.weights}; {_words(known, sampling, got.steps)}\n")  # noqa: T201
    print(table(stepped))  # noqa: T201


def _impls(names: Sequence[str], impl: str, device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """What computes each method, before anything is loaded."""
    impls = {name: default_impl(METHODS[name].spec, device, dtype) if impl == "auto" else impl for name in names}
    for name, each in impls.items():
        if (reason := unsupported(METHODS[name].spec, each, device, dtype)) is not None:
            raise UserError(f"{each} cannot compute {name} here: {reason}", "name another --impl")
    return impls


def _words(known: Any, sampling: Sampling, steps: int) -> str:
    size = (
        f"{sampling.frames} frames of {sampling.width}×{sampling.height}, the first {steps} of {sampling.steps} steps"
    )
    work: Callable[[Sampling], Any] | None = known.work
    return size if work is None else f"{size}; {work(sampling).tokens:,} tokens a call"


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
