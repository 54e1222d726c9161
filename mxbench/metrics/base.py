"""What a metric is, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mxbench.video import Clip

__all__ = ["Metric", "Score", "always", "unscored"]


@dataclass(frozen=True, slots=True)
class Score:
    """The result of one metric on one clip. Not being able to score is a result too.

    Attributes:
        value: the number for the table, finite; None where ``unscored`` says why there is none.
        per_frame: the values behind it, one a frame or one a pair of successive frames; may hold inf, never NaN.
        unscored: the reason, as one clause; None where there is a value.
        details: what a reader needs to reproduce or judge the value; JSON types only.
    """

    value: float | None
    per_frame: tuple[float, ...] = ()
    unscored: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.unscored):
            raise ValueError("a score has either a value or a reason for having none")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"the value of a score must be finite; got {self.value}")
        if any(math.isnan(x) for x in self.per_frame):
            raise ValueError("per_frame must not hold NaN")

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON types, which ``json.dumps(..., allow_nan=False)`` takes; inf becomes ``"inf"``."""
        return {
            "value": None if self.value is None else float(self.value),
            "per_frame": [float(x) if math.isfinite(x) else str(float(x)) for x in self.per_frame],
            "unscored": self.unscored,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Score:
        """The inverse of ``to_json``.

        Raises:
            KeyError, TypeError, ValueError: the data did not come from ``to_json``.
        """
        value = data["value"]
        return cls(
            value=None if value is None else float(value),
            per_frame=tuple(float(x) for x in data["per_frame"]),
            unscored=data["unscored"],
            details=dict(data["details"]),
        )


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of METRICS.

    Attributes:
        name: the key, as in recipes and on the command line.
        version: raised whenever the function's numbers change; stored scores are keyed by it.
        label: the column's header.
        digits: decimals shown in a table.
        higher_is_better: None where neither direction is better.
        needs_reference: whether it compares with another clip, by custom the FP16 render.
        source: the definition or citation, in one sentence.
        function: clip and reference (None where none is needed) to a score. The pair matches already.
        missing: why this machine cannot compute it, or None.
        worker: whether VBench's worker scores it, and not ``function``.
    """

    name: str
    version: int
    label: str
    digits: int
    higher_is_better: bool | None
    needs_reference: bool
    source: str
    function: Callable[[Clip, Clip | None], Score]
    missing: Callable[[], str | None]
    worker: bool = False


def always() -> None:
    """The ``missing`` of a metric that every installation can compute."""


def unscored(reason: str, **details: Any) -> Score:
    """A score without a value; ``reason`` is one clause."""
    return Score(None, unscored=reason, details=details)
