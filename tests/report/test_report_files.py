"""CSV and JSON: what a researcher loads."""

import io
import json
import re
from dataclasses import replace

import pandas as pd
import pytest
from report_data import METRICS, ROWS, small_run
from test_report_markdown import with_trouble

from mxbench.report.csv import to_csv
from mxbench.report.data import MethodRow, Observation
from mxbench.report.jsonout import SCHEMA, to_json
from mxbench.report.tables import build


def read(table):
    return pd.read_csv(io.StringIO(to_csv(table)))


def test_csv_has_a_line_for_each_row_and_metric_with_the_right_types():
    table = build(small_run())
    got = read(table)
    assert len(got) == 6 * 7 - 4
    for name in ("mean", "low", "high", "sd", "bits", "difference", "p_holm", "detectable", "recovery"):
        assert got[name].dtype == float, name
    for name in ("n", "identical_frames"):
        assert got[name].dtype == int, name
    for name in ("best", "unverified"):
        assert got[name].dtype == bool, name
    wide = got.pivot(index="label", columns="metric", values="mean")
    assert wide.shape == (6, 7)
    assert pd.isna(wide.loc["FP16", "ssim"])
    for scored in table.rows:
        for column, score in zip(table.columns, scored.scores, strict=True):
            if score.applies:
                assert wide.loc[scored.row.label, column.name] == pytest.approx(score.interval.mean, rel=1e-9)


def test_csv_holds_the_comparisons_beside_the_means():
    table = build(small_run())
    got = read(table).set_index(["row", "metric"])
    for block in table.comparisons:
        for item in block.rows:
            line = got.loc[(item.row.key, item.column.name)]
            assert line["against"] == block.against.key
            assert line["difference"] == pytest.approx(item.paired.mean, rel=1e-9)
            assert (line["wins"], line["ties"], line["losses"]) == (
                item.paired.wins,
                item.paired.ties,
                item.paired.losses,
            )
            assert line["difference_n"] == item.paired.n
    assert got.loc[("mxattn", "imaging_quality"), "margin"] == 0.01
    assert pd.isna(got.loc[("mxfp4", "ssim"), "against"])


def test_csv_says_why_a_value_is_missing():
    got = read(build(with_trouble())).set_index(["row", "metric"])
    line = got.loc[("nvfp4", "imaging_quality")]
    assert pd.isna(line["mean"])
    assert line["n"] == 0
    assert line["reason"] == "unscored: weights missing: musiq.pth (109 MB)"
    assert pd.isna(got.loc[("mxfp4", "ssim"), "reason"])


def test_csv_has_a_column_for_each_check_mark_and_axis():
    rows = (
        MethodRow("full", "Full, all | of it", flags={"Hadamard": True, "PNQ": True}, axis={"q_max": "7.25"}),
        MethodRow("none", 'a "quoted", label', flags={"Hadamard": False, "PNQ": False}, axis={"q_max": "8"}),
    )
    seen = tuple(Observation(r.key, f"p{i}", 0, "ssim", 0.5) for r in rows for i in range(2))
    got = read(build(small_run(rows=rows, metrics=("ssim",), observations=seen, n_prompts=2, kind="ablation")))
    assert got["flag_Hadamard"].tolist() == [True, False]
    assert got["axis_q_max"].tolist() == [7.25, 8.0]
    assert got["label"].tolist() == [row.label for row in rows]


@pytest.mark.parametrize("prompts", [1, 2, 31])
def test_no_nan_or_infinity_is_ever_written(prompts):
    table = build(small_run(prompts=prompts, seeds=1))
    for text in (to_csv(table), to_json(table)):
        assert not re.search(r"\b(nan|NaN|inf|Infinity|None)\b", text)
        assert "\r" not in text


def test_files_are_the_same_every_time():
    assert to_csv(build(with_trouble())) == to_csv(build(with_trouble()))
    assert to_json(build(with_trouble())) == to_json(build(with_trouble()))


def test_json_holds_every_number():
    table = build(with_trouble())
    got = json.loads(to_json(table))
    assert (got["schema"], got["n_prompts"], got["n_seeds"]) == (SCHEMA, 6, 2)
    assert [column["name"] for column in got["columns"]] == list(METRICS)
    assert [row["key"] for row in got["rows"]] == [row.key for row in ROWS]
    assert got["rows"][0]["scores"]["ssim"] is None
    assert got["environment"]["torch"] == "2.13.0"
    for scored, row in zip(table.rows, got["rows"], strict=True):
        for column, score in zip(table.columns, scored.scores, strict=True):
            if score.interval:
                cell = row["scores"][column.name]
                assert cell["mean"] == pytest.approx(score.interval.mean, rel=1e-9)
                assert (cell["n"], cell["best"]) == (score.interval.n, score.best)
    lost = got["rows"][3]["scores"]["imaging_quality"]
    assert lost["mean"] is None
    assert lost["reason"].startswith("unscored")
    for block, shown in zip(table.comparisons, got["comparisons"], strict=True):
        assert shown["against"] == block.against.key
        for item, line in zip(block.rows, shown["rows"], strict=True):
            assert (line["paired"] is None) == (item.paired is None)
            if item.paired:
                assert line["paired"]["mean"] == pytest.approx(item.paired.mean, rel=1e-9)
                assert (line["p_holm"] is None) == (item.p_holm is None)


def test_json_says_that_a_baseline_was_missing():
    data = small_run(rows=ROWS[:2] + ROWS[3:])
    assert json.loads(to_json(build(data)))["missing_baseline"] == "mxfp4"
    gone = replace(data, rows=ROWS[:1])
    kept = tuple(o for o in data.observations if o.row == "fp16")
    assert json.loads(to_json(build(replace(gone, observations=kept))))["missing_baseline"] is None
