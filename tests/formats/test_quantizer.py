"""``Quantizer`` as data: what it refuses, its canonical form, its bits."""

from __future__ import annotations

from typing import Any

import pytest

from mxbench.errors import UserError
from mxbench.formats.quantizer import FORMATS, Quantizer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "mxfp5"}, "unknown format 'mxfp5'; did you mean mxfp4"),
        ({"format": "mxfp4", "granularity": "rows"}, "mxfp4 cannot have the granularity 'rows'; use 'block'"),
        ({"format": "int8"}, "int8 cannot have the granularity 'block'; use one of"),
        ({"format": "int8", "granularity": "row"}, "unknown granularity 'row'; did you mean rows"),
        ({"format": "mxfp4", "scale_rule": "usos"}, "unknown scale rule 'usos'"),
        ({"format": "mxfp4", "rounding": "half_away"}, "mxfp4 cannot round half away"),
        ({"format": "e4m3", "granularity": "tensor", "rounding": "half_away"}, "e4m3 cannot round half away"),
        ({"format": "int8", "granularity": "rows", "rounding": "up"}, "unknown rounding 'up'"),
        ({"format": "nvfp4", "divide_by": "rounded"}, "unknown divide_by 'rounded'"),
        ({"format": "nvfp4", "prescale": 0}, "prescale 0 is no positive number"),
        ({"format": "nvfp4", "prescale": float("inf")}, "prescale inf is no positive number"),
        ({"format": "nvfp4", "prescale": float("nan")}, "prescale nan is no positive number"),
        ({"format": "int8", "granularity": "rows", "eps": -1e-7}, "eps -1e-07 is not a scale"),
        ({"format": "int8", "granularity": "rows", "eps": float("nan")}, "eps nan is not a scale"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Quantizer(**fields)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Quantizer("mxfp4", scale_rule="7.25"), Quantizer("mxfp4", scale_rule="uos")),
        (Quantizer("mxfp4", scale_rule=6), Quantizer("mxfp4", scale_rule="tfs")),  # type: ignore[arg-type]
        (Quantizer("mxfp4", eps=1e-7), Quantizer("mxfp4")),
        (Quantizer("mxfp4", divide_by="exact"), Quantizer("mxfp4")),
        (Quantizer("mxfp4", tensor_scale=True), Quantizer("mxfp4")),
        (Quantizer("nvfp4", scale_rule="uos"), Quantizer("nvfp4")),
        (Quantizer("nvfp4", eps=1e-7), Quantizer("nvfp4")),
        (Quantizer("int8", "rows", tensor_scale=True), Quantizer("int8", "rows")),
        (Quantizer("e4m3", "tensor", divide_by="exact"), Quantizer("e4m3", "tensor")),
        (Quantizer("e4m3", "unit", prescale=256), Quantizer("e4m3", "unit", prescale=256.0, eps=1e-7)),
    ],
)
def test_fields_that_change_nothing_are_canonical(one: Quantizer, other: Quantizer) -> None:
    assert one.canonical() == other.canonical()
    assert repr(one.canonical()) == repr(other.canonical())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Quantizer("mxfp4", scale_rule="8"), Quantizer("mxfp4", scale_rule="ocp")),
        (Quantizer("mxfp4", scale_rule="7.25000001"), Quantizer("mxfp4", scale_rule="uos")),
        (Quantizer("nvfp4", tensor_scale=True), Quantizer("nvfp4")),
        (Quantizer("nvfp4", divide_by="exact"), Quantizer("nvfp4")),
        (Quantizer("int8", "rows", rounding="half_away"), Quantizer("int8", "rows")),
        (Quantizer("int8", "rows", eps=1e-7), Quantizer("int8", "rows")),
    ],
)
def test_fields_that_change_something_stay(one: Quantizer, other: Quantizer) -> None:
    assert one.canonical() != other.canonical()


def test_bits() -> None:
    assert Quantizer("mxfp4").bits == 4.25
    assert Quantizer("nvfp4").bits == 4.5
    assert Quantizer("e4m3", "tensor").bits == 8
    assert Quantizer("int8", "rows").bits == 8


def test_every_format_names_its_source() -> None:
    assert all(form.source for form in FORMATS.values())
