"""One run: for every shape, check all candidates, then time those that are right, in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import torch

from mxbench.attention.spec import AttentionSpec
from mxbench.bench import targets
from mxbench.bench.candidates import Bound, Candidate
from mxbench.bench.check import Judge
from mxbench.bench.examine import Checked, check_all
from mxbench.bench.failures import Failure, guarded
from mxbench.bench.operands import ABOUT, draw, grouped, sample
from mxbench.bench.rows import Compared, Row, ShapeResult
from mxbench.bench.shapes import Shape
from mxbench.bench.timing import Clock, Round, Spread, clock_for, interleaved, ratios

__all__ = ["Settings", "measure", "steps"]

_BASES = ("fa4", "torch-cudnn", "fp16/cudnn", "torch-sdpa", "fp16/sdpa")
"""What ratios are taken to: the first of these that was measured."""

_SECOND = "torch-cudnn"
"""What ratios are taken to besides."""

_COPY = {"cuda": 256 << 20, "cpu": 64 << 20}  # bytes

Times = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run measures.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        dtype: of the operands, as torch names it.
        reps: rounds that count.
        seed: of the operands and of the order in each round.
        warmup: rounds that do not count, after the one that is checked.
    """

    device: str
    dtype: str
    reps: int = 20
    seed: int = 0
    warmup: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        return asdict(self) | {"operands": ABOUT}


def steps(shapes: int, candidates: Sequence[Candidate], settings: Settings) -> int:
    """How often ``on_step`` is called if nothing is red: a check each, then turns in every round, the copy's too."""
    here = sum(candidate.missing is None for candidate in candidates)
    return shapes * (here + (here + 1) * (settings.warmup + settings.reps))


