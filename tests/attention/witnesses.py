"""Inputs that tell a method from each of its neighbours, and what the oracle says of them.

Values lie on a coarse grid and lengths are powers of two, so that means, rotations and quantised operands have the same
bits on every machine; what is left to rounding is P.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import oracle_methods
import torch
from attention_cases import SMOOTH, grid, oracle
from smoothing_simulation import Call, Simulation

from mxbench import METHODS, attend
from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Witness:
    """One call, or the calls of a render, and the methods that it is for."""

    name: str
    make: Callable[[], list[Operands | Call]]
    methods: tuple[str, ...] = tuple(METHODS)
    simulation: dict[str, str] = field(default_factory=dict, hash=False)


def _plain() -> list[Operands | Call]:
    channels = torch.exp2((torch.arange(64) % 9 - 4).float())
    return [(grid(1, 2, 48, 64), grid(1, 2, 256, 64, seed=1) + 2, grid(1, 2, 256, 64, seed=2) * channels)]


def _powers_of_two() -> list[Operands | Call]:
    g = torch.Generator().manual_seed(5)

    def powers(*shape: int) -> torch.Tensor:
        sign = 2.0 * torch.randint(0, 2, shape, generator=g) - 1
        return sign * torch.exp2(-torch.randint(0, 4, shape, generator=g).float())

    return [(powers(1, 2, 32, 64), powers(1, 2, 256, 64), powers(1, 2, 256, 64))]


def _tiny_q() -> list[Operands | Call]:
    """Scales of Q as small as SageAttention2's eps, with whole groups of zeros."""
    q = grid(1, 2, 48, 64) * 2.0**-18
    q[:, :, 16:32] = 0
    return [(q, grid(1, 2, 256, 64, seed=3) * 2.0**18, grid(1, 2, 256, 64, seed=4))]


def _sharp() -> list[Operands | Call]:
    """A few keys make a row: what one P loses shows."""
    return [(3 * grid(1, 2, 48, 64, seed=12), grid(1, 2, 256, 64, seed=13), grid(1, 2, 256, 64, seed=14) + 1)]


def _small_p() -> list[Operands | Call]:
    """Half of the keys have P near 2^-11, and values that make up for it."""
    direction = torch.tensor([1.0, -1.0]).repeat(32)
    q = direction + grid(1, 2, 48, 64, seed=15) / 8
    k, v = grid(1, 2, 256, 64, seed=16) / 4, grid(1, 2, 256, 64, seed=17)
    k[:, :, 64:192] -= direction
    v[:, :, 64:192] *= 2.0**12
    return [(q, k, v)]


def _slow_clusters() -> list[Operands | Call]:
    """A V of few dimensions, on which Lloyd's algorithm is still moving after eight rounds."""
    v = grid(1, 1, 512, 64, seed=18) / 4
    v[..., :3] *= 16
    return [(2 * grid(1, 1, 32, 64, seed=19), grid(1, 1, 512, 64, seed=20), v)]


def _ties(rotated: bool) -> list[Operands | Call]:
    """Q's INT8 scale is 8 and half of its quotients lie on a tie, as they are or after the rotation."""
    q = 4 * torch.randint(-200, 200, (1, 2, 32, 64), generator=torch.Generator().manual_seed(6)).float()
    q[..., 0] = 127 * 8
    if rotated:
        q = torch.from_numpy(oracle_methods.hadamard(q.numpy()))
    return [(q, grid(1, 2, 256, 64, seed=1) * 2.0**-7, grid(1, 2, 256, 64, seed=2))]


def _far_keys() -> list[Operands | Call]:
    """Keys with P near 2^-127, where MX exponents end, and with values that make up for it."""
    calls: list[Operands | Call] = []
    direction = 2.0 * torch.randint(0, 2, (64,), generator=torch.Generator().manual_seed(7)) - 1
    for distance in (11, 12):
        q = (direction + grid(1, 2, 32, 64, seed=8) / 16).bfloat16().float()
        k = grid(1, 2, 256, 64, seed=9) / 16
        k[:, :, 32:] -= (distance + grid(1, 2, 224, 64, seed=10)) * direction
        v = grid(1, 2, 256, 64, seed=11)
        v[:, :, 32:] *= 2.0**125
        calls.append((q, k.bfloat16().float(), v))
    return calls


def _render(steps: int, at: tuple[int, ...], layout: str = "cluster") -> list[Operands | Call]:
    """The given steps of a render; V drifts, and 32 text tokens follow a latent grid of 4×8×7."""
    calls: list[Operands | Call] = []
    for step in at:
        v = grid(1, 1, 256, 64, seed=30) + grid(1, 1, 256, 64, seed=31 + step) + 2
        q, k = 2 * grid(1, 1, 32, 64, seed=60 + step), grid(1, 1, 256, 64, seed=90 + step)
        calls.append(Call(q, k, v, Site(0, 0, 1, "self", step, steps, grid=(4, 8, 7))))
    return calls


WITNESSES = [
    Witness("plain", _plain),
    Witness("powers of two", _powers_of_two),
    Witness("sharp", _sharp),
    Witness("small p", _small_p),
    Witness("slow clusters", _slow_clusters, SMOOTH),
    Witness("tiny q", _tiny_q),
    Witness("ties", lambda: _ties(rotated=False)),
    Witness("rotated ties", lambda: _ties(rotated=True)),
    Witness("far keys", _far_keys, ("mxfp4", "mxfp4-tfs", "mxfp4-oas", "mxattn")),
    Witness("render", lambda: _render(20, (0, 1, 2, 3, 4, 5, 6, 10, 12)), SMOOTH),
]


def of(method: str) -> list[Witness]:
    return [w for w in WITNESSES if method in w.methods]


@cache
def inputs(witness: Witness) -> list[Operands | Call]:
    return witness.make()


Compute = Callable[..., torch.Tensor]
"""``f(q, k, v, spec, site=..., state=...)``, as :func:`reference`."""


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec, **more: Any) -> torch.Tensor:
    return attend(q, k, v, spec, impl="reference", **more)


def run(witness: Witness, spec: AttentionSpec, compute: Compute = reference) -> np.ndarray:
    """All outputs, one after the other."""
    state, outs = GroupingState(), []
    for call in inputs(witness):
        if isinstance(call, Call):
            outs.append(compute(call.q, call.k, call.v, spec, site=call.site, state=state))
        else:
            outs.append(compute(*call, spec))
    return np.stack([out.double().numpy() for out in outs])


@cache
def expected(witness: Witness, method: str) -> np.ndarray:
    """What the oracle says of the same calls."""
    simulation, outs = Simulation(), []
    for call in inputs(witness):
        if isinstance(call, Call):
            outs.append(simulation.attention(method, call))
        else:
            outs.append(oracle(method, *call))
    return np.stack(outs)


def off(witness: Witness, method: str, spec: AttentionSpec, compute: Compute = reference) -> float:
    """How far ``spec`` as computed is from the oracle of ``method``: the largest relative L2 of a call."""
    got, want = run(witness, spec, compute), expected(witness, method)
    axes = tuple(range(1, got.ndim))
    return float((np.sqrt(np.square(got - want).sum(axes)) / np.sqrt(np.square(want).sum(axes))).max())
