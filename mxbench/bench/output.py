"""A run as JSON and as CSV, for programs."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from mxbench.bench.rows import Result, Row, ShapeResult
from mxbench.bench.timing import Spread

__all__ = ["SCHEMA", "as_dict", "to_csv", "to_json"]

SCHEMA = "mxbench.bench/1"

_SPREADS = {
    "prepass": "prepass_ms",
    "kernel": "kernel_ms",
    "call": "call_ms",
    "grouping": "grouping_ms",
    "ratio_kernel": "ratio_kernel",
    "ratio_call": "ratio_call",
    "ratio_cudnn": "ratio_cudnn",
}


def as_dict(result: Result) -> dict[str, Any]:
    """The run as dictionaries and lists of plain values; floats to 10 significant digits.

    ``shapes[i]["rows"][j]`` has the fields of ``mxbench.bench.rows.Row``; milliseconds and ratios are
    ``{median, low, high, n}`` with the 5% and 95% quantiles, or null.
    """
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "provenance": dict(result.provenance),
        "settings": dict(result.settings),
        "shapes": [shape.to_dict() for shape in result.shapes],
    }
    rounded: dict[str, Any] = _rounded(data)
    return rounded


def to_json(result: Result) -> str:
    """The run as indented JSON; ends with a newline. NaN and infinity cannot occur."""
    return json.dumps(as_dict(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(result: Result) -> str:
    """The run as CSV: one line a shape and candidate; what does not exist is empty.

    A spread has three columns: ``call_ms`` (the median), ``call_ms_low`` (5%) and ``call_ms_high`` (95%).
    """
    lines = [_line(result, shape, row) for shape in result.shapes for row in shape.rows]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _line(result: Result, shape: ShapeResult, row: Row) -> dict[str, str]:
    line: dict[str, Any] = {
        "device": result.provenance["device"],
        "dtype": result.settings["dtype"],
        "shape": str(shape.shape),
        "title": shape.title,
        "base": shape.base[0] if shape.base else None,
    }
    for name in Row.__slots__:
        value = getattr(row, name)
        if name in _SPREADS:
            line |= _columns(_SPREADS[name], value)
        else:
            line[name] = value
    return {name: _plain(value) for name, value in line.items()}


def _columns(name: str, spread: Spread | None) -> dict[str, float | None]:
    if spread is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: spread.median, f"{name}_low": spread.low, f"{name}_high": spread.high}


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
