"""Which launch of the fused kernel is fastest on this device: ``python -m mxbench.bench.tune --method mxattn``.

With ``--passes``, which launch of the pre-pass: one kind of pass is varied at a time. What it finds is written into
``mxbench.kernels.fused_config`` and ``prepass_config`` by hand. Every launch is first compared with the one that is
there now: a faster one that computes something else has no time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
from mxbench.kernels.prepass_config import OWED, PASSES, OwedPass, Pass
from mxbench.models.device import resolve

if TYPE_CHECKING:
    from mxbench.kernels.held import Held

__all__ = ["grid", "main", "owed_passes", "passes", "words"]

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


def passes() -> Iterator[Pass]:
    """The launches of a pass that are tried."""
    for tile, thread, registers in product((64, 128), (16, 32, 64), (None, 128, 64)):
        if registers != 64 or thread < 64:
            yield Pass(tile, thread, registers)


def owed_passes() -> Iterator[OwedPass]:
    """The launches of what Q's means owe that are tried."""
    for (tile, warps), groups, stages, registers in product(((128, 8), (64, 4)), (64, 32), (3, 2, 1), (None, 168)):
        yield OwedPass(tile, groups, warps, stages, registers)


def words(shape: Config | Pass | OwedPass) -> str:
    """A launch as its table writes it: what differs from a plain one, such as ``Config()``."""
    plain = type(shape)()
    changed = {f.name: getattr(shape, f.name) for f in fields(shape)}
    return f"{type(shape).__name__}({', '.join(f'{k}={v}' for k, v in changed.items() if v != getattr(plain, k))})"


def _times(held: Held, spec: Any, dtype: torch.dtype, reps: int, until: float) -> list[tuple[str, float | str]]:
    from mxbench.kernels.fused import choice, fused, packable

    today = choice(spec, held, packable=packable(held.q.device))
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


def _pass_times(
    once: Callable[[], Held], device: torch.device, reps: int, until: float
) -> list[tuple[str, float | str]]:
    true, clock = once(), clock_for(device)
    found: list[tuple[str, float | str]] = []
    tables: list[tuple[dict[Any, Any], Any, Callable[[], Iterator[Any]]]] = [(PASSES, kind, passes) for kind in PASSES]
    if true.owed is not None:
        width = max(32, 1 << (true.k.shape[-1] - 1).bit_length())
        tables.insert(0, (OWED, next(most for most in OWED if width <= most), owed_passes))
    for table, kind, shapes in tables:
        today = table[kind]
        for shape in dict.fromkeys((today, *shapes())):
            if time.monotonic() > until:
                break
            name = f"{kind}: {words(shape)}" + (" (in use)" if shape == today else "")
            table[kind] = shape
            try:
                got = guarded(once)
                if isinstance(got, Failure):
                    found.append((name, got.reason))
                elif not all(_same(getattr(got, part), getattr(true, part)) for part in ("q", "k", "v")):
                    found.append((name, "holds something else"))
                elif true.owed is not None and not _close(got.owed, true.owed):
                    found.append((name, "owes something else"))
                else:
                    times, failed = interleaved({name: lambda c: {"kernel": c.time(once)[1]}}, clock, reps=reps)
                    found.append((name, failed[name].reason if failed else Spread.of(times[name]["kernel"]).median))
            finally:
                table[kind] = today
    return found


def _close(a: torch.Tensor | None, b: torch.Tensor) -> bool:
    """Up to roundings of the sums."""
    return a is not None and float((a - b).norm() / b.norm()) < 1e-7


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int8), b.view(torch.int8))


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
    add("--passes", action="store_true", help="of the pre-pass")
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

    def once() -> Held:
        return hold(operands.q, operands.k, operands.v, spec, got.impl, site=where.site, state=where.state)

    if got.passes:
        found = _pass_times(once, device, got.reps, until)
    else:
        found = _times(once(), spec, dtype, got.reps, until)
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
