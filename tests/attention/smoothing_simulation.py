"""V-Smooth over a render, written a second time: a plain simulation that decides orders and means, and the oracle."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import oracle_methods
import torch

from mxbench.attention.site import Site


@dataclass
class Call:
    """One attention call of a render."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    site: Site


def lloyd(
    rows: np.ndarray, clusters: int, iterations: int, centres: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Labels and centres of rows [N, D]: distances one by one in FP64, centres kept in FP32."""
    n = len(rows)
    k = min(clusters, n)
    if centres is None:
        centres = rows[[i * (n - 1) // (k - 1) for i in range(k)] if k > 1 else [0]]
    centres, rows = centres.astype(np.float32), rows.astype(np.float64)

    def nearest() -> np.ndarray:
        return ((rows[:, None, :] - centres[None].astype(np.float64)) ** 2).sum(-1).argmin(-1)

    for _ in range(iterations):
        labels = nearest()
        means = [rows[labels == c].mean(0) if (labels == c).any() else centres[c] for c in range(k)]
        centres = np.array(means).astype(np.float32)
    return nearest(), centres


def cube_order(grid: tuple[int, int, int]) -> list[int]:
    """Tokens cube by cube, by loops."""
    frames, height, width = grid
    order = []
    for f0 in range(0, frames, 2):
        for h0 in range(0, height, 8):
            for w0 in range(0, width, 8):
                for f in range(f0, min(f0 + 2, frames)):
                    for h in range(h0, min(h0 + 8, height)):
                        order += [(f * height + h) * width + w for w in range(w0, min(w0 + 8, width))]
    return order


@dataclass
class Simulation:
    """What V-Smooth does at each call of a render; fields as in ``VSmooth``."""

    layout: str = "cluster"
    clusters: int = 64
    iterations: int = 4
    window: str = "0.25"
    refresh: int = 4
    placement: str = "leading"
    memory: dict[Any, tuple[list[list[np.ndarray]], list[list[Any]]]] = field(default_factory=dict)
    grouped_at: list[tuple[int, int, int]] = field(default_factory=list)

    def active(self, steps: int) -> list[int]:
        n = math.ceil(Fraction(self.window) * steps)
        return {
            "leading": [s for s in range(steps) if s < n],
            "uniform": sorted({s for s in range(steps) for i in range(n) if i * steps // n == s}),
            "every": list(range(steps)),
        }[self.placement]

    def at(self, v: torch.Tensor, site: Site) -> tuple[list[list[np.ndarray]] | None, bool]:
        """The order of the tokens for each batch element and head, or None; and whether means are subtracted."""
        key = (site.expert, site.layer, site.kind, site.branch, tuple(v.shape))
        if site.step == 0:
            self.memory.pop(key, None)
        active = self.active(site.n_steps)
        if site.step not in active:
            return (self.memory[key][0] if key in self.memory else None), False
        every = 1 if self.placement == "every" else self.refresh
        if key not in self.memory or active.index(site.step) % every == 0:
            self.grouped_at.append((site.expert, site.step, site.branch))
            self.memory[key] = self.group(v, site, self.memory.get(key, (None, None))[1])
        return self.memory[key][0], True

    def group(self, v: torch.Tensor, site: Site, before: Any) -> tuple[list[list[np.ndarray]], list[list[Any]]]:
        n = v.shape[2]
        video = n if site.grid is None else min(n, math.prod(site.grid))
        orders: list[list[np.ndarray]] = []
        centres: list[list[Any]] = []
        for b in range(v.shape[0]):
            orders.append([])
            centres.append([])
            for h in range(v.shape[1]):
                centre = None
                if self.layout == "cluster":
                    warm = before[b][h] if before is not None else None
                    labels, centre = lloyd(v[b, h, :video].numpy(), self.clusters, self.iterations, warm)
                    order = sorted(range(video), key=lambda i: (labels[i], i))
                elif self.layout == "cube":
                    assert site.grid is not None
                    order = cube_order(site.grid)
                else:
                    order = list(range(video))
                orders[-1].append(np.array(order + list(range(video, n))))
                centres[-1].append(centre)
        return orders, centres

    def attention(self, name: str, call: Call) -> np.ndarray:
        """The call by the oracle, with the order and the means of this moment."""
        order, means = self.at(call.v, call.site)
        if order is None:
            order = [[np.arange(call.v.shape[2])] * call.v.shape[1]] * call.v.shape[0]
        operands = [x.numpy() for x in (call.q, call.k, call.v)]
        if means:
            return oracle_methods.attention(name, *operands, permutation=order)
        with mock.patch.object(oracle_methods, "_block_means", np.zeros_like):
            return oracle_methods.attention(name, *operands, permutation=order)
