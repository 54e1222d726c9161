"""``mxbench bench``: tables, JSON, CSV, the folder it leaves, exit codes, and errors of one line."""

import csv
import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from mxbench.attention.methods import METHODS
from mxbench.bench import candidates
from mxbench.bench.rows import Row
from mxbench.cli import main as main_module

SMALL = ["--shape", "1x2x160x32:97", "--reps", "2", "--device", "cpu", "--peer", "torch-sdpa"]


@pytest.fixture
def bench(mxbench_cli, monkeypatch):
    """Run ``mxbench bench``."""
    monkeypatch.setenv("COLUMNS", "100")
    return partial(mxbench_cli, "bench")


def test_help_has_examples_and_the_group_names_the_command(bench, monkeypatch, capsys):
    code, out, _ = bench("--help")
    assert code == 0
    assert "Examples:" in out
    assert "mxbench bench --model wan2.2" in out
    assert max(map(len, out.splitlines())) <= 100
    monkeypatch.setattr(sys, "argv", ["mxbench", "--help"])
    with pytest.raises(SystemExit):
        main_module.main()
    assert "bench " in capsys.readouterr().out


def test_the_table_has_peers_and_methods_and_says_what_they_are(bench):
    code, out, err = bench(*SMALL, "-a", "mxattn", "-a", "vc8", "-i", "reference", "-i", "sdpa")
    assert (code, err) == (0, "")
    assert "1×2×160×32:97" in out
    assert "× torch SDPA" in out
    assert "Command" in out
    assert out.count("unsupported ¹") == 2
    assert "¹ sdpa is an exact kernel and the method quantises" in out
    assert "FP4 emulated" in out
    assert max(map(len, out.splitlines())) <= 100


def test_by_default_every_method_of_the_reference_runs_on_a_cpu(bench):
    code, out, _ = bench("--shape", "1x1x64x32", "--reps", "1", "--device", "cpu", "--json")
    assert code == 0
    rows = json.loads(out)["shapes"][0]["rows"]
    assert [row["method"] for row in rows if row["impl"] == "reference"] == list(METHODS)
    assert {row["status"] for row in rows if row["method"] == ""} == {"measured", "absent"}


def test_json_and_csv_hold_every_row_and_the_options_arrive(bench):
    code, out, err = bench(
        *SMALL, "--shape", "1x1x33x64", "-a", "fp8", "-i", "reference", "--dtype", "bfloat16", "-s", 7, "--json",
        "--csv", "rows.csv",
    )  # fmt: skip
    assert code == 0
    assert "Written: rows.csv" in err
    data = json.loads(out)
    assert data["schema"] == "mxbench.bench/1"
    assert data["settings"]["dtype"] == "bfloat16"
    assert (data["settings"]["reps"], data["settings"]["seed"]) == (2, 7)
    assert data["provenance"]["command"].startswith("mxbench bench --shape 1x2x160x32:97 ")
    assert [shape["shape"] for shape in data["shapes"]] == ["1x2x160x32:97", "1x1x33x64"]
    for shape in data["shapes"]:
        assert [(row["method"], row["impl"]) for row in shape["rows"]] == [("", "torch-sdpa"), ("fp8", "reference")]
        for row in shape["rows"]:
            assert set(row) == set(Row.__slots__)
            assert row["call"]["n"] == 2
            assert row["call"]["low"] <= row["call"]["median"] <= row["call"]["high"]
            assert row["error"] <= row["allowed"]
    with Path("rows.csv").open(encoding="utf-8", newline="") as handle:
        lines = list(csv.DictReader(handle))
    assert len(lines) == 4
    assert float(lines[1]["call_ms"]) == pytest.approx(data["shapes"][0]["rows"][1]["call"]["median"], rel=1e-9)


