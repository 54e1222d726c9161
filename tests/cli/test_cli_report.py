"""``mxbench report``: every form, damaged files, published figures."""

import json
from pathlib import Path

from cli_checks import error, one_line

from mxbench.models import facts


def test_report_prints_every_form(mxbench_cli, fake_model):
    mxbench_cli("run", "-a", "mxfp4", "-a", "mxattn", "-n", "3", "-o", "out", "-q")
    assert "MXAttention" in mxbench_cli("report", "out")[1]
    assert mxbench_cli("report", "out", "-f", "md")[1].encode() == Path("out/report.md").read_bytes()
    assert mxbench_cli("report", "out", "-f", "csv")[1].encode() == Path("out/report.csv").read_bytes()
    assert json.loads(mxbench_cli("report", "out", "-f", "json")[1])
    one_line(*error(mxbench_cli("report", "out", "-b", "mxatn")), "unknown row 'mxatn'; did you mean mxattn?")
    assert "Paired differences to MXAttention" in mxbench_cli("report", "out", "-b", "mxattn", "-f", "md")[1]
    one_line(*error(mxbench_cli("report", "nowhere")), "no results folder")
    one_line(*error(mxbench_cli("report", ".")), "holds no results")


def test_a_hybrid_says_what_share_of_the_calls_has_its_bits(mxbench_cli, fake_model):
    rules = "rules: [{layers: 0, use: fp16}, {steps: [-2, -1], use: fp16}, {use: mxattn}]"
    Path("r.yaml").write_text(f"methods: [{{name: hybrid, {rules}}}, mxattn]\nlimit: 1\nmetrics: [psnr]\n")
    mxbench_cli("run", "-r", "r.yaml", "-o", "out", "-q")
    report = Path("out/report.md").read_text()
    known = facts("nano")
    share = (1 - 1 / known.n_layers) * (1 - 2 / known.sampling.steps)
    (hybrid,) = [line for line in report.splitlines() if line.startswith("| hybrid")][:1]
    assert f"4.25 in {share:.0%} |" in hybrid
    (whole,) = [line for line in report.splitlines() if line.startswith("| MXAttention")][:1]
    assert whole.rstrip().endswith(" 4.25 |")
    assert "in what share of the attention calls" in report


def test_damaged_files_are_named_and_cost_nothing_else(mxbench_cli, fake_model):
    arguments = ("run", "-a", "mxfp4", "-n", "1", "-M", "psnr", "-o", "out", "-q")
    mxbench_cli(*arguments)
    report = Path("out/report.md").read_bytes()
    scores = [path for path in Path("out/cells").glob("*/scores/psnr*") if path.parents[1].name]
    scores[0].write_text("{bad")
    assert "not scored yet" in mxbench_cli("report", "out", "-f", "md")[1]
    found = sorted(Path("out/cells").glob("*/status.json"))
    assert len(found) == 3  # FP16, the noise floor and the method
    for status in found:
        whole = status.read_bytes()
        status.write_text("{bad")
        assert "damaged" in mxbench_cli("report", "out", "-f", "md")[1].lower()
        status.write_bytes(whole)
    found[0].write_text("{bad")
    Path("out/plans/nano.json").write_text("{bad")
    one_line(*error(mxbench_cli("report", "out")), "nano.json is damaged", "run the recipe again")
    assert mxbench_cli(*arguments)[0] == 0
    assert Path("out/report.md").read_bytes() == report


def test_published_figures_stand_beside_the_measured_ones(mxbench_cli, fake_model, monkeypatch):
    mxbench_cli("run", "-a", "mxfp4", "-a", "mxattn", "-n", "3", "-o", "out", "-q")
    code, out, _ = mxbench_cli("report", "out", "--published", "Wan2.2", "-f", "md")
    assert code == 0
    assert "15.58" in out  # MXFP4 (OCP), Wan2.2, PSNR, in the MXAttention paper's Table 2
    one_line(*error(mxbench_cli("report", "out", "--published")), "the papers have no figures of nano")


def test_a_folder_after_published_is_the_folder(mxbench_cli, fake_model):
    mxbench_cli("run", "-a", "mxfp4", "-n", "1", "-o", "out", "-q")
    assert mxbench_cli("report", "--published", "out") == mxbench_cli("report", "out", "--published")
    one_line(*error(mxbench_cli("report", "--published", "Wan2.2")), "Missing argument 'DIR...'")
    one_line(*error(mxbench_cli("report")), "Missing argument 'DIR...'")
