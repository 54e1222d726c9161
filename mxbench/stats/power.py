"""How small a difference N prompts can show, and how many prompts a difference needs."""

from __future__ import annotations

import math

import scipy.optimize
import scipy.stats

from mxbench.errors import UserError
from mxbench.stats.sample import checked_fraction

__all__ = ["detectable", "needed", "power_of"]


def power_of(effect: float, n: int, alpha: float = 0.05) -> float:
    """Power of the two-sided paired t test, exact, from the noncentral t distribution.

    Args:
        effect: true mean difference in units of the SD of the difference; positive.
        n: number of pairs, at least 2.
        alpha: two-sided level.
    """
    critical = float(scipy.stats.t.ppf(1.0 - alpha / 2.0, n - 1))
    shift = effect * math.sqrt(n)
    upper = float(scipy.stats.nct.sf(critical, n - 1, shift))
    if shift > 8.0:  # the other tail is below the normal's, 6e-16, and scipy's value of it may be NaN
        return upper
    # A significant result of the wrong sign counts as rejection too, as it does in the test.
    return upper + float(scipy.stats.nct.cdf(-critical, n - 1, shift))


def detectable(sd: float, n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """The smallest true difference that n pairs show with the given power.

    Two-sided paired t test. With SD 0.03, 787 prompts show 0.003 (785 in the normal approximation).

    Args:
        sd: standard deviation of the difference over prompts.
        n: number of pairs.
        power: chance to find a difference of this size.
        alpha: two-sided level.

    Returns:
        The difference, in the unit of ``sd``; 0 for an SD of 0.

    Raises:
        UserError: fewer than 2 pairs, a negative SD, power or alpha outside (0, 1), or power not above alpha.
    """
    _checked(sd, power, alpha)
    if n < 2:
        raise UserError(f"{n} pairs can show no difference", "render at least 2 prompts")
    # In units of SD / sqrt(n) the answer is t-quantiles apart, so this bracket holds for every n.
    upper = 2.0 * (scipy.stats.t.ppf(1.0 - alpha / 2.0, n - 1) + scipy.stats.t.ppf(max(power, 0.5), n - 1) + 1.0)
    root = math.sqrt(n)
    shift = scipy.optimize.brentq(lambda x: power_of(x / root, n, alpha) - power, 0.0, float(upper), xtol=1e-10)
    return sd * float(shift) / root


def needed(sd: float, difference: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """The smallest number of prompts that shows a difference with the given power.

    Args:
        sd: standard deviation of the difference over prompts.
        difference: the true difference to be shown; its sign does not matter.
        power: chance to find it.
        alpha: two-sided level of the paired t test.

    Returns:
        Number of prompts, at least 2.

    Raises:
        UserError: a difference of 0, a negative SD, power or alpha outside (0, 1), or power not above alpha.
    """
    _checked(sd, power, alpha)
    if not math.isfinite(difference) or difference == 0:
        raise UserError(f"no number of prompts shows a difference of {difference!r}", "ask for a difference above 0")
    if sd == 0:
        return 2
    effect = abs(difference) / sd
    high = 2
    while power_of(effect, high, alpha) < power:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(effect, middle, alpha) >= power else (middle, high)
    return max(high, 2)


def _checked(sd: float, power: float, alpha: float) -> None:
    if not (math.isfinite(sd) and sd >= 0):
        raise UserError(f"the SD is {sd!r}", "pass the standard deviation of the paired difference, 0 or more")
    if checked_fraction(power, "power") <= checked_fraction(alpha, "alpha"):
        raise UserError(f"a power of {power} is not above alpha, {alpha}", "ask for a power such as 0.8")