def measure(
    title: str,
    shape: Shape,
    candidates: Sequence[Candidate],
    settings: Settings,
    *,
    device_name: str = "",
    clock: Clock | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> ShapeResult:
    """Check and time all candidates at one shape. What goes wrong with one is a row that says so.

    Args:
        title: of the shape.
        shape: of the call.
        candidates: those that cannot run here too.
        settings: of the run.
        device_name: what the device calls itself; targets depend on it.
        clock: of the device, unless given.
        on_step: called with a word on what is being done.
    """
    device, dtype = torch.device(settings.device), getattr(torch, settings.dtype)
    operands = guarded(lambda: draw(shape, device, dtype, settings.seed))
    if isinstance(operands, Failure):
        full = replace(operands, reason=f"{operands.reason}: not even for its operands")
        lost = [_plain(each, _missing(each) or full) for each in candidates]
        return ShapeResult(title, shape, None, None, None, tuple(lost))
    part = sample(shape, device)
    compared = Compared(len(part.heads), len(part.rows), part.whole)
    found = check_all(candidates, operands, Judge(operands, part), shape, settings.seed, on_step)
    right = {key: each for key, each in found.items() if isinstance(each, Checked) and not each.verdict.red}
    turns = guarded(lambda: _turns(candidates, right, operands.v, clock, settings, on_step))
    if isinstance(turns, Failure):  # no room for what the clock and the copy need
        turns = {}, dict.fromkeys(right, turns)
    times, failed = turns
    for candidate in candidates:
        if candidate.exact and candidate.key in times:
            times[candidate.key]["kernel"] = times[candidate.key]["call"]
    base = next((key for key in _BASES if key in times), None)
    second = _SECOND if base != _SECOND and _SECOND in times else None
    copied = None
    if "copy" in times:
        copied = Spread.of([2 * _COPY[device.type] / ms / 1e6 for ms in times["copy"]["copy"]])
    rows = []
    for candidate in candidates:
        outcome = failed.get(candidate.key, found.get(candidate.key)) or _missing(candidate)
        assert outcome is not None
        row = _row(candidate, outcome, times, base, second, copied, shape)
        goal = targets.target(row.method, row.impl, shape, base=base, device=device_name, dtype=settings.dtype)
        rows.append(replace(row, goal=goal.goal, floor=goal.floor) if goal else row)
    label = next((candidate.label for candidate in candidates if candidate.key == base), "")
    return ShapeResult(title, shape, (base, label) if base else None, copied, compared, tuple(rows))


def _turns(
    candidates: Sequence[Candidate],
    right: Mapping[str, Checked],
    v: torch.Tensor,
    clock: Clock | None,
    settings: Settings,
    on_step: Callable[[str], None],
) -> tuple[Times, dict[str, Failure]]:
    """Time what is right, what their groupings cost, and a copy if there are pre-passes."""
    rounds: dict[str, Round] = {key: _round(each.bound) for key, each in right.items()}
    smooth = {_grouping(c.spec): c.spec for c in candidates if c.key in right and c.spec and c.spec.v_smooth}
    rounds |= {name: _regroup(v, spec) for name, spec in smooth.items()}
    if any(each.bound.prepare for each in right.values()):
        rounds["copy"] = _copy(v.device)
    return interleaved(
        rounds,
        clock or clock_for(v.device),
        reps=settings.reps,
        warmup=settings.warmup,
        seed=settings.seed,
        on_round=lambda: on_step("timing"),
    )


def _missing(candidate: Candidate) -> Failure | None:
    if candidate.missing is None:
        return None
    return Failure("unsupported" if candidate.method else "absent", candidate.missing)


def _round(bound: Bound) -> Round:
    """The call, and its parts. Which of them comes first alternates: what runs second finds another clock."""
    turns = count()

    def once(clock: Clock) -> dict[str, float]:
        times = {}
        prepare, run = bound.prepare, bound.run
        late = next(turns) % 2
        if late:
            _, times["call"] = clock.time(bound.call)
        if prepare is not None and run is not None:
            prepared, times["prepass"] = clock.time(prepare)
            _, times["kernel"] = clock.time(lambda: run(prepared))
            del prepared
        if not late:
            _, times["call"] = clock.time(bound.call)
        return times

    return once


def _grouping(spec: AttentionSpec) -> str:
    return f"grouping {spec.v_smooth}"


def _regroup(v: torch.Tensor, spec: AttentionSpec) -> Round:
    smooth = spec.v_smooth
    assert smooth is not None
    return lambda clock: {"grouping": clock.time(lambda: grouped(v, smooth))[1]}


def _copy(device: torch.device) -> Round:
    source, target = (torch.zeros(_COPY[device.type], dtype=torch.uint8, device=device) for _ in range(2))
    return lambda clock: {"copy": clock.time(lambda: target.copy_(source))[1]}


def _plain(candidate: Candidate, failure: Failure) -> Row:
    return Row(
        candidate.method,
        candidate.impl,
        candidate.label,
        candidate.version,
        candidate.includes,
        candidate.fp4,
        failure.status,
        failure.reason,
    )


def _row(
    candidate: Candidate,
    outcome: Checked | Failure,
    times: Times,
    base: str | None,
    second: str | None,
    copied: Spread | None,
    shape: Shape,
) -> Row:
    if isinstance(outcome, Failure):
        return _plain(candidate, outcome)
    verdict = outcome.verdict
    row = replace(
        _plain(candidate, Failure("measured", "")),
        against=verdict.against,
        error=verdict.error if math.isfinite(verdict.error) else None,
        allowed=verdict.allowed,
        own_error=verdict.own,
    )
    if verdict.red:
        return replace(row, status="red", reason=verdict.reason)
    found = times[candidate.key]
    call, kernel, prepass = (
        Spread.of(found[stage]) if stage in found else None for stage in ("call", "kernel", "prepass")
    )
    assert call is not None
    bases = times[base]["kernel"] if base is not None else None
    seconds = times[second]["kernel"] if second is not None else None
    grouping = times.get(_grouping(candidate.spec)) if candidate.spec is not None else None
    speed = outcome.moved / prepass.median / 1e6 if prepass is not None else None
    return replace(
        row,
        prepass=prepass,
        kernel=kernel,
        call=call,
        grouping=Spread.of(grouping["grouping"]) if grouping is not None else None,
        tflops=shape.flop / (kernel or call).median / 1e9,
        ratio_kernel=ratios(bases, found["kernel"]) if bases is not None and kernel is not None else None,
        ratio_call=ratios(bases, found["call"]) if bases is not None else None,
        ratio_cudnn=ratios(seconds, found["kernel"]) if seconds is not None and kernel is not None else None,
        prepass_share=ratios(found["prepass"], found["call"]).median if prepass is not None else None,
        prepass_gb_s=speed,
        prepass_of_copy=speed / copied.median if speed is not None and copied is not None else None,
    )
