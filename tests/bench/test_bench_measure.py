"""One shape: rows with times for what is right, and without for what is not."""

from dataclasses import replace

import pytest
import torch
from bench_cases import SMALL, FakeClock, exact, halves, peer, zeros

from mxbench.attention.methods import METHODS
from mxbench.bench import examine, measure, operands, targets
from mxbench.bench.candidates import method_candidates
from mxbench.bench.examine import nbytes
from mxbench.bench.measure import Settings, steps
from mxbench.bench.targets import target
from mxbench.errors import UserError

SETTINGS = Settings("cpu", "float32", reps=3)
BYTES = 4 * 16 * 2 * (40 + 72 + 72)


def run(candidates, clock=None, settings=SETTINGS, **options):
    return measure.measure("", SMALL, candidates, settings, clock=clock or FakeClock(), **options)


def by_key(found):
    return {row.method or row.impl: row for row in found.rows}


def test_times_ratios_and_bandwidth_are_what_the_clock_says(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(measure, "_COPY", {"cpu": 1_000_000})
    base = peer(
        "torch-sdpa", clock.takes("base", [7.0, 7.0, 8.0, 8.0, 10.0], exact)
    )  # checked, warmed up, three rounds
    split = halves(
        "split",
        clock.takes("prepare", [1.0, 1.0, 1.0, 2.0, 1.0], lambda o: (o, torch.zeros(100))),
        clock.takes("run", 4.0, lambda prepared: exact(prepared[0])),
        clock.takes("split", [1.0, 1.0, 5.0, 8.0, 10.0], exact),
    )
    found = run([base, split], clock)
    rows = by_key(found)
    assert found.base == ("torch-sdpa", "TORCH-SDPA")
    assert rows["torch-sdpa"].kernel == rows["torch-sdpa"].call
    assert rows["torch-sdpa"].ratio_kernel.median == rows["torch-sdpa"].ratio_call.median == 1.0
    split = rows["split"]
    assert (split.prepass.median, split.kernel.median, split.call.median) == (1.0, 4.0, 8.0)
    assert split.ratio_kernel.median == 2.0  # of 8/4, 8/4, 10/4
    assert split.ratio_call.median == 1.0  # of 8/5, 8/8, 10/10
    assert split.prepass_share == pytest.approx(0.2)  # of 1/5, 2/8, 1/10
    assert split.tflops == pytest.approx(4 * 2 * 40 * 72 * 16 / 4e-3 / 1e12)
    assert split.prepass_gb_s == pytest.approx((BYTES + BYTES + 400) / 1e-3 / 1e9)
    assert found.copy_gb_s.median == pytest.approx(2e6 / 1e-3 / 1e9)
    assert split.prepass_of_copy == pytest.approx(split.prepass_gb_s / found.copy_gb_s.median)
    assert rows["torch-sdpa"].prepass is rows["torch-sdpa"].prepass_of_copy is None
    assert {row.status for row in found.rows} == {"measured"}


def test_a_wrong_output_is_red_and_never_timed():
    clock = FakeClock()
    found = run([peer("torch-sdpa", exact), peer("wrong", clock.takes("wrong", 1.0, zeros))], clock)
    wrong = by_key(found)["wrong"]
    assert wrong.status == "red"
    assert wrong.error == pytest.approx(1.0)
    assert wrong.allowed == 1e-5
    assert "1.0e+00 from the exact one" in wrong.reason
    assert (wrong.call, wrong.kernel, wrong.tflops, wrong.ratio_call) == (None,) * 4
    assert clock.log == ["wrong"]
    assert by_key(found)["torch-sdpa"].call is not None


def test_halves_that_do_not_make_the_whole_are_red():
    clock = FakeClock()
    bad = halves("bad", lambda o: o, clock.takes("run", 1.0, zeros), exact)
    assert by_key(run([bad], clock))["bad"].status == "red"
    assert clock.log == ["run"]


def test_who_writes_to_the_operands_is_red_and_spoils_nobody():
    def writes(o):
        out = exact(o)
        o.k.zero_()
        return out

    found = run([peer("torch-sdpa", exact), peer("writes", writes), peer("after", exact)])
    assert [row.status for row in found.rows] == ["measured", "red", "measured"]
    assert found.rows[1].reason == "it wrote to its operands"
    alone = run(
        [peer("writes", writes), *method_candidates(["mxattn"], ["reference"], torch.device("cpu"), torch.float32)]
    )
    assert [row.status for row in alone.rows] == ["red", "measured"]


def test_every_way_to_fail_is_a_row():
    def full(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def refuses(_):
        raise UserError("D is 16", "use 128")

    calls = []

    def breaks_later(o):
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("launch failed")
        return exact(o)

    steps_done = []
    found = run(
        [
            peer("torch-sdpa", exact),
            peer("full", full),
            peer("refuses", refuses),
            peer("later", breaks_later),
            peer("gone", exact, missing="gone is not installed"),
            *method_candidates(["mxattn"], ["sdpa"], torch.device("cpu"), torch.float32),
        ],
        on_step=steps_done.append,
    )
    outcomes = {row.impl: (row.status, row.reason) for row in found.rows}
    assert outcomes == {
        "torch-sdpa": ("measured", ""),
        "full": ("out of memory", "no room on the device for this shape"),
        "refuses": ("unsupported", "D is 16"),
        "later": ("failed", "RuntimeError: launch failed"),
        "gone": ("absent", "gone is not installed"),
        "sdpa": ("unsupported", "sdpa is an exact kernel and the method quantises"),
    }
    assert all((row.call is None) == (row.status != "measured") for row in found.rows)
    assert steps_done[:2] == ["checking torch-sdpa", "checking full"]
    assert set(steps_done[4:]) == {"timing"}


def test_operands_without_room_make_rows_too(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measure, "draw", full)
    found = run([peer("torch-sdpa", exact), peer("gone", exact, missing="not installed")])
    assert [row.status for row in found.rows] == ["out of memory", "absent"]
    assert "not even for its operands" in found.rows[0].reason
    assert found.base is found.compared is None


def test_no_room_for_the_clock_makes_rows_too(monkeypatch):
    def full(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measure, "clock_for", full)
    found = measure.measure("", SMALL, [peer("torch-sdpa", exact), peer("wrong", zeros)], SETTINGS)
    assert [row.status for row in found.rows] == ["out of memory", "red"]


def test_without_room_to_mend_the_operands_nobody_else_is_blamed(monkeypatch):
    def writes(o):
        o.k.zero_()
        return exact(o)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(examine, "draw", full)
    with pytest.raises(UserError, match="writes wrote to its operands, and there is no room"):
        run([peer("writes", writes), peer("torch-sdpa", exact)])


@pytest.mark.parametrize(
    ("names", "base"),
    [
        (["torch-sdpa", "torch-cudnn", "fa4"], "fa4"),
        (["torch-sdpa", "torch-cudnn"], "torch-cudnn"),
        (["other", "torch-sdpa"], "torch-sdpa"),
        (["other"], None),
    ],
)
def test_the_base_is_the_best_exact_peer_that_is_right(names, base):
    found = run([peer(name, exact) for name in names])
    assert (found.base[0] if found.base else None) == base
    assert all((row.ratio_call is None) == (base is None) for row in found.rows)
    wrong = run([peer("fa4", zeros), peer("torch-sdpa", exact)])
    assert wrong.base[0] == "torch-sdpa"


def test_the_methods_of_a_cpu_are_all_measured():
    cpu = torch.device("cpu")
    candidates = [*method_candidates([], ["reference"], cpu, torch.float32)]
    candidates += method_candidates(["fp16"], ["sdpa"], cpu, torch.float32)
    found = run(candidates)
    assert found.base == ("fp16/sdpa", "FP16")
    assert [row.status for row in found.rows] == ["measured"] * (len(METHODS) + 1)
    for row in found.rows:
        quantised = METHODS[row.method].spec.quantised
        assert (row.prepass is not None) == (row.own_error is not None) == quantised
        assert (row.grouping is not None) == (METHODS[row.method].spec.v_smooth is not None)
        assert row.against == ("reference" if quantised else "exact")
    assert found.compared.whole


def test_the_seat_of_v_smooth_is_made_once_a_shape(monkeypatch):
    made = []
    honest = operands.seat
    monkeypatch.setattr(examine, "seat", lambda *a: made.append(1) or honest(*a))
    run(method_candidates(["vc8", "vc4", "mxattn"], ["reference"], torch.device("cpu"), torch.float32))
    assert len(made) == 1


def test_bytes_are_counted_once_each():
    x, y = torch.zeros(3, dtype=torch.float64), torch.zeros(5, dtype=torch.uint8)
    assert nbytes((x, [y, {"again": x}], None, 7)) == 24 + 5
    drawn = operands.draw(SMALL, torch.device("cpu"), torch.float32, 0)
    assert nbytes(drawn) == drawn.nbytes == BYTES


def test_steps_are_a_check_and_a_turn_in_every_round():
    candidates = [peer("a", exact), peer("b", exact), peer("c", exact, missing="gone")]
    assert steps(2, candidates, SETTINGS) == 2 * (2 + 3 * 4)


def test_targets_hold_where_they_were_set_alone():
    def of(method, impl, shape=targets.SHAPE, base="fa4", device="NVIDIA H200", dtype="bfloat16"):
        found = target(method, impl, shape, base=base, device=device, dtype=dtype)
        return (found.goal, found.floor) if found else None

    assert of("vc8", "fast") == (1.60, 1.46)
    assert of("mxattn", "fast") == (1.20, 1.00)
    assert of("nvfp4", "conformance") == of("vc4", "conformance") == (0.75, 0.60)
    assert of("sage2", "conformance") is of("fp8", "fast") is of("mxattn", "reference") is of("", "fa4") is None
    assert of("vc8", "fast", shape=SMALL) is of("vc8", "fast", base="torch-sdpa") is None
    assert of("vc8", "fast", device="NVIDIA A100") is of("vc8", "fast", dtype="float16") is None


def test_the_target_enters_the_row(monkeypatch):
    monkeypatch.setattr(targets, "SHAPE", SMALL)
    (made,) = method_candidates(["vc8"], ["reference"], torch.device("cpu"), torch.bfloat16)
    candidates = [peer("fa4", exact, allowed=5e-3), replace(made, impl="fast"), made]
    settings = Settings("cpu", "bfloat16", reps=1)
    rows = run(candidates, settings=settings, device_name="NVIDIA H200").rows
    assert [(row.status, row.goal, row.floor) for row in rows] == [
        ("measured", None, None),
        ("measured", 1.60, 1.46),
        ("measured", None, None),
    ]
    assert [row.floor for row in run(candidates, settings=settings, device_name="NVIDIA H100").rows] == [None] * 3
