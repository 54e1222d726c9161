"""One training loop for every stage: time is its budget, and what it leaves behind can be gone on from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mxbench.models.nano.train.world import World

__all__ = ["Log", "Trainee", "train"]

Step = Callable[[int], tuple[torch.Tensor, Mapping[str, torch.Tensor]]]
_AHEAD = 16
"""Steps between two looks at the clock; each look waits for the device."""
_SAVE_S = 120.0
_CLIP = 1.0


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


@dataclass(slots=True)
class Trainee:
    """Networks that train together, their moving averages and their optimisers.

    Attributes:
        parts: the networks.
        optimisers: over all their parameters; each group's ``peak`` is its highest learning rate.
        longest: the moving average forgets at least this share a step.
    """

    parts: dict[str, torch.nn.Module]
    optimisers: Sequence[torch.optim.Optimizer]
    longest: float = 0.999
    elapsed: float = 0.0
    step: int = 0
    done: bool = False
    parameters: list[torch.nn.Parameter] = field(init=False)
    averages: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = [p for m in self.parts.values() for p in m.parameters()]
        self.averages = [p.detach().clone() for p in self.parameters]

    def update(self, rate: float) -> torch.Tensor:
        """Clip, step, average; the gradients' norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, _CLIP)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        keep = min(self.longest, self.step / (self.step + 9))
        torch._foreach_lerp_(self.averages, [p.detach() for p in self.parameters], 1 - keep)
        return norm

    def averaged(self) -> dict[str, dict[str, torch.Tensor]]:
        """The averaged state of each network."""
        found, mean = {}, iter(self.averages)
        for name, part in self.parts.items():
            of = {id(p): next(mean) for p in part.parameters()}
            state = part.state_dict(keep_vars=True)
            found[name] = {k: of[id(v)] if id(v) in of else v.detach() for k, v in state.items()}
        return found

    def save(self, path: Path) -> None:
        """Everything to go on, written to a temporary name and renamed."""
        state = {
            "parts": {k: v.state_dict() for k, v in self.parts.items()},
            "averages": self.averages,
            "optimisers": [o.state_dict() for o in self.optimisers],
            "facts": {"elapsed": self.elapsed, "step": self.step, "done": self.done},
        }
        temporary = path.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(path)

    def load(self, path: Path) -> None:
        """Go on from :meth:`save`."""
        state = torch.load(path, map_location=self.parameters[0].device, weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        torch._foreach_copy_(self.averages, state["averages"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            peaks = [g["peak"] for g in optimiser.param_groups]
            optimiser.load_state_dict(saved)
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["peak"] = peak
        self.elapsed, self.step, self.done = (state["facts"][k] for k in ("elapsed", "step", "done"))


def _rate(progress: float, since: int) -> float:
    """Share of the peak learning rate: a warm-up after every start, then a cosine down to nothing."""
    return min(1.0, (since + 1) / 200) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, progress))) + 1e-4


def train(
    trainee: Trainee, step: Step, world: World, log: Log, *, name: str, budget: float, stop_at: float, path: Path
) -> None:
    """Train until the budget or the time is spent; ``trainee.done`` says which. Saves to ``path``.

    Args:
        trainee: what trains; moved on in place.
        step: number of the step to the loss and facts for the log.
        world: the processes; gradients are averaged over them.
        log: where progress goes.
        name: of the stage, for the log.
        budget: seconds of training in all, compilation left out.
        stop_at: ``time.monotonic()`` at which to stop.
        path: of the checkpoint.

    Raises:
        FloatingPointError: the loss is no longer a number.
    """
    world.share([p.data for p in trainee.parameters])
    world.share(trainee.averages)
    progress, since = trainee.elapsed / budget, 0
    begun = saved = time.monotonic()
    already, steps_before = trainee.elapsed, trainee.step
    total: dict[str, torch.Tensor] = {}
    count = 0
    while progress < 1.0:
        loss, facts = step(trainee.step)
        loss.backward()
        world.average(trainee.parameters)
        norm = trainee.update(_rate(progress, since))
        since, count = since + 1, count + 1
        for key, value in {"loss": loss.detach(), "norm": norm, **facts}.items():
            total[key] = total[key] + value if key in total else value
        if since != 1 and since % _AHEAD:
            continue
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        if since == 1:  # The first step compiled.
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
        if (since // _AHEAD) % 8 == 0 or progress >= 1 or stopping:
            means = {k: float(v) / count for k, v in total.items()}
            speed = (trainee.step - steps_before) / (now - begun)
            log(stage=name, step=trainee.step, s=trainee.elapsed, progress=progress, steps_per_s=speed, **means)
            total, count = {}, 0
        if now - saved > _SAVE_S and not world.rank:
            trainee.save(path)
            saved = time.monotonic()
        if stopping:
            break
    trainee.done = progress >= 1.0
    if not world.rank:
        trainee.save(path)
    world.wait()
