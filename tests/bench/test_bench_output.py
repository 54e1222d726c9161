"""What programs read, and what people do."""

import csv
import io
import json
import subprocess
from dataclasses import replace

import pytest
import torch
from bench_cases import result

from mxbench.bench import provenance as provenance_module
from mxbench.bench.output import as_dict, to_csv, to_json
from mxbench.bench.page import bench_page
from mxbench.bench.provenance import provenance
from mxbench.bench.rows import Row
from mxbench.report.markdown import render
from mxbench.report.terminal import to_text


def test_json_is_the_rows_and_what_they_depend_on():
    data = json.loads(to_json(result()))
    assert data == as_dict(result())
    assert data["schema"] == "mxbench.bench/1"
    assert set(data) == {"schema", "provenance", "settings", "shapes"}
    shape = data["shapes"][0]
    assert (shape["shape"], shape["base"], shape["flop"]) == ("1x40x75600x128", "fa4", 4 * 40 * 75_600**2 * 128)
    assert shape["compared"] == {"heads": 4, "rows": 1792, "whole": False}
    assert all(set(row) == set(Row.__slots__) for row in shape["rows"])
    fast = next(row for row in shape["rows"] if (row["method"], row["impl"]) == ("vc8", "fast"))
    assert set(fast["kernel"]) == {"median", "low", "high", "n"}
    assert fast["kernel"]["median"] == 145.5
    assert (fast["goal"], fast["floor"]) == (1.6, 1.46)
    red = next(row for row in shape["rows"] if row["status"] == "red")
    assert red["error"] == 0.2
    assert red["call"] is red["kernel"] is red["tflops"] is None


def test_csv_has_a_line_a_row_and_empty_cells_for_what_is_not():
    lines = list(csv.DictReader(io.StringIO(to_csv(result()))))
    assert len(lines) == 11
    first = lines[0]
    assert list(first)[:8] == ["device", "dtype", "shape", "title", "base", "method", "impl", "label"]
    assert {"call_ms", "call_ms_low", "call_ms_high", "ratio_kernel_high", "prepass_of_copy", "floor"} <= set(first)
    assert (first["device"], first["dtype"]) == ("cuda: NVIDIA H200", "bfloat16")
    fast = next(line for line in lines if line["method"] == "vc8")
    assert float(fast["kernel_ms_low"]) == pytest.approx(145.5 * 0.98)
    assert float(fast["ratio_kernel"]) == pytest.approx(174.5 / 145.5)
    red = next(line for line in lines if line["status"] == "red")
    assert (red["error"], red["call_ms"], red["ratio_call"]) == ("0.2", "", "")


def test_csv_of_nothing_is_a_line():
    assert to_csv(replace(result(), shapes=())) == "\n"


def test_a_run_failed_if_anything_broke_but_not_if_it_is_only_absent():
    found = result()
    assert found.failed
    rows = [row for row in found.shapes[0].rows if row.status in ("measured", "absent", "unsupported")]
    assert len(rows) == 10
    assert not replace(found, shapes=(replace(found.shapes[0], rows=tuple(rows)),)).failed
    for status in ("failed", "out of memory", "red"):
        broken = (*rows, replace(rows[0], status=status))
        assert replace(found, shapes=(replace(found.shapes[0], rows=broken),)).failed


def test_the_page_says_what_each_row_is():
    text = to_text(bench_page(result()), width=200)
    flat = " ".join(text.split())
    assert "Wan2.2, 1×40×75600×128" in text
    assert "× FlashAttention-4" in text
    for word in ("1.46", "0.60", "145.5", "4.0.0b36", "RED ¹", "unsupported ²"):
        assert word in text
    assert "¹ it is far off" in text
    assert "² no such path" in text
    assert "FP4 emulated: 4-bit values are held in a wider type" in flat
    assert "says nothing of the speed of FP4 hardware" in flat
    assert "Compared: 1792 query rows of 4 heads" in flat
    assert "Not here: cuDNN FP8 (it is not installed)." in flat
    assert "making one takes 30.0 ms" in flat
    assert "A copy moves 4,000 GB/s" in flat
    assert "4% of the call and 65% of a copy's bandwidth" in flat
    assert "SageAttention2++ (sm90): a call." in flat
    line = next(line for line in text.splitlines() if "RED" in line)
    before, after = line.split("RED ¹")
    assert before.split() == ["nvfp4", "conformance", "emulated", "–", "–"]
    assert after.split() == ["–"] * 6 + ["2.0e-01", "1.0e-03", "–"]
    assert max(map(len, to_text(bench_page(result()), width=80).splitlines())) <= 80
    assert render(bench_page(result())).count("| mxattn") == 2


def test_what_holds_for_all_shapes_is_said_once():
    found = result()
    twice = replace(found, shapes=found.shapes * 2)
    text = to_text(bench_page(twice), width=160)
    assert text.count("Medians over rounds") == 1
    assert text.count("Compared: ") == 2
    assert bench_page(replace(found, shapes=())).grids == ()


def test_without_a_base_there_are_no_ratios():
    found = result()
    rows = tuple(replace(row, ratio_kernel=None, ratio_call=None, floor=None) for row in found.shapes[0].rows)
    text = to_text(bench_page(replace(found, shapes=(replace(found.shapes[0], base=None, rows=rows),))), width=200)
    assert "×" not in text.replace("1×40×75600×128", "")
    assert "floor" not in text


def test_provenance_names_device_versions_and_command():
    found = provenance("cpu", "mxbench bench --reps 1")
    assert found["command"] == "mxbench bench --reps 1"
    assert found["device"].startswith("cpu: ")
    assert found["torch"] == torch.__version__
    assert {"date", "mxbench", "python", "triton", "threads", "capability"} <= set(found)
    assert "driver" not in found


@pytest.mark.parametrize(
    ("answer", "driver"),
    [
        (subprocess.CompletedProcess([], 0, "580.12\n", ""), "580.12"),
        (subprocess.CompletedProcess([], 9, "", "no devices"), "unknown: nvidia-smi names none"),
        (subprocess.TimeoutExpired("nvidia-smi", 10), "unknown: nvidia-smi does not answer"),
        (None, "unknown: there is no nvidia-smi"),
    ],
)
def test_provenance_asks_for_the_driver(monkeypatch, answer, driver):
    asked = []

    def run(command, **_):
        asked.append(command)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(provenance_module.shutil, "which", lambda name: name if answer is not None else None)
    monkeypatch.setattr(provenance_module.subprocess, "run", run)
    monkeypatch.setattr(provenance_module, "device_name", lambda _: "NVIDIA H200")
    found = provenance("cuda:3", "mxbench bench")
    assert found["driver"] == driver
    assert found["device"] == "cuda: NVIDIA H200"
    assert asked == [] if answer is None else asked[0][1] == "--id=3"
