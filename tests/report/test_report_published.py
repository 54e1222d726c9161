from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from report_data import METRICS, ROWS, small_run

from mxbench.errors import UserError
from mxbench.report.beside import beside_grid, compare_published, setting_differences
from mxbench.report.columns import COLUMNS
from mxbench.report.data import MethodRow, Observation
from mxbench.report.layout import page
from mxbench.report.markdown import render
from mxbench.report.published import FIELDS, load_published, same_model
from mxbench.report.tables import build
from mxbench.report.terminal import to_text

FOLDER = Path(__file__).resolve().parents[2] / "results" / "published"


@pytest.fixture(scope="module")
def published():
    return load_published(FOLDER)


def value(entries, table, model, method, metric):
    (found,) = [e for e in entries if (e.table, e.model, e.method, e.metric) == (table, model, method, metric)]
    return found.printed


def test_the_papers_tables_are_complete():
    raw = pd.concat(pd.read_csv(file, dtype=str, keep_default_na=False) for file in sorted(FOLDER.glob("*.csv")))
    assert tuple(raw.columns) == FIELDS
    assert not raw.duplicated().any()
    mx = raw[raw.paper == "MXAttention"]
    # Table 2: five methods of two models, three metrics of FP16 and six of the others. Table 3: four, all six.
    assert len(mx[mx.table == "2"]) == 2 * (3 + 4 * 6)
    assert len(mx[mx.table == "3"]) == 2 * 4 * 6
    assert set(mx[mx.table.isin(["2", "3"])].metric) <= set(COLUMNS)
    assert (raw.source != "").all()
    assert raw[raw.paper == "VC-Attention"].source.str.contains("summary").all()


def test_some_values_read_from_the_papers(published):
    assert value(published, "2", "Wan2.2", "MXAttention", "psnr") == "17.92"
    assert value(published, "2", "Wan2.2", "MXFP4 (OCP)", "cosine") == "0.9290"
    assert value(published, "2", "HunyuanVideo", "NVFP4 + SageAttention", "ssim") == "0.7424"
    assert value(published, "3", "Wan2.2", "w/o PNQ and UOS", "imaging_quality") == "0.6352"
    assert value(published, "3", "HunyuanVideo", "OCP MXFP4", "aesthetic_quality") == "0.5928"
    sums = {e.metric: e.value for e in published if e.metric.startswith("row_sum")}
    assert sums["row_sum_mean"] == 0.9266
    # The four outcomes of figure 7(B) explain the mean of figure 7(A) up to their rounding.
    parts = sum(v for k, v in sums.items() if k != "row_sum_mean")
    assert 1 + parts == pytest.approx(0.9266, abs=2e-4)


def test_hunyuan_of_table_3_is_hunyuan_of_table_2(published):
    for metric in METRICS[:6]:
        for there, here in (("MXAttention", "Full"), ("MXFP4 (OCP)", "OCP MXFP4")):
            two = value(published, "2", "HunyuanVideo", there, metric)
            three = value(published, "3", "HunyuanVideo", here, metric)
            # The paper prints one of the twelve in two ways.
            assert (two, three) == ("0.9690", "0.9689") or two == three


def test_a_measured_table_beside_the_paper(published):
    table = build(small_run())
    found = {(b.row.key, b.column.name, b.published.table): b for b in compare_published(table, published)}
    got = found["mxattn", "psnr", "2"]
    measured = table.score("mxattn", "psnr").interval
    assert got.difference == pytest.approx(measured.mean - 17.92)
    assert (got.low, got.high) == pytest.approx((measured.low - 17.92, measured.high - 17.92))
    assert found["mxattn", "psnr", "3"].published.printed == "15.96"
    assert found["fp16", "imaging_quality", "2"].published.value == 0.7085
    assert not any(b.row.role == "noise_floor" for b in found.values())
    assert {b.column.name for b in found.values()} == set(METRICS[:6])


def test_a_value_printed_twice_is_there_once(published):
    found = compare_published(build(small_run(model="HunyuanVideo")), published)
    assert len(found) == 3 + 4 * 6 + 1  # MXAttention's Subject is 0.9690 in Table 2 and 0.9689 in Table 3


def test_the_difference_is_signed_and_has_its_interval(published):
    table = build(small_run())
    text = render(page(table, beside_grid(table, published)))
    assert "## Measured beside published (Wan2.2)" in text
    measured = table.score("mxfp4", "psnr").interval
    line = next(line for line in text.splitlines() if "15.58" in line)
    assert f"{measured.mean - 15.58:+.2f} [{measured.low - 15.58:+.2f}, {measured.high - 15.58:+.2f}]" in line
    assert "settings differ: weights trained published, random weights (seed 0) measured" in text
    assert "not recorded here, so not compared: resolution, steps, policy, prompts" in text
    assert "15.58" in to_text(page(table, beside_grid(table, published)), 80)


