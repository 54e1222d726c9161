"""What attention looks like: every statistic against NumPy and SciPy in float64, and the recorder's render."""

import dataclasses
import math

import ml_dtypes
import numpy as np
import pytest
import scipy.stats
import torch

from mxbench.analysis import sites, sites_measures
from mxbench.analysis.sites import Recorder, SiteStatistics, aggregate, study
from mxbench.analysis.sites_measures import Measures, measure, sampled_rows
from mxbench.attention.methods import METHODS
from mxbench.attention.site import Site
from mxbench.errors import UserError
from mxbench.models.attach import attach
from mxbench.models.base import Sampling
from mxbench.models.nano.model import RandomNano

PARTS = ("zeroing", "saturation", "rounded_down", "rounded_up")
SITE = Site(expert=0, layer=0, n_layers=1, kind="self", step=5, n_steps=8, grid=None)
TINY = Sampling(height=32, width=32, frames=5, fps=8, steps=2, guidance=(4.0, 3.0), max_sequence_length=16)


@pytest.fixture(scope="module")
def noise():
    """The seam's test model: Wan's classes with random weights."""
    return RandomNano()


def tensors(n, d, b=1, h=2, seed=0, sharp=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(b, h, n, d, generator=generator) for _ in range(3))
    q, k = q * sharp, k + torch.randn(d, generator=generator)
    v = v * (1 + 3 * torch.rand(d, generator=generator)) + torch.randn(d, generator=generator)
    return [x.to(dtype) for x in (q, k, v)]


def heads(x):
    return x.double().flatten(0, 1).numpy()


def softmax_rows(q, k):
    scores = q @ k.T / math.sqrt(q.shape[-1])
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def ocp(p):
    """OCP MXFP4 of rows of P in blocks of 32, by frexp and ml_dtypes: values, scaled inputs and codes."""
    n = p.shape[-1]
    blocks = np.pad(p, ((0, 0), (0, -n % 32))).reshape(len(p), -1, 32)
    amax = blocks.max(-1, keepdims=True)
    exponent = np.frexp(amax)[1] - 1 - 2
    scaled = np.where(amax > 0, np.ldexp(blocks, -exponent), 0.0)
    codes = np.minimum(scaled, 6.0).astype(ml_dtypes.float4_e2m1fn).astype(np.float64)
    return tuple(x.reshape(len(p), -1)[:, :n] for x in (np.ldexp(codes, exponent), scaled, codes))


