"""What trains, and what a step of its training does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

__all__ = ["Task", "Trainee"]

_CLIP = 1.0


@dataclass(frozen=True, slots=True)
class Task:
    """What a step does.

    Attributes:
        prepare: brings data for the step of a number, in tensors that stay where they are.
        loss: loss and facts from those tensors; it must not wait for the device, nor read anything of the host's.
    """

    prepare: Callable[[int], None]
    loss: Callable[[], tuple[torch.Tensor, Mapping[str, torch.Tensor]]]


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
    forget: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = [p for m in self.parts.values() for p in m.parameters()]
        self.forget = torch.zeros((), device=self.parameters[0].device)
        self.averages = [p.detach().clone() for p in self.parameters]

    def plan(self, rate: float) -> None:
        """Set learning rates, as shares of their peaks, and the moving average's pace for the next update."""
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"].fill_(group["peak"] * rate)
        self.forget.fill_(1 - min(self.longest, (self.step + 1) / (self.step + 10)))
        self.step += 1

    def update(self) -> torch.Tensor:
        """Clip, step, average; the gradients' norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, _CLIP)
        for optimiser in self.optimisers:
            optimiser.step()
        own = [p.detach() for p in self.parameters]
        torch._foreach_mul_(self.averages, 1 - self.forget)
        torch._foreach_add_(self.averages, torch._foreach_mul(own, self.forget))
        return norm

    def clear(self) -> None:
        """No gradients."""
        for p in self.parameters:
            p.grad = None

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
                group["peak"], group["lr"] = peak, torch.full_like(self.forget, peak)
        self.elapsed, self.step, self.done = (state["facts"][k] for k in ("elapsed", "step", "done"))
