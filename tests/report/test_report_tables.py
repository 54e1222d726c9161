from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from report_data import METRICS, ROWS, small_run

from mxbench.errors import UserError
from mxbench.metrics import METRICS as METRICS_TABLE
from mxbench.report.cells import collect
from mxbench.report.columns import COLUMNS, columns_for
from mxbench.report.data import Column, MethodRow, Observation
from mxbench.report.tables import best_rows, build

A, B, C = MethodRow("a", "A"), MethodRow("b", "B"), MethodRow("c", "C")
LOWER = Column("distance", "Distance", 4, False, needs_reference=True)


def frame(data, row, metric):
    """Values as a matrix [prompt, seed], read without the code under test."""
    seen = [o for o in data.observations if (o.row, o.metric) == (row, metric)]
    prompts = sorted({o.prompt for o in seen})
    return np.array([[o.value for o in seen if o.prompt == p] for p in prompts])


def of(values, metric="ssim", rows=(A, B, C)):
    """A table of one metric from {row: values by prompt}."""
    observations = tuple(
        Observation(row, f"p{i:03}", 0, metric, None if v is None else float(v), "no weights" if v is None else None)
        for row, series in values.items()
        for i, v in enumerate(series)
    )
    n = max(len(series) for series in values.values())
    kept = tuple(row for row in rows if row.key in values)
    columns = (LOWER if metric == "distance" else COLUMNS[metric],)
    return small_run(rows=kept, metrics=(), observations=observations, n_prompts=n, columns=columns)


def bold(data):
    return {s.row.key for s in build(data).rows if s.scores[0].best}


@pytest.mark.parametrize("prompts", [6, 33])
def test_every_mean_is_that_of_scipy(prompts):
    data = small_run(prompts=prompts)
    table = build(data)
    checked = 0
    for scored in table.rows:
        for column, score in zip(table.columns, scored.scores, strict=True):
            if scored.row.role == "reference" and column.needs_reference:
                assert not score.applies
                assert score.interval is None
                continue
            values = frame(data, scored.row.key, column.name).mean(axis=1)
            assert score.interval.n == prompts
            assert score.interval.mean == pytest.approx(values.mean(), rel=1e-12)
            if prompts < 30:
                expected = scipy.stats.t.interval(0.95, prompts - 1, values.mean(), scipy.stats.sem(values))
                assert (score.interval.low, score.interval.high) == pytest.approx(expected, rel=1e-10)
            else:
                assert score.interval.method == "bootstrap"
            checked += 1
    assert checked == 6 * 7 - 4


def test_every_difference_is_that_of_scipy():
    data = small_run()
    table = build(data)
    to_baseline, to_reference = table.comparisons
    assert (to_baseline.against.key, to_reference.against.key) == ("mxfp4", "fp16")
    assert {i.column.name for i in to_baseline.rows} == {"cosine", "ssim", "psnr", "vmaf"}
    assert {i.row.key for i in to_baseline.rows} == {"nvfp4", "nvfp4-sage", "mxattn"}
    assert {i.column.name for i in to_reference.rows} == set(METRICS[:3])
    assert [i.row.key for i in to_reference.rows[:5]] == [r.key for r in ROWS[1:]]
    for block in table.comparisons:
        for column in dict.fromkeys(i.column for i in block.rows):
            items = [i for i in block.rows if i.column == column]
            raw = {}
            for item in items:
                a = frame(data, item.row.key, column.name).mean(axis=1)
                b = frame(data, block.against.key, column.name).mean(axis=1)
                t = scipy.stats.ttest_rel(a, b)
                low, high = t.confidence_interval(0.95)
                assert (item.paired.mean, item.paired.low, item.paired.high) == pytest.approx(
                    ((a - b).mean(), low, high), rel=1e-9
                )
                assert item.paired.sd == pytest.approx((a - b).std(ddof=1), rel=1e-9)
                assert (item.paired.wins, item.paired.losses) == (int((a > b).sum()), int((a < b).sum()))
                assert item.paired.p_sign == pytest.approx(scipy.stats.binomtest(item.paired.wins, 6).pvalue)
                if item.row.role == "method":
                    raw[item.row.key] = t.pvalue
                else:
                    assert item.p_holm is None
                # The smallest difference shown with 80% power, by simulation of nothing but its definition.
                shift = item.detectable / item.paired.sd * np.sqrt(6)
                crit = scipy.stats.t.ppf(0.975, 5)
                power = scipy.stats.nct.sf(crit, 5, shift) + scipy.stats.nct.cdf(-crit, 5, shift)
                assert power == pytest.approx(0.8, abs=1e-6)
                if column.margin:
                    one_sided = scipy.stats.ttest_1samp(a - b, -0.01, alternative="greater").pvalue
                    assert item.noninferior.p_value == pytest.approx(one_sided, rel=1e-9)
            ranked = sorted(raw, key=raw.get)
            worst = 0.0
            for k, key in enumerate(ranked):
                worst = max(worst, min(1.0, (len(ranked) - k) * raw[key]))
                assert next(i for i in items if i.row.key == key).p_holm == pytest.approx(worst, rel=1e-9)


