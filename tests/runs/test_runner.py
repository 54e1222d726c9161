"""The runner: every cell once, and no failing cell costs another."""

import errno
import gc
import json
import subprocess
import sys
import threading
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import FakeModel

from mxbench.cli.progress import Silent
from mxbench.errors import UserError
from mxbench.report.load import table_data, write_reports
from mxbench.runs import store as store_module
from mxbench.runs.plan import expand
from mxbench.runs.recipe import parse
from mxbench.runs.runner import run
from mxbench.runs.store import Store

FIELDS = {
    "prompts": ["one", "two"],
    "methods": ["mxfp4", "mxattn", "nvfp4"],
    "sampling": {"frames": 5, "steps": 2},
    "metrics": ["psnr", "ssim", "temporal_flickering"],
}


def go(out, model=None, **changes):
    plan = expand(parse(FIELDS | changes), "cpu")
    store = Store(out, create=True)
    store.put_plan("t", plan.to_dict())
    model = model or FakeModel()
    outcome = run(plan, store, Silent(), loader=lambda *_: model)
    write_reports(store, "t", None)
    return outcome, model, store


def test_a_second_run_renders_nothing_and_a_larger_one_only_what_is_new(tmp_path):
    outcome, model, _ = go(tmp_path)
    assert (outcome.rendered, outcome.kept, outcome.failed) == (10, 0, [])
    report = (tmp_path / "report.md").read_bytes()
    outcome, model, _ = go(tmp_path)
    assert (outcome.rendered, outcome.kept) == (0, 10)
    assert model.rendered == []
    assert (tmp_path / "report.md").read_bytes() == report
    outcome, model, _ = go(tmp_path, methods=["mxfp4", "fp8"], prompts=["two", "three"])
    assert Counter(name for name, *_ in model.rendered) == {"fp16": 2, "mxfp4": 1, "fp8": 2}


def test_a_function_beside_a_method_leaves_the_method_to_the_impl_that_was_asked_for(tmp_path):
    asked = []

    class Asked(FakeModel):
        def render(self, prompt, seed, sampling, schedule, impl, on_step=None):
            asked.append((schedule.name, impl))
            return super().render(prompt, seed, sampling, schedule, impl, on_step)

    mine = {"function": "torch.nn.functional:scaled_dot_product_attention"}
    rows = [
        {"name": "mine", **mine},
        {"name": "both", "rules": [{"layers": 0, "use": mine}, {"use": "mxattn"}]},
        {"name": "hybrid", "rules": [{"layers": 0, "use": "fp16"}, {"use": "mxattn"}]},
    ]
    go(tmp_path / "a", Asked(), prompts=["one"], noise_floor=False, methods=rows, impl="reference")
    assert asked == [("fp16", "sdpa"), ("mine", "auto"), ("both", "reference"), ("hybrid", "reference")]
    asked.clear()
    go(tmp_path / "b", Asked(), prompts=["one"], noise_floor=False, methods=rows)
    assert asked == [("fp16", "sdpa"), ("mine", "auto"), ("both", "reference"), ("hybrid", "auto")]


def test_calls_that_were_widened_are_named_in_the_report(tmp_path):
    class Widened(FakeModel):
        def render(self, prompt, seed, sampling, schedule, impl, on_step=None):
            made = super().render(prompt, seed, sampling, schedule, impl, on_step)
            return replace(made, widened_calls={"mxfp4": 3, "mxattn": 2}.get(schedule.name, 0))

    go(tmp_path, Widened())
    note = "Attention calls of fast whose operands span more than E5M2 holds, computed by conformance: "
    assert note + "MXFP4 (OCP) 6, MXAttention 4." in (tmp_path / "report.md").read_text(encoding="utf-8")
    outcome, _, _ = go(tmp_path)
    assert outcome.rendered == 0
    assert note in (tmp_path / "report.md").read_text(encoding="utf-8")
    go(tmp_path / "none")
    assert "E5M2" not in (tmp_path / "none" / "report.md").read_text(encoding="utf-8")


