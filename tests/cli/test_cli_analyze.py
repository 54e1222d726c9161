"""``mxbench analyze tensors`` and ``theory``."""

import json

import pytest
import torch
from cli_checks import error, one_line
from safetensors.torch import save_file


def test_analyze_tensors_measures_every_method(mxbench_cli, tmp_path):
    torch.manual_seed(0)
    tensors = {f"x.{name}": torch.randn(1, 2, 200, 64) for name in "qkv"}
    save_file(tensors, tmp_path / "t.safetensors")
    code, out, _ = mxbench_cli("analyze", "tensors", "t.safetensors", "--json")
    rows = {row["method"]: row for row in json.loads(out)}
    assert code == 0
    assert len(rows) == 11
    assert rows["fp16"]["relative_l2"] < 1e-5
    assert rows["mxattn"]["row_sum_bias"] == pytest.approx(0, abs=1e-6)
    assert rows["mxfp4"]["row_sum_bias"] < -0.01
    assert sum(rows["mxfp4"]["share"].values()) == pytest.approx(1)
    assert mxbench_cli("analyze", "tensors", "t.safetensors", "-a", "mxfp4")[0] == 0
    one_line(*error(mxbench_cli("analyze", "tensors", "none.safetensors")), "there is no file")
    (tmp_path / "bad.safetensors").write_bytes(b"x")
    one_line(*error(mxbench_cli("analyze", "tensors", "bad.safetensors")), "no safetensors file")
    save_file({"x.q": tensors["x.q"]}, tmp_path / "half.safetensors")
    one_line(*error(mxbench_cli("analyze", "tensors", "half.safetensors")), "add x.k and x.v")


def test_analyze_theory_prints_and_draws(mxbench_cli, tmp_path):
    code, out, _ = mxbench_cli("analyze", "theory", "--json", "--figure", "t.svg")
    assert code == 0
    claims = json.loads(out)
    assert any(claim["computed"] == "29/4" for claim in claims)
    assert (tmp_path / "t.svg").stat().st_size > 1000


def test_a_method_that_does_not_suit_the_tensors_costs_the_others_nothing(mxbench_cli, tmp_path):
    tensors = {name: torch.randn(1, 1, 40, 80, generator=torch.Generator().manual_seed(0)) for name in "qkv"}
    save_file(tensors, tmp_path / "d80.safetensors")
    code, out, err = mxbench_cli("analyze", "tensors", "d80.safetensors", "-a", "mxattn", "-a", "sage2", "--json")
    assert code == 1
    assert [row["method"] for row in json.loads(out)] == ["sage2"]
    assert "mxattn: a Hadamard rotation needs a power of two" in err
    tensors["k"][0, 0, 3, 3] = float("nan")
    save_file(tensors, tmp_path / "nan.safetensors")
    one_line(*error(mxbench_cli("analyze", "tensors", "nan.safetensors")), "NaN or an infinity")
