import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from mxbench.errors import UserError
from mxbench.stats import holm, mean_interval, noninferior, paired_difference, paired_p_value


@pytest.mark.parametrize("n", [2, 3, 12, 29, 45])
def test_against_scipy(n):
    rng = np.random.default_rng(n)
    a = rng.normal(0.6, 0.1, n)
    b = a + rng.normal(0.02, 0.03, n)
    got = paired_difference(a, b)
    t = scipy.stats.ttest_rel(a, b)
    assert got.p_value == pytest.approx(t.pvalue, rel=1e-10)
    assert paired_p_value(a, b) == got.p_value
    assert got.mean == pytest.approx(np.mean(a) - np.mean(b), rel=1e-12)
    assert got.sd == pytest.approx(np.std(a - b, ddof=1), rel=1e-14)
    if n < 30:
        low, high = t.confidence_interval(0.95)
        assert (got.low, got.high) == pytest.approx((low, high), rel=1e-10)
    else:
        assert (got.low, got.high) == (mean_interval(a - b).low, mean_interval(a - b).high)
    assert got.p_sign == pytest.approx(scipy.stats.binomtest(got.wins, n).pvalue)
    assert (got.wins, got.losses) == (int((a > b).sum()), int((a < b).sum()))


def test_pairing_finds_what_the_spread_between_prompts_hides():
    rng = np.random.default_rng(2)
    prompts = rng.normal(0.6, 0.2, 12)
    a, b = prompts + 0.01 + rng.normal(0, 0.003, 12), prompts
    assert paired_difference(a, b).p_value < 0.001
    assert scipy.stats.ttest_ind(a, b).pvalue > 0.5


def test_ties_are_counted_and_dropped_from_the_sign_test():
    got = paired_difference([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 2.0, 3.0, 6.0])
    assert (got.wins, got.ties, got.losses, got.n) == (2, 2, 1, 5)
    # By hand: 2 of 3, two-sided: everything is at least as likely.
    assert got.p_sign == pytest.approx(1.0)
    six = paired_difference([1.0] * 6, [0.0] * 5 + [-1.0])
    assert six.p_sign == pytest.approx(2 * 0.5**6)


def test_equal_methods_differ_by_nothing():
    got = paired_difference([0.3, 0.4, 0.9], [0.3, 0.4, 0.9])
    assert (got.mean, got.low, got.high, got.sd, got.p_value, got.p_sign) == (0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    assert (got.wins, got.ties, got.losses) == (0, 3, 0)


def test_a_constant_difference_is_the_limit_of_the_test():
    got = paired_difference([2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
    assert (got.mean, got.sd, got.p_value) == (1.0, 0.0, 0.0)
    assert got.p_sign == pytest.approx(0.25)


def test_nearly_constant_differences_do_not_warn():
    a = np.array([0.1, 0.2, 0.3, 0.7])
    assert paired_difference(a + 0.1, a).p_value < 1e-20


def test_one_pair_claims_nothing():
    got = paired_difference([2.0], [1.0])
    assert (got.mean, got.low, got.high, got.sd, got.p_value, got.p_sign) == (1.0, None, None, None, None, 1.0)
    assert paired_p_value([2.0], [1.0]) is None


@pytest.mark.parametrize(
    ("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([math.nan, 1.0], [1.0, 1.0]), ([1.0], [math.inf])]
)
def test_bad_pairs_are_refused(a, b):
    with pytest.raises(UserError):
        paired_difference(a, b)


def test_holm_by_hand():
    """0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1, then never falling: 0.04, 0.06, 0.06, 0.06."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    # Wright (1992): five p values.
    assert holm([0.005, 0.011, 0.02, 0.04, 0.13]) == pytest.approx([0.025, 0.044, 0.06, 0.08, 0.13])


def brute_force(p_values):
    """Closed testing: a hypothesis falls where Bonferroni rejects every intersection that contains it."""
    m = len(p_values)
    out = []
    for i in range(m):
        subsets = (s for r in range(1, m + 1) for s in itertools.combinations(range(m), r) if i in s)
        out.append(max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in subsets))
    return out


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_holm_is_closed_testing_with_bonferroni(p_values):
    assert holm(p_values) == pytest.approx(brute_force(p_values), abs=1e-15)


def test_holm_edges():
    assert holm([]) == []
    assert holm([0.7]) == [0.7]
    assert holm([0.5, 0.5, 0.5]) == [1.0, 1.0, 1.0]
    for bad in ([1.2], [-0.1], [math.nan]):
        with pytest.raises(UserError):
            holm(bad)


@pytest.mark.parametrize("n", [2, 5, 40])
def test_noninferiority_against_scipy(n):
    x = np.random.default_rng(n).normal(-0.004, 0.01, n)
    got = noninferior(x, 0.01)
    oracle = scipy.stats.ttest_1samp(x, -0.01, alternative="greater")
    assert got.p_value == pytest.approx(oracle.pvalue, rel=1e-10)
    assert got.low == pytest.approx(oracle.confidence_interval(0.95).low, rel=1e-10)
    assert got.shown == (oracle.pvalue < 0.05) == (got.low > -0.01)


def test_within_the_margin_by_its_mean_is_not_enough():
    x = [-0.005, 0.08, -0.09]
    got = noninferior(x, 0.01)
    assert got.mean > -0.01
    assert got.shown is False


def test_noninferiority_edges():
    one = noninferior([0.5], 0.01)
    assert (one.low, one.p_value, one.shown) == (None, None, None)
    same = noninferior([0.0, 0.0, 0.0], 0.01)
    assert (same.p_value, same.shown, same.low) == (0.0, True, 0.0)
    assert noninferior([-0.02, -0.02], 0.01).p_value == 1.0
    for margin in (0.0, -0.01, math.nan, math.inf):
        with pytest.raises(UserError, match="margin"):
            noninferior([0.1, 0.2], margin)
    with pytest.raises(UserError):
        noninferior([], 0.01)
    with pytest.raises(UserError):
        noninferior([math.nan, 1.0], 0.01)


def test_error_rate_of_the_noninferiority_test_at_the_margin():
    rng = np.random.default_rng(8)
    shown = [noninferior(x, 0.01).shown for x in rng.normal(-0.01, 0.02, size=(2_000, 8))]
    assert np.mean(shown) == pytest.approx(0.05, abs=0.015)
