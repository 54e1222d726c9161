"""Rounds in which all take turns, and what is made of their times."""

import statistics

import numpy as np
import pytest
import torch
from bench_cases import FakeClock

from mxbench.bench import timing
from mxbench.bench.failures import Failure, guarded
from mxbench.bench.timing import Spread, WallClock, interleaved, ratios
from mxbench.errors import UserError


def turn(clock, name, milliseconds):
    work = clock.takes(name, milliseconds, lambda: None)
    return lambda clock: {"call": clock.time(work)[1]}


def test_everyone_has_one_turn_in_every_round_and_the_order_changes():
    clock, names = FakeClock(), ["a", "b", "c", "d"]
    turns = []
    found, failed = interleaved(
        {name: turn(clock, name, 1.0) for name in names}, clock, reps=9, warmup=2, on_round=lambda: turns.append(1)
    )
    rounds = [tuple(clock.log[i : i + 4]) for i in range(0, len(clock.log), 4)]
    assert [sorted(each) for each in rounds] == [names] * 11
    assert len(set(rounds)) > 3
    assert len({each[0] for each in rounds}) > 1
    assert len(turns) == 44
    assert {name: len(each["call"]) for name, each in found.items()} == dict.fromkeys(names, 9)
    assert failed == {}


def test_the_order_is_drawn_from_the_seed():
    logs = []
    for seed in (0, 0, 1):
        clock = FakeClock()
        interleaved({name: turn(clock, name, 1.0) for name in "abcde"}, clock, reps=6, seed=seed)
        logs.append(clock.log)
    assert logs[0] == logs[1] != logs[2]


def test_warm_up_rounds_do_not_count_and_times_keep_their_rounds():
    clock = FakeClock()
    found, _ = interleaved(
        {"slow": turn(clock, "slow", [99.0, 2.0, 4.0, 6.0]), "fast": turn(clock, "fast", [77.0, 1.0, 2.0, 2.0])},
        clock,
        reps=3,
    )
    assert found == {"slow": {"call": [2.0, 4.0, 6.0]}, "fast": {"call": [1.0, 2.0, 2.0]}}
    assert ratios(found["slow"]["call"], found["fast"]["call"]).median == 2.0


def test_a_drifting_clock_leaves_the_ratio_alone():
    drift = [1.0, 1.1, 1.3, 1.7, 2.9]
    ratio = ratios([10.0 * d for d in drift], [5.0 * d for d in drift])
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_who_fails_drops_out_and_the_others_go_on():
    clock = FakeClock()
    calls = []

    def breaks(_):
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return {"call": 1.0}

    found, failed = interleaved({"good": turn(clock, "good", 1.0), "bad": breaks}, clock, reps=5)
    assert len(calls) == 3
    assert list(found) == ["good"]
    assert len(found["good"]["call"]) == 5
    assert failed == {"bad": Failure("out of memory", "no room on the device for this shape")}


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20, 101])
def test_spreads_are_the_quantiles_of_numpy_and_of_statistics(n):
    values = np.random.default_rng(n).lognormal(size=n).tolist()
    spread = Spread.of(values)
    expected = np.percentile(values, [50, 5, 95])
    assert (spread.median, spread.low, spread.high) == pytest.approx(tuple(expected), rel=1e-14)
    assert spread.n == n
    if n > 1:
        cuts = statistics.quantiles(values, n=20, method="inclusive")
        assert (spread.low, spread.median, spread.high) == pytest.approx((cuts[0], cuts[9], cuts[18]), rel=1e-12)


def test_the_wall_clock_counts_the_work_alone(monkeypatch):
    ticks = iter([1_000_000, 4_500_000])
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: next(ticks))
    assert WallClock().time(lambda: "done") == ("done", 3.5)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("D is 96", "use another"), "unsupported", "D is 96"),
        (MemoryError(), "out of memory", "no room"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9"), "out of memory", "no room"),
        (RuntimeError("CUDA error: out of memory\nmore"), "out of memory", "no room"),
        (ValueError("odd\n  shape"), "failed", "ValueError: odd shape"),
        (AssertionError(), "failed", "AssertionError"),
        (RuntimeError("x" * 999), "failed", "…"),
    ],
)
def test_failures_are_told_apart_in_one_line(error, status, said):
    def breaks():
        raise error

    failure = guarded(breaks)
    assert failure.status == status
    assert said in failure.reason
    assert "\n" not in failure.reason
    assert len(failure.reason) < 230


def test_an_interrupt_is_no_failure():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(interrupted)
