"""A mean and its interval, and the step before it: from seeds to prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.stats

from mxbench.errors import UserError
from mxbench.stats.sample import (
    BOOTSTRAP_FROM,
    RESAMPLES,
    SEED,
    Floats,
    Values,
    checked_fraction,
    checked_sample,
)

__all__ = ["Interval", "Method", "by_prompt", "mean_interval"]

Method = Literal["t", "bootstrap", "constant", "none"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over prompts and what is known about it.

    Attributes:
        mean: the mean.
        low: lower end of the two-sided interval; None where there is none (one prompt).
        high: upper end, likewise.
        n: number of prompts.
        sd: sample standard deviation over prompts (n - 1); None for one prompt.
        method: ``t`` (Student), ``bootstrap`` (percentile), ``constant`` (all values equal: the interval is the
            point) or ``none``.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    sd: float | None
    method: Method


def mean_interval(values: Values, confidence: float = 0.95) -> Interval:
    """The mean with its two-sided interval.

    Student's t below 30 values, from there on the percentile bootstrap (9,999 resamples, fixed seed: the same values
    give the same interval). One value has no interval, and none is invented.

    Args:
        values: one number a prompt, shape ``[n]``.
        confidence: coverage of the interval.

    Raises:
        UserError: no values, NaN or infinity among them, or a confidence outside (0, 1).
    """
    sample = checked_sample(values)
    confidence = checked_fraction(confidence, "confidence")
    n = sample.size
    if n == 1:
        return Interval(float(sample[0]), None, None, 1, None, "none")
    if np.all(sample == sample[0]):
        constant = float(sample[0])
        return Interval(constant, constant, constant, n, 0.0, "constant")
    mean = float(sample.mean())
    sd = float(sample.std(ddof=1))
    if n < BOOTSTRAP_FROM:
        half = float(scipy.stats.t.ppf((1.0 + confidence) / 2.0, n - 1)) * sd / float(np.sqrt(n))
        return Interval(mean, mean - half, mean + half, n, sd, "t")
    low, high = _bootstrap(sample, confidence)
    return Interval(mean, low, high, n, sd, "bootstrap")


def by_prompt(observations: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Averages the seeds inside each prompt, because the prompt is the unit.

    Args:
        observations: (prompt, value) pairs, one for each seed.

    Returns:
        One mean for each prompt, prompts in the order of their first appearance.

    Raises:
        UserError: a value is NaN or infinite.
    """
    seeds: dict[str, list[float]] = {}
    for prompt, value in observations:
        if not np.isfinite(value):
            raise UserError(f"prompt {prompt!r} has the value {value!r}", "cap it or mark the video as failed")
        seeds.setdefault(prompt, []).append(float(value))
    return {prompt: float(np.mean(values)) for prompt, values in seeds.items()}


def _bootstrap(sample: Floats, confidence: float) -> tuple[float, float]:
    result = scipy.stats.bootstrap(
        (sample,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(SEED),
        batch=max(1, 2_000_000 // sample.size),  # keeps the memory of a large table flat
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