def expected_rows(q, k, rows):
    p = softmax_rows(q, k)[[i * len(q) // min(rows, len(q)) for i in range(min(rows, len(q)))]]
    kept, scaled, codes = ocp(p)
    error = kept - p
    zero, full = codes == 0, scaled > 6
    inner = ~zero & ~full
    entropy = scipy.stats.entropy(p, axis=-1)
    return {
        "entropy": entropy.mean(),
        "entropy_above_5": (entropy > 5).mean(),
        "row_sum": kept.sum(-1).mean(),
        "row_sum_below_1": (kept.sum(-1) < 1).mean(),
        "zeroing": (error * zero).sum(-1).mean(),
        "saturation": (error * full).sum(-1).mean(),
        "rounded_down": (error * (inner & (error < 0))).sum(-1).mean(),
        "rounded_up": (error * (inner & (error > 0))).sum(-1).mean(),
    }


def lloyd(v, k=64, rounds=4):
    """V-Smooth's grouping as its design states it, for one head, in float64."""
    k = min(k, len(v))
    centres = v[[i * (len(v) - 1) // max(k - 1, 1) for i in range(k)]].copy()

    def nearest():
        return ((v[:, None] - centres[None]) ** 2).sum(-1).argmin(-1)

    for _ in range(rounds):
        label = nearest()
        for c in range(k):
            if (label == c).any():
                centres[c] = v[label == c].mean(0)
    return np.argsort(nearest(), kind="stable")


def mean_share(v):
    blocks = [v[i : i + 128] for i in range(0, len(v), 128)]
    residual = sum(((block - block.mean(0)) ** 2).sum() for block in blocks)
    return 1 - residual / (v**2).sum()


def expected(q, k, v, rows):
    found = []
    for q1, k1, v1 in zip(heads(q), heads(k), heads(v), strict=True):
        one = expected_rows(q1, k1, rows)
        for name, x in (("q", q1), ("k", k1), ("v", v1)):
            one[f"{name}_kurtosis"] = scipy.stats.kurtosis(x, axis=None, fisher=False)
            rms = np.sqrt((x**2).mean(0))
            one[f"{name}_channels"] = rms.max() / np.median(rms)
        tokens = np.abs(v1).max(-1)
        one["v_tokens"] = tokens.max() / np.median(tokens)
        one["v_energy_sequence"] = mean_share(v1)
        one["v_energy_grouped"] = mean_share(v1[lloyd(v1)])
        found.append(one)
    return {name: np.mean([one[name] for one in found]) for name in found[0]}


@pytest.mark.parametrize(
    ("n", "d", "rows", "sharp", "b"),
    [(333, 64, 1000, 1.0, 1), (130, 80, 57, 4.0, 2), (160, 128, 160, 0.2, 1), (31, 32, 7, 2.0, 1), (1, 16, 5, 1.0, 1)],
)
def test_every_statistic_equals_an_independent_one_in_float64(n, d, rows, sharp, b):
    q, k, v = tensors(n, d, b=b, sharp=sharp)
    before = [x.clone() for x in (q, k, v)]
    found = dataclasses.asdict(measure(q, k, v, SITE, rows))
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before, strict=True))
    wanted = expected(q, k, v, rows)
    assert found.keys() == wanted.keys() == set(Measures.names())
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-5, abs=2e-6), name


def test_flat_attention_has_high_entropy_and_other_dtypes_are_upcast():
    q, k, v = tensors(300, 32, sharp=0.01, dtype=torch.bfloat16)
    found = measure(q, k, v, SITE, 300)
    assert found.entropy == pytest.approx(math.log(300), abs=1e-3)
    assert found.entropy_above_5 == 1
    wanted = expected(q, k, v, 300)
    assert found.v_kurtosis == pytest.approx(wanted["v_kurtosis"], rel=1e-9)
    assert found.row_sum == pytest.approx(wanted["row_sum"], rel=1e-4)


@pytest.mark.parametrize(("n", "sharp"), [(97, 1.0), (257, 5.0), (129, 60.0)])
def test_one_plus_the_four_parts_is_the_mean_row_sum(n, sharp):
    q, k, v = tensors(n, 64, seed=3, sharp=sharp)
    found = measure(q, k, v, SITE, n)
    assert found.row_sum == pytest.approx(1 + sum(getattr(found, part) for part in PARTS), abs=1e-6)
    assert found.rounded_up >= 0 >= max(found.zeroing, found.saturation, found.rounded_down)


def test_the_rows_may_be_computed_in_any_tiles(monkeypatch):
    q, k, v = tensors(150, 64)
    whole = measure(q, k, v, SITE, 150)
    monkeypatch.setattr(sites_measures, "_TILE_ROWS", 7)
    tiled = measure(q, k, v, SITE, 150)
    assert dataclasses.astuple(tiled) == pytest.approx(dataclasses.astuple(whole), rel=1e-5)


def test_sampled_rows_are_evenly_spaced_and_all_of_them_where_there_are_few():
    assert sampled_rows(5, 256).tolist() == [0, 1, 2, 3, 4]
    assert sampled_rows(1280, 256).tolist() == list(range(0, 1280, 5))
    assert sampled_rows(10, 4).tolist() == [0, 2, 5, 7]


def test_block_means_take_all_of_a_constant_and_grouping_finds_what_order_hides():
    v = torch.ones(1, 1, 300, 16)
    assert measure(v, v, v, SITE, 8).v_energy_sequence == pytest.approx(1)
    assert math.isnan(measure(v, v, v, SITE, 8).v_kurtosis)
    kinds = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
    v = kinds[torch.arange(512) % 2][None, None]
    found = measure(v, v, v, SITE, 8)
    together = 512 * kinds.double().mean(0).square().sum() / v.double().square().sum()
    assert found.v_energy_sequence == pytest.approx(float(together))
    assert found.v_energy_grouped == pytest.approx(1)


def test_grouping_leaves_text_behind_the_video():
    """160 video tokens and 140 of text, which are no part of the clusters."""
    v = tensors(300, 8, h=1)[2]
    one = v[0, 0].double().numpy()
    ordered = one[np.concatenate([lloyd(one[:160]), np.arange(160, 300)])]
    found = measure(v, v, v, dataclasses.replace(SITE, grid=(1, 10, 16)), 8)
    assert found.v_energy_grouped == pytest.approx(mean_share(ordered))
    assert found.v_energy_grouped != measure(v, v, v, SITE, 8).v_energy_grouped


def call(model, seed=1, sampling=TINY):
    generator = torch.Generator("cpu").manual_seed(seed)
    return model.pipe("x", **model.arguments(sampling), generator=generator, output_type="latent").frames


def test_the_recorded_render_is_the_render_with_exact_attention_bit_for_bit(noise):
    recorder = Recorder(rows=8)
    with attach(noise.pipe, "fp16"):
        exact = call(noise)
    with recorder.watching(noise.pipe):
        recorded = call(noise)
    assert torch.equal(exact, recorded)
    assert torch.equal(exact, call(noise))


def test_a_study_holds_every_site_once_with_the_mean_of_its_calls(noise):
    """Against the operands of the same render, caught by hooks of another attachment."""
    ended, calls = [], {}
    found = study(noise, ["x"], seed=1, sampling=TINY, rows=9, on_step=lambda: ended.append(1))
    assert len(ended) == 2

    def catch(q, k, v):
        site = seam.site
        calls.setdefault((site.expert, site.layer, site.step), []).append(measure(q, k, v, site, 9))
        assert site.branch == len(calls[site.expert, site.layer, site.step]) - 1
        assert site.grid == (2, 4, 4)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    with attach(noise.pipe, catch) as seam:
        assert seam.site is None
        call(noise)
    assert [(each.expert, each.layer, each.step) for each in found] == sorted(calls)
    assert len(found) == 2 * 8
    for each in found:
        assert (each.calls, each.tokens, each.rows) == (2, 32, 9)
        pair = [dataclasses.astuple(m) for m in calls[each.expert, each.layer, each.step]]
        assert dataclasses.astuple(each.mean) == pytest.approx(np.mean(pair, axis=0))
    two = study(noise, ["x", "a red circle"], seed=1, sampling=dataclasses.replace(TINY, steps=1))
    assert {each.calls for each in two} == {4}


def stats(expert, layer, step, calls, value):
    return SiteStatistics(expert, layer, step, calls, 32, 8, Measures(*[value] * len(Measures.names())))


def test_aggregation_weighs_every_call_once():
    found = [stats(1, 0, 1, 2, 8.0), stats(0, 0, 0, 1, 1.0), stats(0, 1, 0, 3, 5.0), stats(1, 1, 1, 2, 0.0)]

    def seen(level):
        return [(e.expert, e.layer, e.step, e.calls, e.mean.row_sum) for e in aggregate(found, level)]

    assert seen("step") == [(0, None, 0, 4, 4.0), (1, None, 1, 4, 4.0)]
    assert seen("layer") == [(0, 0, None, 1, 1.0), (0, 1, None, 3, 5.0), (1, 0, None, 2, 8.0), (1, 1, None, 2, 0.0)]
    assert seen("all") == [(None, None, None, 8, 4.0)]
    assert seen("site") == sorted((e.expert, e.layer, e.step, e.calls, e.mean.row_sum) for e in found)
    assert aggregate([], "layer") == []
    with pytest.raises(UserError, match="unknown level 'steps'; did you mean step"):
        aggregate(found, "steps")


def test_plain_data_has_no_nan():
    one = dataclasses.replace(stats(0, 1, 2, 3, 1.5), mean=Measures(*[math.nan, *[1.5] * 16]))
    plain = one.to_dict()
    assert plain["q_kurtosis"] is None
    assert (plain["expert"], plain["layer"], plain["step"], plain["calls"], plain["v_tokens"]) == (0, 1, 2, 3, 1.5)
    assert math.isnan(aggregate([one, stats(0, 1, 2, 1, 1.0)], "site")[0].mean.q_kurtosis)


def test_what_the_papers_print_adds_up():
    parts = sum(sites.PUBLISHED[part] for part in PARTS)
    assert 1 + parts == pytest.approx(sites.PUBLISHED["row_sum"], abs=1e-9)
    assert set(sites.PUBLISHED) <= set(Measures.names())
    assert METHODS["mxfp4"].spec.p.scale_rule == "ocp"


def test_bad_input_is_named(noise):
    with pytest.raises(UserError, match="0 rows are no sample"):
        Recorder(rows=0)
    with pytest.raises(UserError, match="object is no diffusers pipeline"):
        study(object(), ["x"], seed=0, sampling=TINY)
    bias = noise.pipe.transformer.blocks[3].attn1.to_v.bias.data
    kept = bias[0].item()
    bias[0] = float("nan")
    try:
        with pytest.raises(UserError, match="expert 0, layer 3, step 0 holds a NaN"):
            study(noise, ["x"], seed=0, sampling=TINY)
    finally:
        bias[0] = kept
