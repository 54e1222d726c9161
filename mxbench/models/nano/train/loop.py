"""One training loop for every stage: time is its budget, and what it leaves behind can be gone on from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mxbench.models.nano.train.step import Recorded, eager
from mxbench.models.nano.train.trainee import Task, Trainee
from mxbench.models.nano.train.world import World

__all__ = ["Log", "train"]

_AHEAD = 16
"""Steps between two looks at the clock; each look waits for the device."""
_SAVE_S = 120.0
_WARM = 3
"""Steps before one is recorded: compilation, the optimisers' state, the choice of convolution kernels."""


@dataclass(frozen=True, slots=True)
class Log:
    """Facts as JSON lines, on standard output and in a file; only the first process writes."""

    path: Path
    world: World

    def __call__(self, **facts: Any) -> None:
        """Write one line."""
        if self.world.rank:
            return
        line = json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in facts.items()})
        print(line, flush=True)  # noqa: T201 - the progress of a long command
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _rate(progress: float, since: int) -> float:
    """Share of the peak learning rate: a warm-up after every start, then a cosine down to nothing."""
    return min(1.0, (since + 1) / 200) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, progress))) + 1e-4


def train(
    trainee: Trainee,
    task: Task,
    world: World,
    log: Log,
    *,
    name: str,
    budget: float,
    stop_at: float,
    path: Path,
    record: bool,
) -> None:
    """Train until the budget or the time is spent; ``trainee.done`` says which. Saves to ``path``.

    Args:
        trainee: what trains; moved on in place.
        task: what a step does.
        world: the processes; gradients are averaged over them.
        log: where progress goes.
        name: of the stage, for the log.
        budget: seconds of training in all, compilation left out.
        stop_at: ``time.monotonic()`` at which to stop.
        path: of the checkpoint.
        record: record a step as a CUDA graph and replay it.

    Raises:
        FloatingPointError: the loss is no longer a number.
    """
    world.share([p.data for p in trainee.parameters])
    world.share(trainee.averages)
    progress, since = trainee.elapsed / budget, 0
    begun = saved = time.monotonic()
    already, steps_before = trainee.elapsed, trainee.step
    total: dict[str, torch.Tensor] = {}
    count, warm = 0, _WARM if record else 1
    run: Callable[[], dict[str, torch.Tensor]] = partial(eager, task, trainee, world)
    while progress < 1.0:
        task.prepare(trainee.step)
        trainee.plan(_rate(progress, since))
        told = run()
        since, count = since + 1, count + 1
        for key, value in told.items():
            total[key] = total[key] + value if key in total else value.clone()
        if since < warm or (since > warm and since % _AHEAD):
            continue
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        if since == warm:
            if record:
                run = Recorded(task, trainee, world)
            log(stage=name, compile_s=time.monotonic() - begun)
            begun, steps_before = time.monotonic(), trainee.step
            stopping, trainee.elapsed = world.agree(float(time.monotonic() > stop_at), trainee.elapsed)
            if stopping:
                break
            continue
        now = time.monotonic()
        stopping, trainee.elapsed = world.agree(float(now > stop_at), already + now - begun)
        progress = trainee.elapsed / budget
        if not math.isfinite(float(total["loss"])):
            raise FloatingPointError(f"the loss of stage {name} is no number at step {trainee.step}")
        if (since // _AHEAD) % 16 == 0 or progress >= 1 or stopping:
            means = {k: float(v) / count for k, v in total.items()}
            speed = (trainee.step - steps_before) / (now - begun)
            log(stage=name, step=trainee.step, s=trainee.elapsed, progress=progress, steps_per_s=speed, **means)
            total, count = {}, 0
        if now - saved > _SAVE_S and not world.rank:
            trainee.save(path)
            saved = time.monotonic()
        if stopping:
            break
    trainee.clear()
    trainee.done = progress >= 1.0
    if not world.rank:
        trainee.save(path)
    world.wait()