def test_an_ablation_meets_table_3_by_its_marks(published):
    rows = tuple(
        MethodRow(f"r{i}", f"R{i}", flags={"Hadamard": h, "PNQ": p, "UOS": u})
        for i, (h, p, u) in enumerate([(1, 1, 1), (1, 1, 0), (1, 0, 0), (0, 0, 0), (0, 1, 0)])
    )
    seen = tuple(Observation(r.key, f"p{i}", 0, "ssim", 0.5 + i / 9) for r in rows for i in range(2))
    data = small_run(rows=rows, metrics=("ssim",), observations=seen, n_prompts=2, kind="ablation")
    found = compare_published(build(data), published)
    assert [(b.row.key, b.published.printed) for b in found] == [
        ("r0", "0.5519"),
        ("r1", "0.5084"),
        ("r2", "0.4727"),
        ("r3", "0.4636"),
    ]


@pytest.mark.parametrize(
    ("paper", "name", "same"),
    [
        ("Wan2.2", "wan2.2", True),
        ("Wan2.2", "Wan-AI/Wan2.2-T2V-A14B-Diffusers", True),
        ("Wan2.2", "Wan2.2-TI2V-5B", False),
        ("Wan2.2", "nano", False),
        ("HunyuanVideo", "hunyuanvideo-community/HunyuanVideo", True),
        ("HunyuanVideo", "HunyuanVideo-1.5", False),
        ("HunyuanVideo-1.5", "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-720p_t2v", True),
        ("MiniMax-H3", "MiniMaxAI/MiniMax-H3", True),
    ],
)
def test_models_by_their_names(paper, name, same):
    assert same_model(paper, name) is same


def test_settings_are_compared_where_they_are_recorded():
    setting = {"frames": "81", "steps": "40", "resolution": "720p", "reference": "FP16", "prompts": "Open-Sora"}
    trained = {"weights": "Wan-AI/Wan2.2", "reference": "fp16, sdpa, cuda bfloat16"}
    data = small_run(environment={"Frames": "81", "Steps": "8", "Size": "1280×720"}, **trained)
    assert setting_differences(setting, data) == (("steps 40 published, 8 measured",), ("prompts",))
    other = small_run(environment={"Size": "480x832"}, **{**trained, "reference": "bf16, fa4"})
    differs, unknown = setting_differences(setting, other)
    assert differs == ("resolution 720p published, 480x832 measured", "reference FP16 published, bf16, fa4 measured")
    assert unknown == ("frames", "steps", "prompts")
    clip = small_run(environment={"Clip": "81 frames of 1280×720 at 16 fps", "Steps": "40"}, **trained)
    assert setting_differences(setting, clip) == ((), ("prompts",))
    card = small_run(environment={"Device": "NVIDIA B200"}, **trained)
    assert setting_differences({"device": "B200"}, card) == ((), ())
    assert setting_differences({"device": "H200"}, card)[0] == ("device H200 published, NVIDIA B200 measured",)


def test_another_model_only_when_asked(published):
    table = build(small_run(model="nano"))
    with pytest.raises(
        UserError, match=r"the papers have no figures of nano; .* --published Wan2\.2: Wan2\.2, HunyuanVideo"
    ):
        compare_published(table, published)
    text = render(page(table, beside_grid(table, published, as_model="Wan2.2")))
    assert "The models differ: nano was measured, Wan2.2 is published." in text


def test_nothing_measured_of_what_is_published(published):
    table = build(small_run(rows=ROWS[2:], metrics=("vmaf",)))
    with pytest.raises(UserError, match=r"no value published for wan2\.2 was measured here"):
        compare_published(table, published)


def test_one_prompt_has_a_difference_without_interval(published):
    (first, *_) = compare_published(build(small_run(prompts=1, seeds=1)), published)
    assert first.difference is not None
    assert (first.low, first.high) == (None, None)


def test_the_default_folder(published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_published() == published  # the checkout that holds the package
    own = tmp_path / "results" / "published"
    own.mkdir(parents=True)
    (own / "one.csv").write_text(",".join(FIELDS) + "\nP,1,M,a=b; c = d;,X,ssim,0.50,,S\n", encoding="utf-8-sig")
    (entry,) = load_published()
    assert (entry.value, entry.printed, dict(entry.setting)) == (0.5, "0.50", {"a": "b", "c": "d"})


def test_an_installed_wheel_says_what_to_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mxbench.report.published.__file__", str(tmp_path / "site" / "mxbench" / "report" / "p.py"))
    with pytest.raises(UserError, match="pass the folder of published values"):
        load_published()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "has the columns"),
        (",".join(FIELDS) + "\nP,1,M,,X,ssim,–,,S\n", "line 2: '–' is no number"),
        (",".join(FIELDS) + "\nP,1,M,,X,ssim,nan,,S\n", "line 2: 'nan' is no number"),
        (",".join(FIELDS) + "\nP,1,M,,X,ssim,0.5\n", "line 2 has not 9 fields"),
        (",".join(FIELDS) + "\nP,1,M,,X,ssim,0.5,,S,more\n", "line 2 has not 9 fields"),
    ],
)
def test_a_bad_file_is_named_with_its_line(text, message, tmp_path):
    (tmp_path / "bad.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_published(tmp_path)


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(UserError, match="no CSV file"):
        load_published(tmp_path)
    with pytest.raises(UserError, match="no folder"):
        load_published(tmp_path / "nowhere")


def test_rows_without_a_value_are_left_out(published):
    data = small_run()
    seen = tuple(replace(o, value=None, failed="black frames") if o.row == "mxattn" else o for o in data.observations)
    assert not any(b.row.key == "mxattn" for b in compare_published(build(replace(data, observations=seen)), published))
