"""Clocks, and rounds in which all candidates take turns: a clock that drifts then hits all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from mxbench.bench.failures import Failure, guarded

__all__ = ["Clock", "CudaClock", "Round", "Spread", "WallClock", "clock_for", "interleaved", "ratios"]

T = TypeVar("T")

_FLUSH = 256 << 20  # bytes, at least; several times the L2 of any device


@dataclass(frozen=True, slots=True)
class Spread:
    """What repetitions say: the median, and the 5% and 95% quantiles (linear interpolation)."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Of at least one value."""
        low, median, high = (float(x) for x in np.quantile(values, (0.05, 0.5, 0.95)))
        return cls(median, low, high, len(values))

    def to_dict(self) -> dict[str, float]:
        """Plain data for programs."""
        return asdict(self)


class Clock(Protocol):
    """Times one piece of work."""

    def time(self, work: Callable[[], T]) -> tuple[T, float]:
        """What the work returned, and its milliseconds."""
        ...


class WallClock:
    """For the CPU, where a call returns when its work is done."""

    def time(self, work: Callable[[], T]) -> tuple[T, float]:
        """What the work returned, and its milliseconds."""
        begun = time.perf_counter_ns()
        result = work()
        return result, (time.perf_counter_ns() - begun) / 1e6


class CudaClock:
    """CUDA events around the work, on a device whose L2 holds nothing of it.

    The flush also keeps the device busy while the host launches the work, so that a short kernel is not timed with the
    gap before it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        size = max(_FLUSH, 4 * torch.cuda.get_device_properties(device).L2_cache_size)
        self._flush = torch.empty(size // 4, dtype=torch.int32, device=device)

    def time(self, work: Callable[[], T]) -> tuple[T, float]:
        """What the work returned, and its milliseconds."""
        with torch.cuda.device(self._device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            start.record()
            result = work()
            end.record()
            end.synchronize()
            return result, float(start.elapsed_time(end))


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else WallClock()


Round = Callable[[Clock], dict[str, float]]
"""One repetition of a candidate: the milliseconds of each of its stages."""


def interleaved(
    rounds: Mapping[str, Round],
    clock: Clock,
    *,
    reps: int,
    warmup: int = 1,
    seed: int = 0,
    on_round: Callable[[], None] | None = None,
) -> tuple[dict[str, dict[str, list[float]]], dict[str, Failure]]:
    """Time candidates in turn: each once in every round, in an order drawn anew for each.

    Args:
        rounds: the candidates.
        clock: of their device.
        reps: rounds that count.
        warmup: rounds before them that do not.
        seed: of the orders.
        on_round: called after each candidate's turn.

    Returns:
        Milliseconds by candidate and stage, aligned by round; and the candidates that failed, which have no times.
    """
    dice = random.Random(seed)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in rounds}
    failed: dict[str, Failure] = {}
    for number in range(warmup + reps):
        order = list(rounds)
        dice.shuffle(order)
        for name in order:
            if name not in failed:
                turn = guarded(lambda name=name: rounds[name](clock))  # type: ignore[misc]
                if isinstance(turn, Failure):
                    failed[name] = turn
                    del found[name]
                elif number >= warmup:
                    for stage, milliseconds in turn.items():
                        found[name].setdefault(stage, []).append(milliseconds)
            if on_round is not None:
                on_round()
    return found, failed


def ratios(base: list[float], other: list[float]) -> Spread:
    """How many times as fast as the base a candidate is, from the rounds in which both had a turn."""
    return Spread.of([b / o for b, o in zip(base, other, strict=True)])
