"""One step of training: launched kernel by kernel, or recorded once and replayed."""

from __future__ import annotations

import torch

from mxbench.models.nano.train.trainee import Task, Trainee
from mxbench.models.nano.train.world import World

__all__ = ["Recorded", "eager"]


def eager(task: Task, trainee: Trainee, world: World) -> dict[str, torch.Tensor]:
    """A step at once; what it tells."""
    loss, facts = task.loss()
    loss.backward()
    world.average(trainee.parameters)
    norm = trainee.update()
    trainee.clear()
    return {"loss": loss.detach(), "norm": norm, **facts}


class Recorded:
    """A step recorded as CUDA graphs: launching its thousands of small kernels takes several times their time.

    Gradients are averaged between two graphs, by an ordinary call.
    """

    def __init__(self, task: Task, trainee: Trainee, world: World) -> None:
        self._world = world
        trainee.clear()  # A backward pass that finds none writes to tensors of the graph's own.
        self._graphs = [torch.cuda.CUDAGraph() for _ in range(1 if world.size == 1 else 2)]
        # Other threads, which make data, go on working.
        with torch.cuda.graph(self._graphs[0], capture_error_mode="thread_local"):
            loss, facts = task.loss()
            loss.backward()
            if world.size == 1:
                norm = trainee.update()
            else:
                self._flat = world.flatten(trainee.parameters)
        if world.size > 1:
            pool = self._graphs[0].pool()
            with torch.cuda.graph(self._graphs[1], pool=pool, capture_error_mode="thread_local"):
                world.spread(self._flat, trainee.parameters)
                norm = trainee.update()
        self._told = {"loss": loss.detach(), "norm": norm, **facts}

    def __call__(self) -> dict[str, torch.Tensor]:
        """One step; what it tells is overwritten by the next."""
        self._graphs[0].replay()
        if self._world.size > 1:
            self._world.add_up(self._flat)
            self._graphs[1].replay()
        return self._told
