import math

import numpy as np
import pytest
import scipy.stats

from mxbench.errors import UserError
from mxbench.stats import by_prompt, mean_interval


@pytest.mark.parametrize("n", [2, 3, 7, 29])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_student_t_below_thirty(n, confidence):
    x = np.random.default_rng(n).lognormal(size=n)
    got = mean_interval(x, confidence)
    low, high = scipy.stats.t.interval(confidence, n - 1, loc=x.mean(), scale=scipy.stats.sem(x))
    assert (got.method, got.n) == ("t", n)
    assert got.mean == pytest.approx(math.fsum(x) / n, rel=1e-14)
    assert (got.low, got.high) == pytest.approx((low, high), rel=1e-12)
    assert got.sd == pytest.approx(np.sqrt(((x - x.mean()) ** 2).sum() / (n - 1)), rel=1e-14)


def test_bootstrap_from_thirty_is_the_percentile_interval_and_deterministic():
    x = np.random.default_rng(0).exponential(size=30)
    got = mean_interval(x)
    assert got.method == "bootstrap"
    assert got == mean_interval(list(x))
    # An independent percentile bootstrap with another generator: equal up to the noise of resampling.
    draws = np.random.RandomState(5).choice(x, size=(40_000, 30)).mean(axis=1)
    assert (got.low, got.high) == pytest.approx(
        tuple(np.percentile(draws, [2.5, 97.5])), abs=0.02 * (got.high - got.low)
    )
    assert got.low < got.mean < got.high


def test_bootstrap_keeps_the_skew_that_t_loses():
    x = np.random.default_rng(1).lognormal(sigma=1.5, size=40)
    got = mean_interval(x)
    assert got.high - got.mean > got.mean - got.low


def test_one_value_has_no_interval():
    got = mean_interval([0.25])
    assert (got.mean, got.low, got.high, got.n, got.sd, got.method) == (0.25, None, None, 1, None, "none")


@pytest.mark.parametrize("n", [2, 5, 30, 100])
def test_equal_values_are_their_own_interval(n):
    got = mean_interval([0.1] * n)
    assert (got.mean, got.low, got.high, got.sd, got.method) == (0.1, 0.1, 0.1, 0.0, "constant")


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf, 1.0], [[1.0, 2.0]]])
def test_bad_values_are_refused(bad):
    with pytest.raises(UserError):
        mean_interval(bad)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95, -0.5, math.nan])
def test_bad_confidence_is_refused(confidence):
    with pytest.raises(UserError, match="confidence"):
        mean_interval([1.0, 2.0], confidence)


def test_whole_numbers_and_float32_are_counted_in_float64():
    assert mean_interval([1, 2, 4]).mean == pytest.approx(7 / 3, rel=1e-15)
    x = np.float32([0.1, 0.2, 0.4])
    assert mean_interval(x).mean == pytest.approx(x.astype(np.float64).mean(), rel=1e-15)


def test_coverage_of_t_is_nominal():
    """2,000 experiments of 6 prompts: 95% with a standard error of 0.5%."""
    rng = np.random.default_rng(11)
    x = rng.normal(0.7, 0.05, size=(2_000, 6))
    hits = sum(got.low <= 0.7 <= got.high for got in map(mean_interval, x))
    assert hits / 2_000 == pytest.approx(0.95, abs=0.02)


def test_coverage_of_bootstrap_is_near_nominal():
    rng = np.random.default_rng(12)
    x = rng.exponential(1.0, size=(250, 40))
    hits = sum(got.low <= 1.0 <= got.high for got in map(mean_interval, x))
    assert 0.88 <= hits / 250 <= 0.98


def test_seeds_are_averaged_inside_their_prompt():
    got = by_prompt([("b", 1.0), ("a", 5.0), ("b", 3.0), ("b", 5.0)])
    assert got == {"b": 3.0, "a": 5.0}
    assert list(got) == ["b", "a"]
    assert by_prompt([]) == {}


def test_many_seeds_do_not_make_more_prompts():
    """Three prompts with 50 seeds each are three, however tight the seeds lie."""
    rng = np.random.default_rng(3)
    observations = [(f"p{i}", i + rng.normal(0, 0.01)) for i in range(3) for _ in range(50)]
    got = mean_interval(list(by_prompt(observations).values()))
    assert got.n == 3
    assert got.high - got.low > 4  # SD of the prompts is 1, t(2) is 4.3


def test_a_prompt_with_nan_is_named():
    with pytest.raises(UserError, match="'cat'"):
        by_prompt([("cat", math.nan)])
