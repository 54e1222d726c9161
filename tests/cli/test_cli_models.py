"""The whole command line on real classes at tiny size, from ``run`` to the table."""

import csv
import json
import re
from pathlib import Path

import pytest

from mxbench import METHODS


@pytest.mark.parametrize("model", ["wan2.2", "hunyuanvideo", "hunyuanvideo-1.5", "minimax-h3"])
def test_a_run_of_every_method_with_random_weights_says_so_in_every_row(model, mxbench_cli):
    methods = ["mxattn", "vc8"] if model == "minimax-h3" else [name for name in METHODS if name != "fp16"]
    given = ["--model", model, "--weights", "random:tiny", "--limit", "1", *(f"--method={name}" for name in methods)]
    code, out, err = mxbench_cli("run", *given, "--steps", "2", "--out", "run", "--quiet")
    assert (code, err.splitlines()[-1]) == (0, "Written: run/report.md, run/report.csv")
    with Path("run/report.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    labels = {row["label"] for row in rows}
    assert len(labels) == 2 + len(methods)
    assert {row["row"] for row in rows} == {"fp16", "fp16-floor", *methods}
    moved = {row["row"]: float(row["mean"]) for row in rows if row["metric"] == "psnr" and row["mean"]}
    assert all(moved[name] < 100 for name in methods)
    assert all("(random weights)" in label for label in labels)
    assert "random weights, seed 0, tiny" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--weights", "./nowhere"], "nowhere"),
        (["--weights", "random:huge"], "random:tiny"),
        (["--weights", "random:tiny", "--revision", "main"], "revision"),
        (["--weights", "random:tiny", "--memory", "most"], "--memory"),
        (
            ["--weights", "random:tiny", "--memory", "group", "--device", "cpu"],
            "on cpu: there is nothing to offload to",
        ),
        (["--model", "nano", "--weights", "random"], "nano brings its own weights along"),
        (["--model", "nano", "--memory", "group"], "nano is placed whole"),
    ],
)
def test_what_cannot_be_had_is_one_line_before_anything_is_loaded(arguments, said, mxbench_cli):
    code, _, err = mxbench_cli("run", "--model", "wan2.2", "--method", "mxattn", "--out", "run", *arguments)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("run").exists()


def test_a_recipe_is_shown_without_its_weights(mxbench_cli):
    code, out, _ = mxbench_cli("show", "mxattention-table2-wan2.2", "--json")
    assert code == 0
    data = json.loads(out)
    assert data["weights"] == "the model's own, not looked up"
    rows = {row["key"]: row for row in data["rows"]}
    assert rows["mxattn"]["label"] == "MXAttention"
    assert rows["mxattn"]["where"] == [
        "layers 0, steps all, experts all, self-attention: fp16",
        "else layers all, steps 38,39, experts all, self-attention: fp16",
        "else layers all, steps all, experts all, self-attention: mxattn",
    ]
    assert rows["mxattn"]["comes_to"] == [
        "self-attention, steps 0-25 (expert 0): layer 0 fp16; layers 1-39 mxattn",
        "self-attention, steps 26-37 (expert 1): layer 0 fp16; layers 1-39 mxattn",
        "self-attention, steps 38-39 (expert 1): layers 0-39 fp16",
    ]
    code, out, _ = mxbench_cli("show", "hunyuanvideo", "--json")
    assert code == 0
    assert json.loads(out)["n_layers"] == 60


def test_weights_that_are_not_there_are_one_line_that_says_how_to_bring_them(mxbench_cli, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, err = mxbench_cli("run", "--recipe", "mxattention-table2-hunyuanvideo")
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "hunyuanvideo-community/HunyuanVideo" in err
    assert "--weights FOLDER" in err


def test_a_dry_run_fetches_nothing_and_says_what_the_published_weights_take(mxbench_cli, monkeypatch, tmp_path):
    monkeypatch.setattr("mxbench.models.hub._download", lambda *_: pytest.fail("it fetches"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    code, out, _ = mxbench_cli("run", "--recipe", "mxattention-table2-wan2.2", "--dry-run")
    said = " ".join(out.split())
    assert code == 0
    assert "Wan-AI/Wan2.2-T2V-A14B-Diffusers is not in the cache" in said
    assert "75,600 tokens, 547 PFLOP a clip" in said
    assert "(random weights)" not in said
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{kind: cross, use: mxattn}", "the model has no cross-attention that can be taken over"),
        ("{use: mxattn}, {layers: 0, use: fp16}", "x: rule 2 of 2 (fp16) decides no call"),
    ],
)
def test_a_dry_run_says_what_rules_come_to_nothing(mxbench_cli, tmp_path, rule, said):
    given = "title: x\nmodel: hunyuanvideo\nweights: random:tiny\nlimit: 1\nmethods:\n"
    (tmp_path / "r.yaml").write_text(f"{given}- {{name: x, rules: [{rule}]}}\n")
    code, out, err = mxbench_cli("run", "--recipe", "r.yaml", "--dry-run")
    assert said in " ".join((out + err).split())
    assert code == (2 if "kind" in rule else 0)


def test_a_diffusers_that_was_not_tested_is_refused_by_a_dry_run_too(mxbench_cli, monkeypatch):
    monkeypatch.setattr("mxbench.models.tested.version", lambda _name: "0.43.0")
    code, _, err = mxbench_cli("run", "--model", "wan2.2", "--weights", "random:tiny", "--dry-run")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "diffusers 0.43.0 is outside the tested range" in err


def test_a_dry_run_says_what_the_run_takes(mxbench_cli):
    code, out, _ = mxbench_cli(
        "run",
        "--model",
        "wan2.2",
        "--weights",
        "random",
        "--method",
        "mxattn",
        "--limit",
        4,
        "--device",
        "cpu",
        "--dry-run",
    )
    said = " ".join(out.split())
    assert code == 0
    assert "75,600 tokens, 547 PFLOP a clip (68% of it self-attention), 6.57 EFLOP in all; " in said
    assert "108.5 GiB of weights and about 28.8 GiB beside them" in said  # in float32, as a CPU has them
    assert re.search(
        r"placed whole(, more than the [\d.]+ GiB there| of [\d.]+ GiB); about 0.6 GiB of disk of [\d.]+", said
    )
    assert "into results/wan2.2-random" in said


def test_what_does_not_fit_is_said_before_the_run(mxbench_cli, monkeypatch):
    monkeypatch.setattr("mxbench.cli.expected._memory", lambda _plan: 8 << 30)
    monkeypatch.setattr("mxbench.cli.expected._free", lambda _out: 1 << 20)
    arguments = ("--model", "wan2.2", "--weights", "random", "--device", "cpu", "--dry-run")
    said = " ".join(mxbench_cli("run", *arguments)[1].split())
    assert "placed whole, more than the 8.0 GiB there" in said
    assert said.endswith("of disk, more than the 0.0 GiB there")


def test_a_recipe_s_methods_are_shown_with_what_was_changed(mxbench_cli):
    code, out, _ = mxbench_cli("show", "vc-grouping-schedules", "--json")
    assert code == 0
    rows = {row["key"]: row for row in json.loads(out)["rows"]}
    assert rows["every-step"]["fields"]["v_smooth.placement"] == "every"
    assert rows["uniform-quarter"]["fields"]["v_smooth.placement"] == "uniform"
    assert rows["never"]["fields"]["v_smooth"] is False
    assert out.index('"rows"') < out.index('"prompts"')
