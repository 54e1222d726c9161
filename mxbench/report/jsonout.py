"""A table as JSON: every number, nested as the table is, and the sentences beneath it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from mxbench.report.comparisons import Comparison
from mxbench.report.data import MethodRow
from mxbench.report.notes import notes_of
from mxbench.report.tables import Score, Table

__all__ = ["SCHEMA", "as_dict", "rounded", "to_json"]

SCHEMA = "mxbench.table/1"


def to_json(table: Table) -> str:
    """The table as indented JSON; ends with a newline. NaN and infinity cannot occur."""
    return json.dumps(as_dict(table), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def rounded(value: float | None) -> float | None:
    """A number to 10 significant digits: the last digits of a float64 differ between machines and mean nothing."""
    return None if value is None else float(f"{value:.10g}")


def as_dict(table: Table) -> dict[str, Any]:
    """The table as dictionaries and lists of plain values.

    ``rows[i]["scores"][metric]`` is null where the metric does not apply (the reference against itself);
    ``comparisons[i]["rows"]`` holds one entry for each metric and method.
    """
    data = table.data
    return {
        "schema": SCHEMA,
        "title": data.title,
        "kind": data.kind,
        "model": data.model,
        "weights": data.weights,
        "reference": data.reference,
        "environment": dict(data.environment),
        "n_prompts": data.n_prompts,
        "n_seeds": table.n_seeds,
        "missing_baseline": table.missing_baseline,
        "columns": [_flat(column) for column in table.columns],
        "rows": [
            {
                **_row(scored.row),
                "scores": {
                    column.name: _score(score) for column, score in zip(table.columns, scored.scores, strict=True)
                },
            }
            for scored in table.rows
        ],
        "comparisons": [
            {
                "kind": block.kind,
                "against": block.against.key,
                "gap_from": block.baseline.key if block.baseline else None,
                "rows": [_comparison(item) for item in block.rows],
                "notes": list(notes_of(table, block)),
            }
            for block in table.comparisons
        ],
        "notes": list(notes_of(table)),
    }


def _flat(item: Any) -> dict[str, Any]:
    """The fields of a flat dataclass, floats rounded."""
    found = {field.name: getattr(item, field.name) for field in fields(item)}
    return {name: rounded(value) if isinstance(value, float) else value for name, value in found.items()}


def _row(row: MethodRow) -> dict[str, Any]:
    return _flat(row) | {"flags": dict(row.flags), "axis": dict(row.axis)}


def _score(score: Score) -> dict[str, Any] | None:
    if not score.applies:
        return None
    interval = _flat(score.interval) if score.interval else {"mean": None, "low": None, "high": None, "n": 0}
    return {**interval, "best": score.best, "reason": score.reason, "identical_frames": score.identical_frames}


def _comparison(item: Comparison) -> dict[str, Any]:
    return {
        "metric": item.column.name,
        "row": item.row.key,
        "paired": _flat(item.paired) if item.paired else None,
        "p_holm": rounded(item.p_holm),
        "detectable": rounded(item.detectable),
        "noninferior": {**_flat(item.noninferior), "p_holm": rounded(item.p_noninferior)} if item.noninferior else None,
        "recovery": _flat(item.recovery) if item.recovery else None,
    }