def test_one_prompts_reference_comes_before_what_is_compared_with_it(tmp_path):
    _, model, _ = go(tmp_path)
    assert [(name, prompt) for name, prompt, _ in model.rendered][:5] == [
        ("fp16", "one"), ("fp16", "one"), ("mxfp4", "one"), ("mxattn", "one"), ("nvfp4", "one"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("nan", "failed: NaN or infinity in the latents from step 1"),
        ("black", "failed: black frames from frame 0"),
        (RuntimeError("out of memory\nwith a long tail"), "error: RuntimeError: out of memory with a long tail"),
        (UserError("this D has no Hadamard", "use another"), "error: this D has no Hadamard; use another"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            "error: out of memory on cpu; free memory there, choose another --device, or render smaller or shorter "
            "clips",
        ),
    ],
)
def test_a_failing_cell_stops_nothing_and_says_why(tmp_path, problem, said):
    outcome, _, store = go(tmp_path, FakeModel({"mxattn": problem}))
    assert [(failure.row, failure.reason) for failure in outcome.failed] == [("mxattn", said)] * 2
    assert [failure.cell for failure in outcome.failed] == ["“one”, seed 0", "“two”, seed 0"]
    assert outcome.rendered == 8
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert said.split(": ", 1)[1].split(";")[0] in report
    values = {o.row for o in table_data(store, "t").observations if o.value is not None}
    assert values == {"fp16", "fp16-floor", "mxfp4", "nvfp4"}


def test_memory_of_a_cell_that_broke_is_free_for_the_next(tmp_path):
    class Full(FakeModel):
        alive = ()

        def render(self, prompt, seed, sampling, schedule, impl, on_step=None):
            if schedule.name == "mxattn":
                operand = torch.zeros(3)
                self.alive += (weakref.ref(operand),)
                raise torch.OutOfMemoryError("CUDA out of memory.")
            assert not any(operand() is not None for operand in self.alive)
            return super().render(prompt, seed, sampling, schedule, impl, on_step)

    gc.disable()  # torch's allocator does not wait for it
    try:
        outcome, model, _ = go(tmp_path, Full())
    finally:
        gc.enable()
    assert (outcome.rendered, len(outcome.failed), len(model.alive)) == (8, 2, 2)
    kept = json.loads(next((tmp_path / "errors").iterdir()).read_text(encoding="utf-8"))
    assert kept["reason"].startswith("out of memory on cpu")
    assert "OutOfMemoryError: CUDA out of memory." in kept["trace"]


def test_a_finding_is_kept_and_an_error_is_tried_again(tmp_path):
    go(tmp_path, FakeModel({"mxattn": "nan", "nvfp4": RuntimeError("once")}))
    outcome, model, _ = go(tmp_path)
    assert {name for name, *_ in model.rendered} == {"nvfp4"}
    failed = [(failure.row, failure.reason) for failure in outcome.failed]
    assert failed == [("mxattn", "failed: NaN or infinity in the latents from step 1")] * 2
    assert not list((tmp_path / "errors").iterdir())


def test_without_its_reference_a_cell_is_unscored_with_the_reason(tmp_path):
    go(tmp_path, FakeModel({"fp16": RuntimeError("once")}))
    assert "its FP16 reference is missing" in (tmp_path / "report.md").read_text(encoding="utf-8")
    outcome, _, store = go(tmp_path)
    assert outcome.rendered == 4
    assert all(o.value is not None for o in table_data(store, "t").observations)


def test_a_full_disk_stops_the_run_and_the_next_one_goes_on(tmp_path, monkeypatch):
    honest, count = store_module.write_lossless, 0

    def filling(*args):
        nonlocal count
        count += 1
        if count > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(*args)

    with monkeypatch.context() as patched:
        patched.setattr(store_module, "write_lossless", filling)
        outcome, _, _ = go(tmp_path)
    assert outcome.rendered == 4
    assert "the disk is full" in outcome.stopped
    outcome, model, _ = go(tmp_path)
    assert len(model.rendered) == 6
    assert outcome.stopped is None


def test_metrics_are_added_without_rendering(tmp_path):
    go(tmp_path)
    _, model, store = go(tmp_path, metrics=["psnr", "cosine"])
    assert model.rendered == []
    assert all(o.value is not None for o in table_data(store, "t").observations)


def test_vbench_columns_are_unscored_and_say_why(tmp_path):
    go(tmp_path, metrics=["psnr", "subject_consistency"])
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "unscored" in report
    assert "VBench" in report


def test_two_runs_at_once_share_the_work(tmp_path):
    plan = expand(parse(FIELDS | {"prompts": [f"prompt {i}" for i in range(4)]}))
    models, outcomes = [FakeModel(), FakeModel()], []

    def work(model):
        outcomes.append(run(plan, Store(tmp_path, create=True), Silent(), loader=lambda *_: model))

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rendered = models[0].rendered + models[1].rendered
    assert len(rendered) == 20
    # fp16 is rendered by two kernels; everything else once.
    assert set(Counter(rendered).values()) == {1, 2}
    assert sum(outcome.rendered for outcome in outcomes) == 20


@pytest.mark.slow
def test_killed_twenty_times_and_resumed_it_ends_with_the_same_report(tmp_path):
    driver = Path(__file__).parents[1] / "support" / "crash_driver.py"
    command = [sys.executable, str(driver), str(tmp_path), "kill"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"kills": 20, "problems": []}
