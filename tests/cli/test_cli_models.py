"""The whole command line on real classes at tiny size, from ``run`` to the table."""

import csv
from pathlib import Path

import pytest


@pytest.mark.parametrize("model", ["wan2.2", "hunyuanvideo", "hunyuanvideo-1.5"])
def test_a_run_with_random_weights_says_so_in_every_row(model, mxbench_cli):
    given = ["--model", model, "--weights", "random:tiny", "--method", "mxattn", "--method", "vc8", "--limit", "1"]
    code, out, err = mxbench_cli("run", *given, "--steps", "2", "--out", "run", "--quiet")
    assert (code, err.splitlines()[-1]) == (0, "Written: run/report.md, run/report.csv")
    with Path("run/report.csv").open(encoding="utf-8") as file:
        labels = {row["label"] for row in csv.DictReader(file)}
    assert len(labels) == 4
    assert all("(random weights)" in label for label in labels)
    assert "random weights, seed 0, tiny" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--weights", "./nowhere"], "nowhere"),
        (["--weights", "random:huge"], "random:tiny"),
        (["--weights", "random:tiny", "--revision", "main"], "revision"),
        (["--weights", "random:tiny", "--memory", "most"], "--memory"),
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
