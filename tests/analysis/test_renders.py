"""Two runs of one recipe compared: against scikit-image, and every way in which there is nothing to compare."""

import json
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeModel
from skimage.metrics import peak_signal_noise_ratio

from mxbench.analysis.renders import main, pairs
from mxbench.cli.progress import Silent
from mxbench.errors import UserError
from mxbench.runs.plan import expand
from mxbench.runs.recipe import parse
from mxbench.runs.runner import run
from mxbench.runs.store import Store

FIELDS = {
    "prompts": ["one", "two"],
    "methods": ["mxfp4", "mxattn"],
    "sampling": {"frames": 5, "steps": 2},
    "metrics": ["psnr"],
}


class Other(FakeModel):
    """Another kernel: one method's frames move by up to ``by``, and another's do not."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def render(self, prompt, seed, sampling, schedule, impl, on_step=None):
        render = super().render(prompt, seed, sampling, schedule, impl, on_step)
        if schedule.name != "mxattn":
            return render
        noise = np.random.default_rng(seed).integers(-self.by, self.by + 1, render.frames.shape)
        return replace(render, frames=np.clip(render.frames + noise, 0, 255).astype(np.uint8))


def go(folder, model, **changes):
    plan = expand(parse(FIELDS | changes), "cpu")
    store = Store(folder, create=True)
    store.put_plan("t", plan.to_dict())
    run(plan, store, Silent(), loader=lambda *_: model)
    return store


def test_a_small_difference_is_within_the_noise_floor_and_a_large_one_is_named(tmp_path, capsys):
    one, near = go(tmp_path / "a", FakeModel()), go(tmp_path / "b", Other(2))
    go(tmp_path / "c", Other(90))
    found = pairs(one, near)
    prompts = [prompt["id"] for prompt in one.plans()["t"]["prompts"]]
    assert [p.method for p in found] == ["fp16"] * 2 + ["mxfp4"] * 2 + ["mxattn"] * 2
    assert all({a.prompt, b.prompt} == set(prompts) for a, b in zip(found[::2], found[1::2], strict=True))
    assert all(pair.same for pair in found)
    assert {pair.psnr for pair in found if pair.method != "mxattn"} == {100.0}
    row = next(row for row in one.plans()["t"]["rows"] if row["key"] == "mxattn")
    for pair in found[-2:]:
        cell = row["cells"][pair.prompt]["0"]
        a, b = one.clip(cell).frames, near.clip(cell).frames
        expected = np.mean([peak_signal_noise_ratio(x, y) for x, y in zip(a, b, strict=True)])
        assert pair.psnr == pytest.approx(expected, abs=1e-9)
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "| mxattn | reference and reference | 2 |" in capsys.readouterr().out
    assert main([str(tmp_path / "a"), str(tmp_path / "c"), "--json"]) == 1
    listed = json.loads(capsys.readouterr().out)
    assert [p["same"] for p in listed] == [True] * 4 + [False] * 2
    assert all(p["psnr"] < p["floor"] - 1 for p in listed[4:])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling": {"frames": 5, "steps": 3}}, "differ in sampling"),
        ({"prompts": ["three"], "methods": ["mxfp4"]}, "no render is in both runs"),
    ],
)
def test_runs_that_cannot_be_compared(tmp_path, changes, said):
    one, other = go(tmp_path / "a", FakeModel()), go(tmp_path / "b", FakeModel(), **changes)
    with pytest.raises(UserError, match=said):
        pairs(one, other)


def test_a_run_without_a_noise_floor_measures_nothing(tmp_path):
    one = go(tmp_path / "a", FakeModel(), noise_floor=False)
    with pytest.raises(UserError, match="has no noise floor"):
        pairs(one, one)


def test_a_folder_of_two_runs_is_not_one(tmp_path):
    one = go(tmp_path / "a", FakeModel())
    one.put_plan("u", one.plans()["t"])
    with pytest.raises(UserError, match="holds 2 runs"):
        pairs(one, one)