def test_recovery_stands_only_where_there_is_a_gap():
    table = build(small_run())
    rows = {(i.row.key, i.column.name): i.recovery for i in table.comparisons[1].rows}
    x, ocp, fp16 = (frame(table.data, k, "imaging_quality").mean() for k in ("mxattn", "mxfp4", "fp16"))
    assert rows["mxattn", "imaging_quality"].value == pytest.approx((x - ocp) / (fp16 - ocp))
    assert rows["mxattn", "aesthetic_quality"].value is None  # MXFP4 is above FP16, as in the paper
    assert "not worse" in rows["mxattn", "aesthetic_quality"].reason
    assert rows["mxfp4", "imaging_quality"] is None
    assert rows["fp16@math", "imaging_quality"] is None


def test_bold_needs_a_significant_difference():
    base = np.linspace(0.4, 0.6, 8)
    noise = np.random.default_rng(1).normal(0, 0.002, (3, 8))
    assert bold(of({"a": base + noise[0], "b": base + 0.1 + noise[1], "c": base + noise[2]})) == {"b"}
    assert bold(of({"a": base + noise[0], "b": base + noise[1], "c": base + noise[2]})) == set()


def test_ties_share_the_lead():
    base = np.linspace(0.4, 0.6, 8)
    noise = np.random.default_rng(1).normal(0, 0.002, (3, 8))
    assert bold(of({"a": base + noise[0], "b": base + 0.1 + noise[1], "c": base + 0.1 + noise[2]})) == {"b", "c"}
    exact = base + 0.1
    assert bold(of({"a": base + noise[0], "b": exact, "c": exact})) == {"b", "c"}
    assert bold(of({"a": base, "b": base, "c": base})) == set()


def test_bold_follows_the_direction_of_the_column():
    base = np.linspace(0.4, 0.6, 8)
    noise = np.random.default_rng(0).normal(0, 0.002, (2, 8))
    assert bold(of({"a": base + noise[0], "b": base + 0.1 + noise[1]}, "distance")) == {"a"}
    none = of({"a": base + noise[0], "b": base + 0.1 + noise[1]}, "dynamic_degree")
    assert bold(none) == set()


def test_bold_is_corrected_over_all_pairs():
    """A difference that a single test calls significant is lost among ten pairs."""
    rng = np.random.default_rng(4)
    base = rng.normal(0.5, 0.1, 10)
    series = {key: base + rng.normal(0, 0.01, 10) for key in "abcde"}
    rows = tuple(MethodRow(key, key) for key in "abcde")
    shift = rng.normal(0.008, 0.01, 10)
    series["a"] = base + shift
    smallest = min(scipy.stats.ttest_rel(series["a"], series[k]).pvalue for k in "bcde")
    assert 0.005 < smallest < 0.05
    assert bold(of(series, rows=rows)) == set()


