"""Which launch of the fused kernel is fastest on this device: ``python -m mxbench.bench.tune --method mxattn``.

What it finds is written into ``mxbench.kernels.fused_config`` by hand. Every launch is first compared with the one that
is there now: a faster one that computes something else has no time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from mxbench.attention.methods import METHODS
from mxbench.bench.failures import Failure, guarded
from mxbench.bench.operands import draw, seat
from mxbench.bench.shapes import parse_shape
from mxbench.bench.timing import Spread, clock_for, interleaved
from mxbench.dispatch import unsupported
from mxbench.errors import UserError, unknown_name
from mxbench.kernels.fused_config import Config
from mxbench.models.device import resolve

if TYPE_CHECKING:
    from mxbench.kernels.held import Held

__all__ = ["grid", "main", "words"]

_TILES = ((64, 4), (128, 8), (128, 4))  # rows of queries and warps
_STAGES = (2, 3, 4)
_SWITCHES: tuple[dict[str, Any], ...] = ({}, {"overlap": True}, {"registers": 168}, {"packed": False})
_NEAR = 2e-3
"""Relative L2 between two launches: sums in another order, and codes of P beside a tie."""


def grid() -> Iterator[Config]:
    """The launches that are tried: tiles and stages, with one switch at a time."""
    for switch, (rows, warps), stages in product(_SWITCHES, _TILES, _STAGES):
        if switch.get("registers") and warps != 4:
            continue
        yield Config(block_m=rows, num_warps=warps, num_stages=stages, **switch)


def words(config: Config) -> str:
    """A launch as ``fused_config`` writes it: what differs from a ``Config()``."""
    plain = Config()
    changed = {f.name: getattr(config, f.name) for f in fields(config)}
    return f"Config({', '.join(f'{k}={v}' for k, v in changed.items() if v != getattr(plain, k))})"


def _times(held: Held, spec: Any, dtype: torch.dtype, reps: int, until: float) -> list[tuple[str, float | str]]:
    from mxbench.kernels.fused import config_for, fused

    width = max(held.q.shape[-1], held.k.shape[-1])
    today = config_for(held.hold_pv, width, spec.kv_tile, held.hold_qk)
    true = fused(held, spec, dtype, config=today).float()
    clock = clock_for(held.q.device)
    found: list[tuple[str, float | str]] = []
    for config in dict.fromkeys((today, *grid())):
        if time.monotonic() > until:
            break
        name = words(config) + (" (in use)" if config == today else "")

        def once(config: Config = config) -> torch.Tensor:
            return fused(held, spec, dtype, config=config)

        out = guarded(once)
        if isinstance(out, Failure):
            found.append((name, out.reason))
            continue
        off = float((out.float() - true).norm() / true.norm())
        del out
        if not off <= _NEAR:
            found.append((name, f"computes something else: {off:.1e}"))
            continue
        rounds = {name: lambda clock, once=once: {"kernel": clock.time(once)[1]}}
        times, failed = interleaved(rounds, clock, reps=reps)
        found.append((name, failed[name].reason if failed else Spread.of(times[name]["kernel"]).median))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command.

    Raises:
        UserError: a name that does not exist, or a kernel that does not run here.
    """
    parser = argparse.ArgumentParser("python -m mxbench.bench.tune", description=__doc__)
    add = parser.add_argument
    add("--method", default="mxattn", help="a method")
    add("--impl", default="fast", help="fast or conformance")
    add("--shape", default="1x40x75600x128", help="BxHxNxD[:Nk]")
    add("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    add("--reps", type=int, default=5, help="timed launches of each")
    add("--seconds", type=float, default=300.0, help="start no launch after this time")
    got = parser.parse_args(arguments)
    until = time.monotonic() + got.seconds
    if got.method not in METHODS:
        raise unknown_name("method", got.method, METHODS)
    if got.impl not in ("fast", "conformance"):
        raise unknown_name("impl", got.impl, ("fast", "conformance"))
    shape = parse_shape(got.shape)
    spec, device, dtype = METHODS[got.method].spec, torch.device(resolve("auto")), getattr(torch, got.dtype)
    if (reason := unsupported(spec, got.impl, device, dtype)) is not None:
        raise UserError(f"{got.impl} cannot compute {got.method} here: {reason}", "run it where it can")
    from mxbench.kernels.prepass import hold

    operands = draw(shape, device, dtype, 0)
    where = seat(operands, spec)
    held = hold(operands.q, operands.k, operands.v, spec, got.impl, site=where.site, state=where.state)
    found = _times(held, spec, dtype, got.reps, until)
    timed = sorted((ms, name) for name, ms in found if isinstance(ms, float))
    for ms, name in timed:
        print(f"{ms:9.2f} ms  {name}")  # noqa: T201 - the command's result
    for name, wrong in found:
        if isinstance(wrong, str):
            print(f"        –     {name}: {wrong}")  # noqa: T201


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
