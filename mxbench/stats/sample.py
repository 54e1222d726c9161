"""What every function of this package asks of its input: numbers, at least one, all finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mxbench.errors import UserError

__all__ = ["BOOTSTRAP_FROM", "RESAMPLES", "SEED", "Floats", "Values", "checked_fraction", "checked_sample"]

Floats = NDArray[np.float64]
Values = Sequence[float] | NDArray[np.floating] | NDArray[np.integer]

# Below 30 prompts the percentile bootstrap under-covers; from there on it follows skewed scores better than t.
BOOTSTRAP_FROM = 30
RESAMPLES = 9_999
SEED = 20_260


def checked_sample(values: Values, what: str = "values") -> Floats:
    """The values as a float64 vector.

    Args:
        values: one number a prompt.
        what: how the error calls them.

    Returns:
        float64 array of shape ``[n]``, n >= 1, all finite.

    Raises:
        UserError: nothing to count, more than one dimension, NaN or infinity.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1:
        raise UserError(f"{what} have shape {sample.shape}", "pass one number a prompt, as a flat sequence")
    if sample.size == 0:
        raise UserError(f"there are no {what}", "pass at least one prompt")
    bad = int(np.count_nonzero(~np.isfinite(sample)))
    if bad:
        raise UserError(
            f"{bad} of {sample.size} {what} are NaN or infinite",
            "leave those prompts out by name, or cap them, before taking a mean",
        )
    return sample


def checked_fraction(value: float, what: str) -> float:
    """A probability strictly between 0 and 1.

    Raises:
        UserError: it is not.
    """
    if not 0.0 < value < 1.0:
        raise UserError(f"{what} is {value!r}", f"pass a {what} between 0 and 1, such as 0.95")
    return float(value)
