import math

import numpy as np
import pytest

from mxbench.errors import UserError
from mxbench.stats import recovery


def sample(n, seed=0, closed=0.9, gap=0.07, noise=0.004):
    rng = np.random.default_rng(seed)
    fp16 = rng.normal(0.7, 0.05, n)
    ocp = fp16 - gap + rng.normal(0, noise, n)
    x = ocp + closed * (fp16 - ocp) + rng.normal(0, noise, n)
    return x, ocp, fp16


def test_the_papers_own_number():
    """MXAttention, section 5.3: 0.6414 to 0.7054 of 0.7085 is 95.4%."""
    got = recovery([0.7054], [0.6414], [0.7085])
    assert round(100 * got.value, 1) == 95.4
    assert (got.low, got.high, got.reason) == (None, None, "one prompt has no interval")


def test_value_and_interval_against_an_independent_bootstrap():
    x, ocp, fp16 = sample(24)
    got = recovery(x, ocp, fp16)
    assert got.value == pytest.approx((x.mean() - ocp.mean()) / (fp16.mean() - ocp.mean()), rel=1e-12)
    rows = np.random.RandomState(3).randint(0, 24, size=(40_000, 24))
    means = [v[rows].mean(axis=1) for v in (x, ocp, fp16)]
    low, high = np.percentile((means[0] - means[1]) / (means[2] - means[1]), [2.5, 97.5])
    assert (got.low, got.high) == pytest.approx((low, high), abs=0.03 * (high - low))
    assert got == recovery(list(x), list(ocp), list(fp16))


def test_resampling_together_is_narrower_than_apart():
    """The prompts' spread of 0.05 is in all three; resampled apart it would swamp a gap of 0.07."""
    x, ocp, fp16 = sample(24)
    got = recovery(x, ocp, fp16)
    rng = np.random.default_rng(0)
    apart = [v[rng.integers(0, 24, size=(4_000, 24))].mean(axis=1) for v in (x, ocp, fp16)]
    low, high = np.percentile((apart[0] - apart[1]) / (apart[2] - apart[1]), [2.5, 97.5])
    assert got.high - got.low < 0.2 * (high - low)


def test_coverage():
    hits = 0
    for seed in range(200):
        got = recovery(*sample(40, seed=seed, noise=0.01))
        hits += got.low <= 0.9 <= got.high
    assert 0.88 <= hits / 200 <= 0.99


def test_a_gap_that_is_not_shown_gives_no_interval():
    got = recovery(*sample(6, gap=0.0, noise=0.01))
    assert got.value is not None
    assert (got.low, got.high) == (None, None)
    assert "contains 0" in got.reason


def test_no_gap_at_all_gives_no_value():
    got = recovery([1.0, 2.0], [0.5, 0.5], [0.5, 0.5])
    assert (got.value, got.low, got.reason) == (None, None, "the gap is 0")


def test_closing_the_gap_exactly_is_one():
    _, ocp, fp16 = sample(12)
    got = recovery(fp16, ocp, fp16)
    assert (got.value, got.low, got.high) == pytest.approx((1.0, 1.0, 1.0))


def test_a_negative_gap_keeps_the_ratio():
    x, ocp, fp16 = sample(12)
    got, mirrored = recovery(x, ocp, fp16), recovery(-x, -ocp, -fp16)
    assert (got.value, got.low, got.high) == pytest.approx((mirrored.value, mirrored.low, mirrored.high))


@pytest.mark.parametrize(("x", "ocp", "fp16"), [([], [], []), ([1.0], [1.0, 2.0], [1.0]), ([math.nan], [1.0], [2.0])])
def test_bad_input_is_refused(x, ocp, fp16):
    with pytest.raises(UserError):
        recovery(x, ocp, fp16)
