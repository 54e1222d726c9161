import itertools
import math

import numpy as np
import pytest
import scipy.stats

from mxbench.errors import UserError
from mxbench.stats import detectable, needed


def test_the_known_numbers():
    """SD 0.03 and 0.003: 785 in the normal approximation, two more with t. 34 and 199: Cohen's d 0.5 and 0.2."""
    z = scipy.stats.norm.ppf
    normal = math.ceil(((z(0.975) + z(0.8)) * 0.03 / 0.003) ** 2)
    assert normal == 785
    assert needed(0.03, 0.003) == 787
    assert needed(1, 0.5) == 34
    assert needed(1, 0.2) == 199
    assert needed(1, 0.5, power=0.95) == 54
    assert detectable(0.03, 787) == pytest.approx(0.003, rel=1e-3)


@pytest.mark.parametrize(("n", "power"), [(2, 0.8), (3, 0.8), (5, 0.5), (10, 0.9), (33, 0.8)])
def test_against_simulation(n, power):
    difference = detectable(0.03, n, power)
    x = np.random.default_rng(n).normal(difference, 0.03, size=(60_000, n))
    t = x.mean(axis=1) / (x.std(axis=1, ddof=1) / np.sqrt(n))
    assert np.mean(np.abs(t) > scipy.stats.t.ppf(0.975, n - 1)) == pytest.approx(power, abs=0.008)


@pytest.mark.parametrize("n", [2, 3, 4, 17, 300, 20_000])
def test_each_is_the_inverse_of_the_other(n):
    difference = detectable(2.0, n)
    assert needed(2.0, difference * 1.000001) == n
    assert needed(2.0, difference * 0.999999) == n + 1
    assert needed(2.0, -difference * 1.000001) == n


def test_large_n_is_the_normal_approximation():
    assert detectable(1.0, 100_000) == pytest.approx(2.8015852 / math.sqrt(100_000), rel=1e-4)


def test_it_scales_with_the_sd_and_falls_with_n():
    values = [detectable(1.0, n) for n in range(2, 60)]
    assert all(a > b for a, b in itertools.pairwise(values))
    assert detectable(7.0, 9) == pytest.approx(7 * detectable(1.0, 9))


def test_edges():
    assert detectable(0.0, 5) == 0.0
    assert needed(0.0, 0.1) == 2
    assert needed(1.0, 1e6) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: detectable(1.0, 1),
        lambda: detectable(1.0, 0),
        lambda: detectable(-1.0, 5),
        lambda: detectable(math.nan, 5),
        lambda: detectable(1.0, 5, power=0.04),
        lambda: detectable(1.0, 5, power=1.0),
        lambda: detectable(1.0, 5, alpha=0.0),
        lambda: needed(1.0, 0.0),
        lambda: needed(1.0, math.nan),
        lambda: needed(math.inf, 1.0),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(UserError):
        call()
