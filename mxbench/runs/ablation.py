"""Ablations as lists of recipe entries: a method taken apart step by step, and fields swept over values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from mxbench.attention.axes import AXES, apply
from mxbench.attention.methods import method
from mxbench.errors import UserError, unknown_name

__all__ = ["ABLATIONS", "parse_sweep", "sequential", "sweep"]

# Each step removes one thing more: (label, the axes that differ from the full method). MXAttention paper, Table 3, for
# mxattn; the others follow its pattern. The last step of mxattn is the OCP MXFP4 baseline itself.
ABLATIONS: dict[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "mxattn": (
        ("Full", {}),
        ("w/o UOS", {"scale_rule": "ocp"}),
        ("w/o PNQ and UOS", {"scale_rule": "ocp", "row_sum": "exact"}),
        ("OCP MXFP4", {"scale_rule": "ocp", "row_sum": "exact", "hadamard": False}),
    ),
    "vc8": (
        ("Full", {}),
        ("w/o ExpCast", {"exponential": "exp2"}),
        ("w/o V-Smooth and ExpCast", {"exponential": "exp2", "v_smooth": False}),
        ("w/o Hadamard, V-Smooth and ExpCast", {"exponential": "exp2", "v_smooth": False, "hadamard": False}),
    ),
    "vc4": (
        ("Full", {}),
        ("w/o V-Smooth", {"v_smooth": False}),
        ("w/o Hadamard and V-Smooth", {"v_smooth": False, "hadamard": False}),
    ),
    "nvfp4-sage": (
        ("Full", {}),
        ("w/o two-level P", {"p.prescale": 1, "p.divide_by": "stored"}),
        (
            "w/o smoothing and two-level P",
            {"p.prescale": 1, "p.divide_by": "stored", "q_block_mean": False, "k_mean": False},
        ),
    ),
}  # fmt: skip

# What a check mark of an ablation table stands for: the axis, and the values that count as having it.
_MARKS: dict[str, dict[str, tuple[str, tuple[Any, ...]]]] = {
    "mxattn": {
        "Hadamard": ("hadamard", (True,)),
        "PNQ": ("row_sum", ("quantised",)),
        "UOS": ("scale_rule", ("uos",)),
    },
    "vc8": {
        "Hadamard": ("hadamard", (True,)),
        "V-Smooth": ("v_smooth", (True,)),
        "ExpCast": ("exponential", ("expcast",)),
    },
    "vc4": {"Hadamard": ("hadamard", (True,)), "V-Smooth": ("v_smooth", (True,))},
    "nvfp4-sage": {"Q/K smoothing": ("q_block_mean", (True,)), "Two-level P": ("p.divide_by", ("exact",))},
}


def sequential(name: str) -> list[dict[str, Any]]:
    """The sequential ablation of a method, as entries of a recipe.

    Raises:
        UserError: no ablation is defined for it.
    """
    if name not in ABLATIONS:
        method(name)
        raise UserError(
            f"no sequential ablation is defined for {name}", f"use one of {', '.join(ABLATIONS)}, or --sweep FIELD=..."
        )
    entries = []
    for label, axes in ABLATIONS[name]:
        spec = method(name).spec
        for axis, value in axes.items():
            spec = apply(spec, axis, value)
        flags = {mark: AXES[axis].get(spec) in having for mark, (axis, having) in _MARKS[name].items()}
        key = (
            name
            if not axes
            else f"{name}-{label.replace('w/o ', 'without-').replace(' ', '-').replace(',', '').lower()}"
        )
        entries.append({"name": key, "label": label, "base": name, **axes, "flags": flags})
    return entries


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """``FIELD=A:B:STEP``, ``FIELD=x,y,z`` or ``FIELD`` alone (the values that the field walks through).

    Raises:
        UserError: an unknown field, or values that are none.
    """
    name, equals, values = text.partition("=")
    if name not in AXES:
        raise unknown_name("field", name, AXES, hint="mxbench list fields")
    if not equals:
        return name, list(AXES[name].values)
    parts = values.split(":")
    if len(parts) == 3:
        try:
            start, stop, step = (Decimal(part) for part in parts)
        except InvalidOperation:
            raise UserError(f"--sweep {text}: the range is not made of numbers", "write FIELD=A:B:STEP") from None
        if step <= 0 or stop < start or (stop - start) / step > 1000:
            raise UserError(
                f"--sweep {text}: the range is empty or endless", "write FIELD=A:B:STEP with A <= B, STEP > 0"
            )
        count = int((stop - start) / step) + 1
        return name, [_plain(start + i * step) for i in range(count)]
    found = [_value(part) for part in values.split(",") if part.strip()]
    if not found or len(parts) != 1:
        raise UserError(f"--sweep {text} names no values", "write FIELD=A:B:STEP or FIELD=x,y,z")
    return name, found


def _plain(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)


def _value(text: str) -> Any:
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() == "none":
        return None
    try:
        return _plain(Decimal(text))
    except InvalidOperation:
        return text


def sweep(name: str, axes: Sequence[tuple[str, list[Any]]]) -> list[dict[str, Any]]:
    """Every combination of the swept fields, as entries of a recipe.

    Raises:
        UserError: a value that the method cannot take.
    """
    entries = []
    for values in itertools.product(*(values for _, values in axes)):
        spec, chosen = method(name).spec, dict(zip((axis for axis, _ in axes), values, strict=True))
        for axis, value in chosen.items():
            spec = apply(spec, axis, value)
        shown = {axis: "none" if value is None else str(value) for axis, value in chosen.items()}
        key = f"{name}-" + "-".join(f"{axis}-{value}" for axis, value in shown.items())
        label = f"{method(name).label}, " + ", ".join(f"{axis} {value}" for axis, value in shown.items())
        entries.append({"name": key, "label": label, "base": name, **chosen, "axis": shown})
    return entries
