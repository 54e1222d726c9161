"""Recovery: which part of the gap between a plain baseline and the reference a method closes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mxbench.errors import UserError
from mxbench.stats.intervals import mean_interval
from mxbench.stats.sample import RESAMPLES, SEED, Floats, Values, checked_fraction, checked_sample

__all__ = ["Recovery", "recovery"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """``(x - ocp) / (fp16 - ocp)`` over prompts.

    Attributes:
        value: ratio of the two mean differences, 1 where the gap is closed; None where the gap is exactly 0.
        low: lower end of the interval; None where ``reason`` says why.
        high: upper end, likewise.
        n: number of prompts.
        reason: why there is no interval (or no value); None where there is one.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    reason: str | None


def recovery(x: Values, ocp: Values, fp16: Values, confidence: float = 0.95) -> Recovery:
    """The recovered part of the gap, numerator and denominator resampled together.

    Percentile bootstrap over prompts (9,999 resamples, fixed seed). A gap whose own interval contains 0 has no sign,
    so a ratio to it has no interval: the value is given with the reason. Source of the ratio: MXAttention paper,
    section 5.3 (95.4% of the Imaging Quality gap).

    Args:
        x: values of the method, shape ``[n]``.
        ocp: values of the plain baseline for the same prompts, shape ``[n]``.
        fp16: values of the reference for the same prompts, shape ``[n]``.
        confidence: coverage of the interval.

    Raises:
        UserError: different lengths, no values, NaN or infinity.
    """
    values, base, top = checked_sample(x), checked_sample(ocp), checked_sample(fp16)
    confidence = checked_fraction(confidence, "confidence")
    if not values.size == base.size == top.size:
        raise UserError(
            f"recovery needs three values a prompt, and there are {values.size}, {base.size} and {top.size}",
            "pass only the prompts that all three have",
        )
    gained, gap = values - base, top - base
    n = values.size
    whole = mean_interval(gap, confidence)
    if whole.mean == 0.0:
        return Recovery(None, None, None, n, "the gap is 0")
    value = float(gained.mean()) / whole.mean
    if whole.low is None or whole.high is None:
        return Recovery(value, None, None, n, "one prompt has no interval")
    if whole.low <= 0.0 <= whole.high:
        return Recovery(value, None, None, n, "the interval of the gap contains 0")
    low, high = _resampled(gained, gap, confidence)
    if not (np.isfinite(low) and np.isfinite(high)):
        return Recovery(value, None, None, n, "the gap is 0 in too many resamples")
    return Recovery(value, low, high, n, None)


def _resampled(gained: Floats, gap: Floats, confidence: float) -> tuple[float, float]:
    rng = np.random.default_rng(SEED)
    n = gained.size
    ratios = np.empty(RESAMPLES)
    batch = max(1, 2_000_000 // n)
    for start in range(0, RESAMPLES, batch):
        rows = min(batch, RESAMPLES - start)
        drawn = rng.integers(0, n, size=(rows, n))
        above, below = gained[drawn].mean(axis=1), gap[drawn].mean(axis=1)
        # A resample without a gap stands at the far end of its sign; 0/0 at the middle of nothing, so at the upper end.
        ratios[start : start + rows] = np.where(
            below != 0.0, above / np.where(below != 0.0, below, 1.0), np.where(above < 0.0, -np.inf, np.inf)
        )
    tail = (1.0 - confidence) / 2.0
    # inverted_cdf never interpolates, so that an infinite resample in the tail cannot become NaN.
    low, high = np.quantile(ratios, [tail, 1.0 - tail], method="inverted_cdf")
    return float(low), float(high)
