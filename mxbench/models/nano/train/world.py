"""The processes that train together: one a GPU, started by ``torchrun``, or this one alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["World", "start"]


@dataclass(frozen=True, slots=True)
class World:
    """One process among its equals.

    Attributes:
        rank: of this process, from 0.
        size: number of processes.
        device: of this process.
        group: torch's process group; None for all processes.
        first: rank of the group's first process among all.
    """

    rank: int
    size: int
    device: torch.device
    group: Any = None
    first: int = 0

    def average(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Average the gradients over all processes, in one transfer."""
        if self.size > 1:
            flat = self.flatten(parameters)
            self.add_up(flat)
            self.spread(flat, parameters)

    def flatten(self, parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
        """The part of the mean gradient that is of this process, in one piece."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return torch.cat([g.reshape(-1) for g in gradients]) / self.size

    def add_up(self, flat: torch.Tensor) -> None:
        """Sum over all processes, in place."""
        dist.all_reduce(flat, group=self.group)

    def spread(self, flat: torch.Tensor, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Write the pieces of what :meth:`flatten` made back to the gradients."""
        gradients = []
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            gradients.append(p.grad)
        pieces = flat.split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(pieces, gradients, strict=True)])

    def agree(self, *values: float) -> list[float]:
        """The first process's values."""
        if self.size == 1:
            return list(values)
        told = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.broadcast(told, self.first, group=self.group)
        return [float(v) for v in told.tolist()]

    def share(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite with the first process's tensors."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, self.first, group=self.group)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier(group=self.group)

    def halves(self) -> tuple[int, World]:
        """Processes of even and of odd rank, each a world of its own: which half this one is in, and that half."""
        groups = [list(range(half, self.size, 2)) for half in (0, 1)]
        made = [dist.new_group(ranks) for ranks in groups]  # Every process makes every group.
        half = self.rank % 2
        return half, World(self.rank // 2, len(groups[half]), self.device, made[half], half)


def start() -> World:
    """The world of this process, as ``torchrun``'s environment says."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if size > 1:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", device_id=device if device.type == "cuda" else None
        )
    return World(rank, size, device)