def test_under_equal_methods_bold_is_rare():
    rng = np.random.default_rng(9)
    rows = tuple(MethodRow(key, key) for key in "abcde")
    columns = tuple(Column(f"m{i}", f"M{i}", 3, True, needs_reference=False) for i in range(300))
    observations = []
    for column in columns:
        for key in "abcde":
            observations += [
                Observation(key, f"p{i}", 0, column.name, float(v)) for i, v in enumerate(rng.normal(0, 1, 6))
            ]
    data = small_run(rows=rows, observations=tuple(observations), columns=columns)
    cells = collect(data)
    assert sum(bool(best_rows(data, cells, column)) for column in columns) / 300 < 0.07


def test_reference_and_noise_floor_are_never_bold():
    table = build(small_run())
    assert any(score.best for scored in table.rows for score in scored.scores)
    for scored in table.rows[:2]:
        assert scored.row.role != "method"
        assert not any(score.best for score in scored.scores)


def test_a_method_that_misses_videos_never_leads_but_still_beats_others():
    base = np.linspace(0.4, 0.6, 8)
    noise = np.random.default_rng(1).normal(0, 0.002, (3, 8))
    best = [None, *(base + 0.2 + noise[0])[1:]]
    assert bold(of({"a": best, "b": base + 0.1 + noise[1], "c": base + noise[2]})) == set()
    worst = [None, *(base - 0.2 + noise[0])[1:]]
    assert bold(of({"a": worst, "b": base + 0.1 + noise[1], "c": base + noise[2]})) == {"b"}


def test_one_prompt_invents_no_interval_and_nothing_is_bold():
    table = build(small_run(prompts=1, seeds=3))
    scores = [s for scored in table.rows for s in scored.scores if s.interval]
    assert {(s.interval.n, s.interval.low, s.interval.high, s.best) for s in scores} == {(1, None, None, False)}
    items = [i for block in table.comparisons for i in block.rows]
    assert items
    assert all(i.p_holm is None and i.detectable is None and i.paired.low is None for i in items)


def test_pairs_are_made_by_prompt_and_seed():
    """b lacks one seed of p0: the pair uses the seed that both have, not b's seed against a's mean."""
    seen = [("a", "p0", 0, 1.0), ("a", "p0", 1, 9.0), ("a", "p1", 0, 2.0), ("a", "p1", 1, 2.0)]
    seen += [("b", "p0", 0, 0.5), ("b", "p1", 0, 1.0), ("b", "p1", 1, 1.0), ("b", "p2", 0, 77.0)]
    observations = tuple(Observation(row, p, seed, "psnr", v) for row, p, seed, v in seen)
    data = small_run(rows=(A, B), metrics=("psnr",), observations=observations, n_prompts=3)
    (block,) = build(data, baseline="a").comparisons
    (item,) = block.rows
    assert item.paired.n == 2
    assert item.paired.mean == pytest.approx(((0.5 - 1.0) + (1.0 - 2.0)) / 2)
    assert build(data).score("a", "psnr").interval.mean == pytest.approx((5.0 + 2.0) / 2)


def test_wins_follow_the_direction():
    (block,) = build(of({"a": [0.1, 0.2, 0.3], "b": [0.2, 0.1, 0.4]}, "distance"), baseline="a").comparisons
    assert (block.rows[0].paired.wins, block.rows[0].paired.losses) == (1, 2)
    assert block.rows[0].paired.mean == pytest.approx(0.1 / 3)


def test_a_missing_baseline_is_said():
    data = small_run(rows=tuple(row for row in ROWS if row.key != "mxfp4"))
    data = replace(data, observations=tuple(o for o in data.observations if o.row != "mxfp4"))
    table = build(data)
    assert table.missing_baseline == "mxfp4"
    assert table.comparisons[0].against.key == "nvfp4"
    assert build(small_run()).missing_baseline is None


