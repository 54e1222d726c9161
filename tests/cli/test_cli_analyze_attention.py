"""``mxbench analyze attention``: tables, JSON, CSV and Markdown of one small study, and errors of one line."""

import csv
import dataclasses
import json
import sys
from functools import cache
from pathlib import Path

import pytest

from mxbench.analysis import sites
from mxbench.analysis.sites_measures import Measures
from mxbench.cli import main as main_module
from mxbench.models import MODELS, ModelEntry
from mxbench.models.base import Sampling
from mxbench.models.nano.model import RandomNano
from mxbench.models.render import PipelineModel

N_LAYERS, STEPS = 8, 2


@cache
def pipe():
    return RandomNano().pipe


class Tiny(PipelineModel):
    """The seam's test model at 32 tokens; built once."""

    FACTS = dataclasses.replace(
        RandomNano.FACTS,
        dtypes={"cpu": "float32"},
        sampling=Sampling(
            height=32, width=32, frames=5, fps=8, steps=STEPS, guidance=(4.0, 3.0), max_sequence_length=16
        ),
    )

    def __init__(self, device):
        assert device == "cpu"
        super().__init__(pipe())


class Alien:
    """A model of another kind."""

    FACTS = Tiny.FACTS

    def __init__(self, device):
        pass

    def self_test(self):
        pass


@pytest.fixture
def attention(mxbench_cli, monkeypatch):
    """Run the command, on the small model unless told otherwise."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setitem(MODELS, "tiny", ModelEntry("tiny", f"{__name__}:Tiny", "", "nano"))
    monkeypatch.setitem(MODELS, "alien", ModelEntry("alien", f"{__name__}:Alien", "", "nano"))

    def invoke(*arguments):
        return mxbench_cli("analyze", "attention", *arguments, *([] if "-m" in arguments else ["-m", "tiny"]))

    return invoke


def test_help_has_examples_and_the_group_names_the_command(attention, monkeypatch, capsys):
    code, out, _ = attention("--help")
    assert code == 0
    assert "Examples:" in out
    assert "mxbench analyze attention" in out
    assert max(map(len, out.splitlines())) <= 100
    monkeypatch.setattr(sys, "argv", ["mxbench", "analyze", "--help"])
    with pytest.raises(SystemExit):
        main_module.main()
    assert "attention " in capsys.readouterr().out


def test_the_tables_of_layers_and_steps_end_beside_the_papers(attention):
    code, out, err = attention("-n", 1, "--rows", 9)
    assert (code, err) == (0, "")
    assert "random weights, seed 0" in out
    assert "1 prompt, seed 0, 2 steps, 5 frames of 32×32, exact attention" in out
    assert "32 of 32 tokens; P of 9 rows a head" in out  # 8 layers · 2 steps · 2 branches
    for title in ("By expert and layer, means over steps", "By step, means over layers", "Overall, beside the papers"):
        assert title in out
    assert "By expert, layer and step" not in out
    assert "0.9266" in out
    assert "MXAttention, section 5.5.2" in out
    assert max(map(len, out.splitlines())) <= 100


def test_json_and_csv_hold_every_site_and_the_options_reach_the_study(attention, monkeypatch):
    Path("two.txt").write_text("a red circle\na blue square\na red circle\n", encoding="utf-8")
    asked = {}
    honest = sites.study

    def spy(model, prompts, **options):
        asked.update(options, prompts=prompts)
        return honest(model, prompts, **options)

    monkeypatch.setattr(sites, "study", spy)
    code, out, err = attention("-p", "two.txt", "-s", 5, "--steps", 1, "--json", "--csv", "sites.csv")
    assert code == 0
    assert "1 repeated, kept once" in err
    assert "Written: sites.csv" in err
    assert asked["prompts"] == ["a red circle", "a blue square"]
    assert (asked["seed"], asked["sampling"].steps, asked["rows"]) == (5, 1, sites.ROWS)
    data = json.loads(out)
    assert (data["model"], data["seed"], data["by"]) == ("tiny", 5, "site")
    assert data["prompts"] == asked["prompts"]
    assert data["published"] == sites.PUBLISHED
    assert [(s["expert"], s["layer"], s["step"]) for s in data["sites"]] == [(0, i, 0) for i in range(N_LAYERS)]
    assert {s["calls"] for s in data["sites"]} == {4}
    mean = sum(s["row_sum"] for s in data["sites"]) / N_LAYERS
    assert data["mean"]["row_sum"] == pytest.approx(mean)
    assert set(Measures.names()) < set(data["mean"])
    with Path("sites.csv").open(encoding="utf-8") as handle:
        lines = list(csv.DictReader(handle))
    assert [{k: float(v) for k, v in line.items()} for line in lines] == data["sites"]


@pytest.mark.parametrize(("by", "count"), [("site", 16), ("layer", 16), ("step", 2)])
def test_by_chooses_the_one_table(attention, by, count):
    code, out, _ = attention("-n", 1, "--by", by, "--markdown", "--csv", "out.csv")
    assert code == 0
    assert out.count("## ") == 2
    tables = [line for line in out.splitlines() if line.startswith("| ")]
    assert len(tables) == 2 + count + 2 + 2  # heads and rules; the model and the papers
    assert len({line.count("|") for line in tables[: 2 + count]}) == 1
    stub = {"site": ("expert", "layer", "step"), "layer": ("expert", "layer"), "step": ("expert", "step")}[by]
    assert tuple(cell.strip() for cell in tables[0].split("|")[1 : 1 + len(stub)]) == stub
    with Path("out.csv").open(encoding="utf-8") as handle:
        lines = list(csv.DictReader(handle))
    assert len(lines) == count
    assert all((line["layer"] == "") == (by == "step") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-m", "nanno"], "did you mean nano"),
        (["-m", "alien"], "Alien is no diffusers pipeline"),
        (["-p", "nowhere.txt"], "nowhere.txt"),
        (["-n", 0], "limit"),
        (["-s", -1], "seed"),
        (["--steps", 0], "sampling.steps"),
        (["--rows", 0], "--rows 0"),
        (["--by", "head"], "'head'"),
        (["--json", "--markdown"], "exclude each other"),
        (["--csv", "no/where.csv"], "there is no folder no"),
        (["--csv", "."], "is a folder"),
        (["-d", "cuda"], "this model does not run there; use cpu"),
    ],
)
def test_bad_input_is_one_line(attention, arguments, said):
    code, out, err = attention(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("mxbench: ")
    assert err.count("\n") == 1
    assert said in err
