"""A table as tidy CSV: one line for each row and metric, made for ``pandas.read_csv``.

Long rather than wide, because a method and a metric select, group and plot without parsing column names; the paper's
shape is ``frame.pivot(index="label", columns="metric", values="mean")``. A line holds

- what it is about: model, reference, row, label, role, bits, unverified, ``flag_*`` and ``axis_*`` (one column for
  each check mark or swept field), metric, unit;
- the mean over prompts: mean, low, high (95% interval), n (prompts; 0 without a value), sd, best (bold in the table),
  identical_frames, reason (why videos are missing);
- the paired difference, row minus ``against`` (the baseline for similarity metrics, the reference for others):
  difference, difference_low, difference_high, difference_n, difference_sd, p_value, p_holm, p_sign, wins, ties,
  losses, detectable, margin, p_noninferior (Holm), recovery, recovery_low, recovery_high.

What does not exist is empty; numbers have 10 significant digits; NaN and infinity cannot occur. The reference has no
line for metrics that compare with it.
"""

from __future__ import annotations

import csv
import io
from typing import Any

from mxbench.report.comparisons import Comparison
from mxbench.report.tables import Score, ScoredRow, Table

__all__ = ["to_csv"]


def to_csv(table: Table) -> str:
    """The table as CSV text: a header line, then one line for each row and metric, ended by a newline alone."""
    pairs = {
        (item.row.key, item.column.name): (block.against.key, item)
        for block in table.comparisons
        for item in block.rows
    }
    lines = []
    for scored in table.rows:
        for column, score in zip(table.columns, scored.scores, strict=True):
            if score.applies:
                line = _about(table, scored) | {"metric": column.name, "unit": column.unit} | _mean(score)
                lines.append(line | _difference(*pairs.get((scored.row.key, column.name), ("", None))))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in line.items()} for line in lines)
    return buffer.getvalue()


def _about(table: Table, scored: ScoredRow) -> dict[str, Any]:
    row = scored.row
    flags = dict.fromkeys(name for other in table.rows for name in other.row.flags)
    axes = dict.fromkeys(name for other in table.rows for name in other.row.axis)
    return {
        "model": table.data.model,
        "reference": table.data.reference,
        "row": row.key,
        "label": row.label,
        "role": row.role,
        "bits": row.bits,
        "unverified": row.unverified,
        **{f"flag_{name}": row.flags.get(name) for name in flags},
        **{f"axis_{name}": row.axis.get(name) for name in axes},
    }


def _mean(score: Score) -> dict[str, Any]:
    interval = score.interval
    return {
        "mean": interval.mean if interval else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "n": interval.n if interval else 0,
        "sd": interval.sd if interval else None,
        "best": score.best,
        "identical_frames": score.identical_frames,
        "reason": score.reason,
    }


def _difference(against: str, item: Comparison | None) -> dict[str, Any]:
    pair = item.paired if item else None
    test = item.noninferior if item else None
    gap = item.recovery if item else None
    return {
        "against": against,
        "difference": pair.mean if pair else None,
        "difference_low": pair.low if pair else None,
        "difference_high": pair.high if pair else None,
        "difference_n": pair.n if pair else None,
        "difference_sd": pair.sd if pair else None,
        "p_value": pair.p_value if pair else None,
        "p_holm": item.p_holm if item else None,
        "p_sign": pair.p_sign if pair else None,
        "wins": pair.wins if pair else None,
        "ties": pair.ties if pair else None,
        "losses": pair.losses if pair else None,
        "detectable": item.detectable if item else None,
        "margin": test.margin if test else None,
        "p_noninferior": item.p_noninferior if item else None,
        "recovery": gap.value if gap else None,
        "recovery_low": gap.low if gap else None,
        "recovery_high": gap.high if gap else None,
    }


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)