def test_one_method_has_no_baseline_to_differ_from():
    rows = (ROWS[0], ROWS[5])
    similarity = build(small_run(rows=rows, metrics=("ssim", "psnr")))
    assert similarity.comparisons == ()
    quality = build(small_run(rows=rows))
    assert [block.kind for block in quality.comparisons] == ["reference"]


def test_no_common_prompt_is_no_difference():
    data = of({"a": [0.1, 0.2, None, None], "b": [None, None, 0.3, 0.4], "c": [0.1, 0.2, 0.3, 0.5]})
    (block,) = build(data, baseline="a").comparisons
    items = {i.row.key: i for i in block.rows}
    assert items["b"].paired is None
    assert items["c"].paired.n == 2


def test_a_sweep_is_sorted_by_value_not_by_spelling():
    values = ["8", "6.25", "10", "7.25", "6.5"]
    points = tuple(MethodRow(f"q{v}", "MXAttention", axis={"q_max": v}) for v in values)
    rows = (points[0], ROWS[2], *points[1:], ROWS[1], ROWS[0])
    observations = tuple(Observation(row.key, "p0", 0, "ssim", 0.5) for row in rows if row.role != "reference")
    data = small_run(rows=rows, metrics=("ssim",), observations=observations, n_prompts=1, kind="sweep")
    got = [scored.row.key for scored in build(data).rows]
    assert got == ["fp16", "fp16@math", "mxfp4", "q6.25", "q6.5", "q7.25", "q8", "q10"]


def test_a_sweep_of_two_fields_is_sorted_by_both():
    points = [("2", "floor"), ("10", "ceil"), ("2", "ceil"), ("10", "floor")]
    rows = tuple(MethodRow(f"{a}{b}", "M", axis={"prescale": a, "rule": b}) for a, b in points)
    data = small_run(rows=rows, metrics=("ssim",), observations=(), n_prompts=1, kind="sweep")
    assert [s.row.key for s in build(data).rows] == ["2ceil", "2floor", "10ceil", "10floor"]


def test_methods_keep_their_order_after_reference_and_noise_floor():
    rows = (ROWS[5], ROWS[0], ROWS[2], ROWS[1])
    assert [s.row.key for s in build(small_run(rows=rows)).rows] == ["fp16", "fp16@math", "mxattn", "mxfp4"]


def test_the_order_of_observations_changes_nothing():
    data = small_run(prompts=31)
    shuffled = list(data.observations)
    np.random.default_rng(0).shuffle(shuffled)
    one, two = build(data), build(replace(data, observations=tuple(shuffled)))
    assert one.rows == two.rows
    assert one.comparisons == two.comparisons


def test_two_references_and_empty_tables_are_refused():
    with pytest.raises(UserError, match="2 references"):
        build(small_run(rows=(ROWS[0], replace(ROWS[0], key="other"))))
    with pytest.raises(UserError, match="nothing to tabulate"):
        build(small_run(rows=(), observations=()))
    with pytest.raises(UserError, match="nothing to tabulate"):
        build(small_run(metrics=(), observations=()))


def test_columns_stand_in_the_papers_order():
    names = [c.name for c in columns_for(["psnr", "vmaf", "imaging_quality", "cosine", "subject_consistency"])]
    assert names == ["subject_consistency", "imaging_quality", "cosine", "psnr", "vmaf"]
    with pytest.raises(UserError, match="did you mean"):
        columns_for(["imaging_qualty"])
    assert set(COLUMNS) == set(METRICS_TABLE)
    for name, column in COLUMNS.items():
        assert name == column.name
        assert not (column.margin and column.needs_reference)


def test_ten_thousand_observations():
    table = build(small_run(prompts=140, seeds=2))
    assert len(table.data.observations) > 10_000
    assert all(s.interval.n == 140 for scored in table.rows for s in scored.scores if s.applies)
