"""The command line: what it prints, what it returns, and that no bad input shows a traceback."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_checks import error, one_line

import mxbench.models
from mxbench.runs.files import DiskFull

COMMANDS = ["run", "ablate", "report", "score", "bench", "analyze", "list", "show", "vbench", "doctor"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "command",
    [[], *([name] for name in COMMANDS), ["analyze", "attention"], ["analyze", "tensors"], ["analyze", "theory"]],
)
def test_every_help_has_an_example_and_short_options(mxbench_cli, command):
    code, out, _ = mxbench_cli(*command, "--help")
    assert code == 0
    if command != ["analyze"]:
        assert "Examples:" in out
        assert f"mxbench {' '.join(command)}".strip() in out
    assert max(map(len, out.splitlines())) <= 100


def test_readme_names_every_command_and_every_command_it_names_exists(mxbench_cli):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^mxbench ([a-z]+)", text, re.M)) | set(re.findall(r"`mxbench ([a-z]+)", text))
    assert named == set(COMMANDS)


def test_version_and_unknown_commands(mxbench_cli):
    assert mxbench_cli("--version")[1].startswith("mxbench, version")
    code, _, err = mxbench_cli("rum")
    one_line(code, err, "did you mean run")
    code, _, err = mxbench_cli("run", "--nosuch")
    one_line(code, err, "--nosuch", "--help")


@pytest.mark.parametrize("kind", ["models", "methods", "metrics", "recipes", "fields"])
def test_list_prints_tables_and_json(mxbench_cli, kind):
    code, out, _ = mxbench_cli("list", kind, "--json")
    rows = json.loads(out)
    assert code == 0
    assert len(rows) >= 1
    assert mxbench_cli("list", kind)[0] == 0
    assert all(row["name"] for row in rows)


def test_show_expands_methods_models_recipes_and_cells(mxbench_cli, fake_model, tmp_path):
    method = json.loads(mxbench_cli("show", "mxattn", "--json")[1])
    assert method["fields"]["scale_rule"] == "uos"
    assert method["spec"]["row_sum"] == "quantised"
    assert "boundary_ratio" in mxbench_cli("show", "nano")[1]
    recipe = json.loads(mxbench_cli("show", ROOT / "recipes" / "demo.yaml", "--json")[1])
    assert [row["role"] for row in recipe["rows"]][:2] == ["reference", "noise_floor"]
    mxbench_cli("run", "-a", "mxfp4", "-n", "1", "-o", "out", "-q")
    cell = next(Path("out/cells").iterdir())
    shown = json.loads(mxbench_cli("show", cell, "--json")[1])
    assert shown["cell"] == cell.name
    assert shown["prompt"]
    one_line(*error(mxbench_cli("show", "mxattm")), "did you mean mxattn")


def test_a_hybrid_policy_is_shown_rule_by_rule(mxbench_cli, tmp_path):
    (tmp_path / "h.yaml").write_text(
        "methods:\n- name: hybrid\n  rules:\n  - {layers: 0, use: fp16}\n  - {steps: [-2, -1], use: fp16}\n"
        "  - {use: mxattn}\n"
    )
    rows = json.loads(mxbench_cli("show", "h.yaml", "--json")[1])["rows"]
    assert rows[-1]["where"] == [
        "layers 0, steps all, experts all, self-attention: fp16",
        "else layers all, steps -2,-1, experts all, self-attention: fp16",
        "else layers all, steps all, experts all, self-attention: mxattn",
    ]


def test_run_ends_with_the_table_and_leaves_report_and_previews(mxbench_cli, fake_model, tmp_path):
    code, out, err = mxbench_cli("run", "-a", "mxfp4", "-a", "mxattn", "-n", "2", "-o", "out")
    assert code == 0
    assert "MXAttention" in out
    assert "8 rendered, 0 kept" in err
    assert {p.name for p in Path("out").iterdir()} >= {"report.md", "report.csv", "previews", "provenance.json"}
    assert len(list(Path("out/previews").rglob("*.mp4"))) == 8
    seconds = json.loads(Path("out/provenance.json").read_text())["runs"][0]["seconds"]
    assert {"startup", "denoise", "decode", "harness_per_cell"} <= set(seconds)
    report = Path("out/report.md").read_text(encoding="utf-8")
    assert not re.search(r"20\d\d-\d\d|seconds|/root|/tmp|/home", report)
    code, out, err = mxbench_cli("run", "-a", "mxfp4", "-a", "mxattn", "-n", "2", "-o", "out")
    assert "rendered" not in err


def test_a_dry_run_prints_the_grid_and_makes_nothing(mxbench_cli, fake_model):
    code, out, _ = mxbench_cli("run", "-a", "mxfp4", "-n", "2", "--dry-run")
    assert code == 0
    assert "6 cells to render" in out
    assert not Path("results").exists()
    assert fake_model.rendered == []


def test_failed_cells_give_exit_code_1(mxbench_cli, fake_model):
    fake_model.fail["mxfp4"] = "nan"
    code, _, err = mxbench_cli("run", "-a", "mxfp4", "-n", "1", "-o", "out", "-q")
    assert code == 1
    assert "mxfp4: failed: NaN" in err


def test_an_unsupported_method_is_said_before_and_in_the_table(mxbench_cli, fake_model):
    code, out, err = mxbench_cli("run", "-a", "mxfp4", "-i", "sdpa", "-n", "1", "-o", "out")
    assert code == 1
    assert "unsupported" in err
    assert "unsupported" in out


def test_an_interrupted_run_returns_130_and_says_how_to_go_on(mxbench_cli, fake_model, monkeypatch):
    fake_model.fail["mxfp4"] = KeyboardInterrupt()
    code, _, err = mxbench_cli("run", "-a", "mxfp4", "-n", "1", "-o", "out", "-q")
    assert code == 130
    assert "run the same command again" in err
    fake_model.fail.clear()
    fake_model.rendered.clear()
    assert mxbench_cli("run", "-a", "mxfp4", "-n", "1", "-o", "out", "-q")[0] == 0
    assert [name for name, *_ in fake_model.rendered] == ["mxfp4"]


def test_ablate_makes_table_3_and_sweeps(mxbench_cli, fake_model):
    code, out, _ = mxbench_cli("ablate", "-n", "2", "-o", "abl", "-q")
    assert code == 0
    assert "w/o PNQ and UOS" in out
    assert "PNQ" in out
    code, out, _ = mxbench_cli("ablate", "--sweep", "q_max=6:7:0.5", "-n", "2", "-o", "sweep", "-q")
    assert code == 0
    assert all(value in out for value in ("6", "6.5", "7"))
    one_line(*error(mxbench_cli("ablate", "--sweep", "qmax=6:8:1")), "did you mean q_max")
    one_line(*error(mxbench_cli("ablate", "-a", "fp8")), "no sequential ablation")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-a", "mxatn"], "did you mean mxattn"),
        (["-m", "wan"], "unknown model 'wan'"),
        (["-a", "mxfp4", "-M", "psrn"], "did you mean psnr"),
        (["-a", "mxfp4", "-p", "nothing.txt"], "nothing.txt"),
        (["-a", "mxfp4", "-n", "0"], "limit"),
        (["-a", "mxfp4", "-s", "0"], "seeds"),
        (["-r", "dmo"], "did you mean demo"),
        (["-r", "no/such.yaml"], "no recipe"),
    ],
)
def test_bad_input_is_one_line_and_makes_nothing(mxbench_cli, arguments, said):
    code, out, err = mxbench_cli("run", *arguments)
    one_line(code, err, said)
    assert out == ""
    assert not Path("results").exists()


def test_awkward_prompts_run(mxbench_cli, fake_model, tmp_path):
    prompts = ["plain", "quotes \" and ' and “these”", "a/b\\c ../..", "🎈 emoji 日本語", "x" * 1400, "NA", "plain"]
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(prompts).encode() + b"\r\n\r\n")
    code, _, err = mxbench_cli("run", "-a", "mxfp4", "-p", "p.txt", "-o", "out")
    assert code == 0
    assert "18 rendered" in err
    assert {prompt for _, prompt, _ in fake_model.rendered} == set(prompts)
    (tmp_path / "p.csv").write_text('prompt,other\nNA,1\n"with ""quotes"", comma",2\n', encoding="utf-8")
    fake_model.rendered.clear()
    assert mxbench_cli("run", "-a", "mxfp4", "-p", "p.csv", "-o", "out2", "-q")[0] == 0
    assert {prompt for _, prompt, _ in fake_model.rendered} == {"NA", 'with "quotes", comma'}
    (tmp_path / "empty.txt").write_text("\n \n")
    one_line(*error(mxbench_cli("run", "-a", "mxfp4", "-p", "empty.txt")), "empty.txt")


def test_a_results_folder_that_is_a_file_is_named(mxbench_cli, tmp_path):
    (tmp_path / "file").touch()
    one_line(*error(mxbench_cli("run", "-a", "mxfp4", "-n", "1", "-o", "file")), "cannot hold results")


def test_doctor_finds_this_machine_fit(mxbench_cli):
    code, out, _ = mxbench_cli("doctor", "--json")
    checks = {row["check"]: row for row in json.loads(out)}
    assert code == 0
    assert checks["impl reference"]["ok"]
    assert checks["impl cudnn"]["fix"]
    if not torch.cuda.is_available():
        assert checks["impl fast"]["fix"] == "its kernels need a CUDA device"


def test_completion_offers_methods():
    environment = os.environ | {
        "_MXBENCH_COMPLETE": "bash_complete", "COMP_WORDS": "mxbench run --method mx", "COMP_CWORD": "3",
    }  # fmt: skip
    script = "from mxbench.cli.main import cli; cli(prog_name='mxbench')"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert "mxattn" in done.stdout


def test_models_are_a_literal_table():
    known = {"nano", "wan2.2", "hunyuanvideo", "hunyuanvideo-1.5", "minimax-h3", "longcat-video"}
    assert set(mxbench.models.MODELS) == known


def test_a_misspelt_key_is_named_with_its_line(mxbench_cli, tmp_path):
    (tmp_path / "a.yaml").write_text("title: x\nmetods: [mxattn]\n")
    one_line(*error(mxbench_cli("run", "-r", "a.yaml")), "line 2: unknown key 'metods'; did you mean methods")
    (tmp_path / "b.yaml").write_text("methods:\n- mxfp4\n- {base: mxattn, rowsum: exact}\n")
    one_line(*error(mxbench_cli("run", "-r", "b.yaml")), "b.yaml, line 3: unknown field 'rowsum'; did you mean row_sum")
    one_line(*error(mxbench_cli("list")), "Choose from")


def test_a_disk_that_stays_full_is_exit_code_1_and_the_next_run_goes_on(mxbench_cli, fake_model, monkeypatch):
    from mxbench.runs.files import Scratch

    honest, count = Scratch.write, 0

    def filling(self, path, data):
        nonlocal count
        count += 1
        if count > 3:  # the plan and two scores
            raise DiskFull(path)
        honest(self, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(Scratch, "write", filling)
        code, out, err = mxbench_cli("run", "-a", "mxfp4", "-n", "1", "-o", "out", "-q")
        one_line(code, err, "the disk is full", "free some space", expected=1)
        assert "MXFP4" in out  # the table is printed even where it cannot be written
        code, _, err = mxbench_cli("run", "-a", "mxfp4", "-n", "1", "-o", "out2", "-q")
        one_line(code, err, "the disk is full")
    assert mxbench_cli("run", "-a", "mxfp4", "-n", "1", "-o", "out", "-q")[0] == 0
