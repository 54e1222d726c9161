import itertools
import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from report_data import METRICS, ROWS, small_run
from rich.cells import cell_len

from mxbench.report.data import MethodRow, Observation
from mxbench.report.layout import page
from mxbench.report.markdown import render
from mxbench.report.tables import build


def tables(text):
    """The tables of a text as an independent Markdown parser sees them: header and rows of plain cells."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    found, row = [], []
    for before, token in itertools.pairwise(tokens):
        if before.type == "table_open":
            found.append([])
        if token.type == "tr_open":
            row = []
            found[-1].append(row)
        if token.type == "inline" and before.type in ("th_open", "td_open"):
            row.append("".join(c.content for c in token.children if c.type in ("text", "html_inline")))
    return found


def numbers(cell):
    return [float(n) for n in re.findall(r"[-+]?\d+\.\d+", cell)]


def with_trouble():
    """A failed seed, a metric without weights, a video not yet scored, identical frames."""
    seen = []
    for o in small_run().observations:
        if o.row == "nvfp4-sage" and (o.prompt, o.seed) == ("prompt-1", 0):
            o = replace(o, value=None, failed="black frames from step 12")
        elif o.row == "nvfp4" and o.metric == "imaging_quality":
            o = replace(o, value=None, unscored="weights missing: /home/u/.cache/vbench/musiq.pth (109 MB)")
        elif o.row == "fp16@math" and o.metric == "psnr":
            o = replace(o, identical_frames=3)
        if not (o.row == "mxattn" and o.prompt == "prompt-4" and o.metric == "vmaf"):
            seen.append(o)
    return replace(small_run(), observations=tuple(seen))


def test_every_mean_and_interval_reads_back():
    table = build(small_run())
    head, *rows = tables(render(page(table)))[0]
    assert head[0] == "Method"
    assert head[1] == "VBench Metrics (↑)<br>Subject"
    assert head[2:4] == ["Imaging", "Aesthetic"]
    assert head[4] == "Similarity to FP16 (↑)<br>Cosine"
    assert head[5:] == ["SSIM", "PSNR", "VMAF ↑", "N", "Bits"]
    assert [row[0] for row in rows] == [
        "FP16",
        "FP16, math kernel (noise floor)",
        "MXFP4 (OCP)",
        "NVFP4",
        "NVFP4 + SageAttention",
        "MXAttention",
    ]
    assert [row[-2:] for row in rows] == [["6", bits] for bits in ("16", "16", "4.25", "4.5", "4.5", "4.25")]
    assert rows[0][4:8] == ["–"] * 4
    for scored, row in zip(table.rows, rows, strict=True):
        for column, score, cell in zip(table.columns, scored.scores, row[1:], strict=False):
            if score.applies:
                shown = (score.interval.mean, score.interval.low, score.interval.high)
                assert numbers(cell) == pytest.approx(shown, abs=0.51 * 10**-column.digits)


def test_bold_is_bold():
    table = build(small_run())
    text = render(page(table))
    assert text.count("**0.") + text.count("**1") + text.count("**4") == sum(
        score.best for scored in table.rows for score in scored.scores
    )
    line = next(line for line in text.splitlines() if line.startswith("| MXAttention "))
    assert re.search(r"\*\*\d\.\d{4}\*\* \[\d\.\d{4}, \d\.\d{4}\]", line)


def test_every_difference_reads_back():
    table = build(small_run())
    _, baseline, reference = tables(render(page(table)))
    for block, (head, *rows) in zip(table.comparisons, (baseline, reference), strict=True):
        assert head[:9] == ["Metric", "Method", "Difference", "p (Holm)", "p (sign)", "W/T/L", "N", "SD", "Detectable"]
        for item, row in zip(block.rows, rows, strict=True):
            pair = item.paired
            assert numbers(row[2]) == pytest.approx(
                (pair.mean, pair.low, pair.high), abs=0.51 * 10**-item.column.digits
            )
            if item.p_holm is None:
                assert row[3] == "–"
            elif item.p_holm < 0.001:
                assert row[3] == "<0.001"
            else:
                assert float(row[3]) == pytest.approx(item.p_holm, abs=5.1e-4)
            assert row[5] == f"{pair.wins}/{pair.ties}/{pair.losses}"
            assert row[6] == str(pair.n)
            assert float(row[7]) == pytest.approx(pair.sd, abs=0.51 * 10**-item.column.digits)
            assert float(row[8]) == pytest.approx(item.detectable, abs=0.51 * 10**-item.column.digits)
    assert reference[0][9:] == ["Within 0.01", "Gap closed"]


def test_it_begins_with_what_was_run():
    lines = render(page(build(small_run()))).splitlines()
    assert lines[:10] == [
        "# Attention in 4 bits",
        "",
        "- **Model:** wan2.2",
        "- **Weights:** random weights (seed 0)",
        "- **Reference:** fp16, sdpa, cpu float32",
        "- **Device:** cpu",
        "- **dtype:** float32",
        "- **torch:** 2.13.0",
        "- **Frames:** 81",
        "- **N:** 6 prompts × 2 seeds",
    ]


def test_the_source_is_aligned():
    text = render(page(build(replace(with_trouble(), title="日本語"))))
    block = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            block.append(cell_len(line))
        elif block:
            assert len(set(block)) == 1
            block = []


def test_reasons_are_footnotes():
    text = render(page(build(with_trouble())))
    head, *rows = tables(text)[0]
    cells = {(row[0], name): cell for row in rows for name, cell in zip(head, row, strict=True)}
    assert cells["NVFP4", "Imaging"] == "unscored ¹"
    assert cells["NVFP4 + SageAttention", "SSIM"].endswith("] ²")
    assert re.fullmatch(r"\d\d\.\d\d n=5 \[.*\] ³", cells["MXAttention", "VMAF ↑"])
    assert (
        "¹ unscored: weights missing: musiq.pth (109 MB)\\\n² failed 1/12: black frames from step 12\\\n³ not" in text
    )
    assert "no common prompt" in text
    assert "Identical frames: FP16, math kernel (noise floor) 36." in text


def test_a_row_without_any_video_says_why_in_each_cell():
    data = small_run()
    seen = tuple(
        replace(o, value=None, failed="black frames from step 12") if o.row == "mxattn" else o
        for o in data.observations
    )
    _head, *rows = tables(render(page(build(replace(data, observations=seen)))))[0]
    assert rows[-1][1:8] == ["failed 12/12 ¹"] * 7
    assert rows[-1][8] == "0"


def test_a_short_reason_stands_in_the_cell():
    data = small_run(prompts=1, seeds=1, metrics=("ssim",))
    seen = tuple(replace(o, value=None, unscored="no ffmpeg") if o.row == "mxattn" else o for o in data.observations)
    assert tables(render(page(build(replace(data, observations=seen)))))[0][-1][1] == "unscored: no ffmpeg"


def test_one_prompt_has_numbers_without_brackets():
    text = render(page(build(small_run(prompts=1, seeds=1))))
    assert "- **N:** 1 prompt × 1 seed" in text
    assert "One prompt has no interval, and no test." in text
    for table in tables(text):
        assert not any(re.search(r"\[[-+\d]", cell) or "nan" in cell.lower() for row in table[1:] for cell in row)


def test_it_is_the_same_every_time_and_names_no_place_or_hour():
    text = render(page(build(with_trouble())))
    assert text == render(page(build(with_trouble())))
    assert text.endswith("\n")
    assert not re.search(r"\d\d:\d\d|20\d\d-\d\d|/home|/tmp|nan|inf\b", text)
    assert all(line == line.rstrip() for line in text.splitlines())


def test_users_words_cannot_break_the_table():
    row = MethodRow("own", "mine | <b>*best*</b> _x_ q_max `a`", unverified=True)
    data = small_run(prompts=2, seeds=1, rows=(*ROWS, row), title="a | b")
    head, *rows = tables(render(page(build(data))))[0]
    assert {len(r) for r in rows} == {len(head)}
    assert rows[-1][0] == "mine | <b>*best*</b> _x_ q_max `a` (unverified)"


def test_an_ablation_shows_check_marks():
    marks = [(True, True, True), (True, True, False), (True, False, False), (False, False, False)]
    names = ("Full", "w/o UOS", "w/o PNQ and UOS", "OCP MXFP4")
    rows = tuple(
        MethodRow(name, name, flags=dict(zip(("Hadamard", "PNQ", "UOS"), mark, strict=True)))
        for name, mark in zip(names, marks, strict=True)
    )
    observations = tuple(Observation(r.key, f"p{i}", 0, "ssim", 0.5) for r in rows for i in range(2))
    data = small_run(rows=(ROWS[0], *rows), metrics=("ssim",), observations=observations, n_prompts=2, kind="ablation")
    head, *got = tables(render(page(build(data, baseline="OCP MXFP4"))))[0]
    assert head[:4] == ["Configuration", "Hadamard", "PNQ", "UOS"]
    assert [row[1:4] for row in got] == [["", "", ""], *[["✓" if m else "–" for m in mark] for mark in marks]]


def test_a_sweep_begins_with_its_value():
    rows = tuple(MethodRow(f"q{v}", "MXAttention", axis={"q_max": v}) for v in ("8", "6.25", "10"))
    observations = tuple(Observation(r.key, f"p{i}", 0, "ssim", 0.5) for r in rows for i in range(2))
    data = small_run(rows=rows, metrics=("ssim",), observations=observations, n_prompts=2, kind="sweep")
    head, *got = tables(render(page(build(data))))[0]
    assert head[:2] == ["q_max", "Method"]
    assert [row[0] for row in got] == ["6.25", "8", "10"]
    assert [row[1] for row in got] == ["MXAttention"] * 3
    differences = tables(render(page(build(data))))[1]
    assert [row[1] for row in differences[1:]] == ["MXAttention, q_max 6.25", "MXAttention, q_max 10"]
    assert "The baseline mxfp4 is not in this table: MXAttention, q_max 8, the first method" in render(
        page(build(data))
    )


def test_the_notes_say_only_what_concerns_the_table():
    plain = render(page(build(small_run(rows=ROWS[2:4], metrics=("ssim",), seeds=1))))
    for word in ("Noise floor", "Gap closed", "Within", "dB", "seeds of a prompt", "bootstrap", "Unverified"):
        assert word not in plain
    large = render(page(build(small_run(prompts=31, rows=ROWS[2:4], metrics=METRICS))))
    assert "percentile bootstrap" in large
    noted = render(page(build(small_run(notes=("Random weights say nothing about quality.",)))))
    assert "- Random weights say nothing about quality." in noted
