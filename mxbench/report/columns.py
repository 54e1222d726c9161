"""COLUMNS: every metric that a table can print, in the order of the papers' Table 2.

What a metric is stands in METRICS; here stand its place, its group and the margin that is tested. A metric without a
line here is printed too, last and without a group.
"""

from __future__ import annotations

from collections.abc import Iterable

from mxbench.errors import unknown_name
from mxbench.metrics import METRICS
from mxbench.report.data import Column

__all__ = ["COLUMNS", "columns_for"]

_VBENCH = "VBench Metrics (↑)"
_SIMILARITY = "Similarity to FP16 (↑)"
# "within 0.01 of FP16 on every reported VBench metric": MXAttention paper, abstract.
_MARGIN = 0.01

# Name: group, unit, margin. Dynamic degree has no better end: it does not stand under the arrow.
_PLACES: dict[str, tuple[str, str, float | None]] = {
    "subject_consistency": (_VBENCH, "", _MARGIN),
    "background_consistency": (_VBENCH, "", _MARGIN),
    "motion_smoothness": (_VBENCH, "", _MARGIN),
    "imaging_quality": (_VBENCH, "", _MARGIN),
    "aesthetic_quality": (_VBENCH, "", _MARGIN),
    "cosine": (_SIMILARITY, "", None),
    "ssim": (_SIMILARITY, "", None),
    "ssim_gaussian": (_SIMILARITY, "", None),
    "psnr": (_SIMILARITY, "dB", None),
    "psnr_clip": (_SIMILARITY, "dB", None),
    "vmaf": ("", "", None),
    "temporal_flickering": ("", "", None),
    "dynamic_degree": ("", "", None),
}


def _column(name: str) -> Column:
    metric, (group, unit, margin) = METRICS[name], _PLACES.get(name, ("", "", None))
    return Column(
        name=name,
        label=metric.label,
        digits=metric.digits,
        higher_is_better=metric.higher_is_better,
        needs_reference=metric.needs_reference,
        group=group,
        unit=unit,
        margin=margin,
    )


COLUMNS: dict[str, Column] = {
    name: _column(name) for name in (*_PLACES, *(name for name in METRICS if name not in _PLACES))
}


def columns_for(metrics: Iterable[str]) -> tuple[Column, ...]:
    """The columns of some metrics, in the order of the papers, not in the order given.

    Raises:
        UserError: a metric that no column prints; the nearest names are offered.
    """
    asked = set(metrics)
    for name in sorted(asked):
        if name not in COLUMNS:
            raise unknown_name("metric", name, COLUMNS, hint="mxbench list metrics")
    return tuple(column for name, column in COLUMNS.items() if name in asked)