def test_a_folder_gets_the_table_the_numbers_and_the_plot(bench):
    code, _, err = bench(*SMALL, "-a", "mxattn", "-o", "out/deep")
    assert code == 0
    names = ["bench.md", "bench.csv", "bench.json", "bench.png", "bench.svg"]
    assert sorted(path.name for path in Path("out/deep").iterdir()) == sorted(names)
    assert all(name in err for name in names)
    assert "| mxattn" in Path("out/deep/bench.md").read_text(encoding="utf-8")
    assert bench(*SMALL, "-a", "mxattn", "-o", "out/deep")[0] == 0


def test_a_wrong_output_prints_its_error_and_no_time_and_exits_with_1(bench, monkeypatch):
    honest = candidates.attend

    def wrong(q, k, v, spec, **options):
        return honest(q, k, v, METHODS["mxfp4"].spec if spec == METHODS["mxattn"].spec else spec, **options)

    monkeypatch.setattr(candidates, "attend", wrong)
    code, out, _ = bench(*SMALL, "-a", "mxattn", "-a", "fp8", "-i", "reference", "--json")
    assert code == 1
    _, red, green = json.loads(out)["shapes"][0]["rows"]
    assert (red["status"], green["status"]) == ("red", "measured")
    assert red["error"] > red["allowed"]
    assert red["call"] is red["prepass"] is red["kernel"] is red["tflops"] is red["ratio_call"] is None
    code, out, _ = bench(*SMALL, "-a", "mxattn", "-i", "reference")
    assert code == 1
    assert "RED ¹" in out
    assert "from the reference one, and 1.0e-03 is allowed" in " ".join(out.split())


def test_no_room_for_one_is_a_row_and_exit_code_1(bench, monkeypatch):
    honest = candidates.attend

    def full(q, k, v, spec, **options):
        if spec == METHODS["mxattn"].spec:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 99 GiB")
        return honest(q, k, v, spec, **options)

    monkeypatch.setattr(candidates, "attend", full)
    code, out, err = bench(*SMALL, "-a", "mxattn", "-a", "fp8", "-i", "reference")
    assert (code, err) == (1, "")
    assert "out of memory ¹" in out
    assert "¹ no room on the device for this shape" in out


def test_what_a_method_refuses_is_a_row_and_no_failure(bench):
    asked = ("--shape", "1x1x32x96", "--reps", "1", "--peer", "none", "-i", "reference", "-a", "mxattn")
    assert bench(*asked)[0] == 1  # of which nothing is left to time
    code, out, _ = bench(*asked, "-a", "mxfp4")
    assert code == 0
    assert "unsupported ¹" in out
    assert "a Hadamard rotation needs a power of two, and D is 96" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "1x2x3"], "write BxHxNxD"),
        (["--shape", "1x2x0x3"], "nothing in it"),
        (["-m", "wan22"], "did you mean wan2.2"),
        (["-a", "mxatn"], "did you mean mxattn"),
        (["-i", "refrence"], "did you mean reference"),
        (["--peer", "torch-sdp"], "did you mean torch-sdpa"),
        (["--dtype", "bfloat"], "did you mean bfloat16"),
        (["--device", "tpu"], "--device tpu"),
        (["--reps", 0], "--reps 0"),
        (["-s", -1], "--seed -1"),
        (["--csv", "no/where.csv"], "there is no folder no"),
        (["--csv", "."], "is a folder"),
        (["-o", "file"], "file is a file"),
        (["-o", ""], "--out names no folder"),
        (["--peer", "none", "--peer", "torch-sdpa"], "stands beside other peers"),
    ],
)
def test_bad_input_is_one_line_and_measures_nothing(bench, monkeypatch, arguments, said):
    Path("file").touch()
    code, out, err = bench(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("mxbench: ")
    assert err.count("\n") == 1
    assert said in err


def test_nothing_to_measure_is_said(bench, monkeypatch):
    monkeypatch.setattr(candidates, "IMPLS", {"sdpa": ""})
    code, _, err = bench("--peer", "none", "--device", "cpu")
    assert code == 2
    assert "name an --impl" in err
