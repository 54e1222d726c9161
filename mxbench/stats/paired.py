"""Paired comparisons over prompts: difference, tests, Holm's correction, non-inferiority."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats

from mxbench.errors import UserError
from mxbench.stats.intervals import mean_interval
from mxbench.stats.sample import Floats, Values, checked_fraction, checked_sample

__all__ = ["NonInferiority", "Paired", "holm", "noninferior", "paired_difference", "paired_p_value"]


@dataclass(frozen=True, slots=True)
class Paired:
    """The difference ``a - b`` over prompts that both have.

    Attributes:
        mean: mean difference.
        low: lower end of its 95% interval (see `mean_interval`); None for one prompt.
        high: upper end, likewise.
        n: number of pairs.
        sd: standard deviation of the difference; None for one prompt.
        p_value: two-sided paired t test; None for one prompt. Where every difference is the same number, the limit
            of the test: 1 at zero, else 0.
        p_sign: two-sided sign test (binomial, ties dropped); 1 where everything ties.
        wins: pairs with ``a > b``.
        ties: pairs with ``a == b``.
        losses: pairs with ``a < b``.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    sd: float | None
    p_value: float | None
    p_sign: float
    wins: int
    ties: int
    losses: int


@dataclass(frozen=True, slots=True)
class NonInferiority:
    """A one-sided test of "not worse than the reference by the margin or more".

    Attributes:
        mean: mean difference, method minus reference, higher is better.
        low: lower end of the one-sided interval; None for one prompt.
        n: number of pairs.
        margin: what may be lost, positive.
        p_value: of the hypothesis "worse by the margin or more"; None for one prompt.
        shown: whether ``p_value < alpha``; None for one prompt.
    """

    mean: float
    low: float | None
    n: int
    margin: float
    p_value: float | None
    shown: bool | None


def paired_difference(a: Values, b: Values, confidence: float = 0.95) -> Paired:
    """Compares two methods prompt by prompt.

    Args:
        a: values of one method, shape ``[n]``.
        b: values of the other for the same prompts in the same order, shape ``[n]``.
        confidence: coverage of the interval.

    Raises:
        UserError: different lengths, no values, NaN or infinity.
    """
    difference = _difference(a, b)
    interval = mean_interval(difference, confidence)
    wins, losses = int(np.count_nonzero(difference > 0)), int(np.count_nonzero(difference < 0))
    decided = wins + losses
    return Paired(
        mean=interval.mean,
        low=interval.low,
        high=interval.high,
        n=interval.n,
        sd=interval.sd,
        p_value=_t_test(difference, 0.0, two_sided=True),
        p_sign=float(scipy.stats.binomtest(wins, decided, 0.5).pvalue) if decided else 1.0,
        wins=wins,
        ties=interval.n - decided,
        losses=losses,
    )


def paired_p_value(a: Values, b: Values) -> float | None:
    """The two-sided paired t test alone, as in `paired_difference`; None for one prompt.

    Raises:
        UserError: different lengths, no values, NaN or infinity.
    """
    return _t_test(_difference(a, b), 0.0, two_sided=True)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (Holm 1979): controls the chance of any false finding in the family.

    Args:
        p_values: one p value for each comparison of the family.

    Returns:
        Adjusted p values in the order given: ``max over j <= i of min(1, (m - j) * p_(j))``, j from 0.

    Raises:
        UserError: a p value outside [0, 1].
    """
    for p in p_values:
        if not 0.0 <= p <= 1.0:
            raise UserError(f"{p!r} is no p value", "pass numbers between 0 and 1")
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for position, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = worst
    return adjusted


def noninferior(differences: Values, margin: float, alpha: float = 0.05) -> NonInferiority:
    """Tests "within the margin of the reference" instead of reading it off two means.

    One-sided t test of the hypothesis that the mean difference is ``-margin`` or less.

    Args:
        differences: method minus reference for each prompt, oriented so that higher is better, shape ``[n]``.
        margin: what may be lost, in the unit of the metric; positive.
        alpha: one-sided level.

    Raises:
        UserError: no values, NaN or infinity, a margin that is not positive.
    """
    sample = checked_sample(differences, "differences")
    alpha = checked_fraction(alpha, "alpha")
    if not (np.isfinite(margin) and margin > 0):
        raise UserError(f"the margin is {margin!r}", "pass a positive number in the unit of the metric, such as 0.01")
    p_value = _t_test(sample, -margin, two_sided=False)
    mean, n = float(sample.mean()), sample.size
    if p_value is None:
        return NonInferiority(mean, None, n, margin, None, None)
    half = float(scipy.stats.t.ppf(1.0 - alpha, n - 1)) * float(sample.std(ddof=1)) / float(np.sqrt(n))
    return NonInferiority(mean, mean - half, n, margin, p_value, p_value < alpha)


def _difference(a: Values, b: Values) -> Floats:
    first, second = checked_sample(a), checked_sample(b)
    if first.size != second.size:
        raise UserError(
            f"a pair needs two values, and there are {first.size} on one side and {second.size} on the other",
            "pass only the prompts that both methods have",
        )
    return first - second


def _t_test(sample: Floats, null: float, *, two_sided: bool) -> float | None:
    """P value of ``mean == null``, or of ``mean <= null``; None for one value.

    Written out because scipy warns of lost precision where differences are nearly constant.
    """
    n = sample.size
    if n < 2:
        return None
    shift = float(sample.mean()) - null
    sd = 0.0 if np.all(sample == sample[0]) else float(sample.std(ddof=1))
    if sd == 0.0:
        if two_sided:
            return 1.0 if shift == 0.0 else 0.0
        return 0.0 if shift > 0.0 else 1.0
    t = shift / (sd / float(np.sqrt(n)))
    return float(2.0 * scipy.stats.t.sf(abs(t), n - 1)) if two_sided else float(scipy.stats.t.sf(t, n - 1))
