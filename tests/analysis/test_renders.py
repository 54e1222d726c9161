"""Two runs of one recipe compared: against scikit-image, and every way in which there is nothing to compare."""

import json
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeModel
from skimage.metrics import peak_signal_noise_ratio

from mxbench.analysis.renders import compared, floors, main, pairs
from mxbench.cli.progress import Silent
from mxbench.errors import UserError
from mxbench.runs.plan import expand
from mxbench.runs.recipe import parse
from mxbench.runs.runner import run
from mxbench.runs.store import Store

FIELDS = {
    "prompts": ["one", "two", "three", "four"],
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
    assert [p.method for p in found] == ["fp16"] * 4 + ["mxfp4"] * 4 + ["mxattn"] * 4
    assert all({p.prompt for p in found[i : i + 4]} == set(prompts) for i in (0, 4, 8))
    assert all(pair.same for pair in found)
    assert {pair.psnr for pair in found if pair.method != "mxattn"} == {100.0}
    row = next(row for row in one.plans()["t"]["rows"] if row["key"] == "mxattn")
    exact = one.plans()["t"]["rows"][0]
    for pair in found[-4:]:
        cell = row["cells"][pair.prompt]["0"]
        a, b = one.clip(cell).frames, near.clip(cell).frames
        expected = np.mean([peak_signal_noise_ratio(x, y) for x, y in zip(a, b, strict=True)])
        assert pair.psnr == pytest.approx(expected, abs=1e-9)
        c = one.clip(exact["cells"][pair.prompt]["0"]).frames
        for frames, far in zip((a, b), pair.from_fp16, strict=True):
            expected = np.mean([peak_signal_noise_ratio(x, y) for x, y in zip(c, frames, strict=True)])
            assert far == pytest.approx(expected, abs=1e-9)
    small = compared(found)["mxattn"]
    assert small.differs  # a little further from FP16 on every prompt
    assert -0.3 < small.difference[0] < 0
    go(tmp_path / "d", Other(0))
    assert main([str(tmp_path / "a"), str(tmp_path / "d")]) == 0
    assert "| mxattn | reference and reference | 4 |" in capsys.readouterr().out
    assert main([str(tmp_path / "a"), str(tmp_path / "c"), "--json"]) == 1
    listed = json.loads(capsys.readouterr().out)
    assert [p["same"] for p in listed] == [True] * 8 + [False] * 4
    assert all(p["psnr"] < p["floor"] - 1 for p in listed[8:])
    each = compared(pairs(one, Store(tmp_path / "c")))
    assert [each[name].differs for name in ("fp16", "mxfp4", "mxattn")] == [False, False, True]
    assert each["mxattn"].difference[0] < -5


def test_a_method_s_own_noise_floor_is_that_of_its_prompt(tmp_path, capsys):
    one, other = go(tmp_path / "a", FakeModel()), go(tmp_path / "b", Other(90))
    between = {pair.prompt: pair.psnr for pair in pairs(one, other) if pair.method == "mxattn"}
    ids = {prompt["text"]: prompt["id"] for prompt in one.plans()["t"]["prompts"]}
    above = {"one": 2.0, "two": -0.5, "three": 0.1}  # dB; the last two are within the margin, "four" is not measured
    told = [
        {"method": "mxattn", "prompt": text, "apart": between[ids[text]] + by, "from_fp16": 9.0}
        for text, by in above.items()
    ]
    file = tmp_path / "floors.json"
    file.write_text(json.dumps(told))
    found = [pair for pair in pairs(one, other, floors([file])) if pair.method == "mxattn"]
    assert {pair.prompt: pair.own_same for pair in found} == {ids[t]: t in ("two", "three") for t in ids}
    mean, low, high = compared(found)["mxattn"].above_own
    assert mean == pytest.approx(-np.mean(list(above.values())))
    spread = np.std(list(above.values()), ddof=1) / 3**0.5
    assert (low, high) == pytest.approx((mean - 4.302653 * spread, mean + 4.302653 * spread), rel=1e-6)
    main([str(tmp_path / "a"), str(tmp_path / "b"), "--rounding", str(file)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    assert "| 2/3 | -0.53 [" in lines[-1]
    assert "| – | – | – |" in lines[2]


@pytest.mark.parametrize("text", ["", "[1]", '[{"method": "mxattn"}]', '{"a": 1}'])
def test_a_file_without_noise_floors(tmp_path, text):
    file = tmp_path / "floors.json"
    file.write_text(text)
    with pytest.raises(UserError, match="holds no noise floors"):
        floors([file])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling": {"frames": 5, "steps": 3}}, "differ in sampling"),
        ({"prompts": ["five"], "methods": ["mxfp4"]}, "no render is in both runs"),
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
