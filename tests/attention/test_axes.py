"""The named axes as YAML and the command line speak of them: strings, numbers, truth values, or one line of error."""

from __future__ import annotations

from typing import Any

import pytest

from mxbench import METHODS
from mxbench.attention.axes import AXES, apply, with_axes
from mxbench.attention.spec import AttentionSpec, Hadamard
from mxbench.errors import UserError

BASES = [entry.spec for entry in METHODS.values()]


def spec(name: str) -> AttentionSpec:
    return METHODS[name].spec


@pytest.mark.parametrize("name", AXES)
def test_what_is_set_is_what_one_gets(name: str) -> None:
    assert AXES[name].help
    set_somewhere = set()
    for base in BASES:
        for value in AXES[name].values:
            try:
                changed = apply(base, name, value)
            except UserError:
                continue
            assert AXES[name].get(changed) == value
            assert apply(changed, name, value) == changed
            set_somewhere.add(value)
    assert set_somewhere == set(AXES[name].values)


@pytest.mark.parametrize("name", AXES)
def test_setting_the_present_value_changes_nothing(name: str) -> None:
    for base in BASES:
        value = AXES[name].get(base)
        if value is not None:
            assert apply(base, name, value) == base


@pytest.mark.parametrize(
    ("base", "axis", "value", "got"),
    [
        ("mxfp4", "scale_rule", 7.25, "uos"),
        ("mxfp4", "scale_rule", "7.50", "7.5"),
        ("mxfp4", "q_max", "6.5", 6.5),
        ("mxfp4", "q_max", 7, 7.0),
        ("mxfp4", "kv_tile", "64", 64),
        ("mxfp4", "kv_tile", 64.0, 64),
        ("mxfp4", "hadamard", "on", True),
        ("mxattn", "hadamard", "No", False),
        ("mxattn", "hadamard_sign_seed", "1234", 1234),
        ("mxattn", "hadamard_sign_seed", "none", None),
        ("mxattn", "row_sum", "exact", "exact"),
        ("nvfp4", "tensor_scale", "false", False),
        ("vc8", "v_smooth.window", "0.5", 0.5),
        ("vc8", "v_smooth.clusters", "32", 32),
        ("vc8", "v_smooth", "off", False),
        ("sage2", "eps", "1e-6", 1e-6),
        ("sage2", "p.prescale", "256", 256.0),
        ("fp8", "q.format", None, "none"),
    ],
)
def test_spellings_of_yaml_and_of_the_command_line(base: str, axis: str, value: Any, got: Any) -> None:
    assert AXES[axis].get(apply(spec(base), axis, value)) == got


@pytest.mark.parametrize(
    ("base", "axis", "value", "message"),
    [
        ("mxfp4", "scale_rul", "uos", "unknown field 'scale_rul'; did you mean scale_rule"),
        ("mxfp4", "scale_rule", "best", "scale_rule: unknown scale rule 'best'"),
        ("mxfp4", "scale_rule", [7.25], "scale_rule: unknown scale rule"),
        ("mxfp4", "q_max", "uos", "q_max: 'uos' is no number"),
        ("mxfp4", "q_max", 9, "q_max: scale rule q = 9.0 is out of range"),
        ("mxfp4", "q_max", "nan", "q_max: unknown scale rule 'nan'"),
        ("mxfp4", "q_max", True, "q_max: True is no number"),
        ("nvfp4", "scale_rule", "uos", "scale_rule: the method has no operand with a scale_rule"),
        ("mxfp4", "kv_tile", 64.5, "kv_tile: 64.5 is no whole number"),
        ("mxfp4", "kv_tile", "inf", "kv_tile: 'inf' is no whole number"),
        ("mxfp4", "kv_tile", "nan", "kv_tile: 'nan' is no whole number"),
        ("mxfp4", "kv_tile", None, "kv_tile: None is no number"),
        ("mxfp4", "kv_tile", [64], r"kv_tile: \[64\] is no number"),
        ("mxfp4", "kv_tile", 40, "kv_tile: kv_tile 40 is no multiple of 32"),
        ("mxfp4", "hadamard", 1, "hadamard: 1 is no truth value"),
        ("mxfp4", "hadamard", "maybe", "hadamard: 'maybe' is no truth value"),
        ("mxfp4", "hadamard_sign_seed", 3, "hadamard_sign_seed: the method has no Hadamard rotation"),
        ("mxattn", "hadamard_sign_seed", -3, "hadamard_sign_seed: hadamard_sign_seed -3 is no seed"),
        ("mxfp4", "v_smooth.window", 0.5, "v_smooth.window: the method has no V-Smooth; set v_smooth: true first"),
        ("vc8", "v_smooth.window", "inf", "v_smooth.window: v_smooth.window inf is no fraction"),
        ("vc8", "v_smooth.layout", {"cube": 1}, "v_smooth.layout: unknown"),
        ("vc8", "kv_tile", 256, "kv_tile: kv_tile 256 does not divide"),
        ("mxfp4", "qk_format", "int8", "qk_format: qk_format belongs to methods with 8-bit Q and K"),
        ("vc8", "qk_format", "mxfp4", "qk_format: unknown 8-bit format"),
        ("sage2", "p.prescale", "inf", "p.prescale: prescale inf is no positive number"),
        ("fp16", "p.prescale", 2, "p.prescale: the method has no operand with a prescale"),
        ("mxfp4", "q.format", "fp4", "q.format: unknown format 'fp4'"),
        ("mxfp4", "q.format", ["mxfp4"], "q.format: unknown format"),
        ("vc8", "p.format", "mxfp4", "p.format: expcast writes E4M3 codes"),
    ],
)
def test_what_is_refused_is_refused_in_one_line(base: str, axis: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        apply(spec(base), axis, value)
    assert "\n" not in str(caught.value)


def test_a_shared_axis_sets_all_its_operands() -> None:
    changed = apply(spec("mxfp4"), "scale_rule", "uos")
    assert {z.scale_rule for z in (changed.q, changed.k, changed.v, changed.p) if z} == {"uos"}
    one = apply(changed, "p.scale_rule", "ocp")
    assert one.p is not None
    assert one.p.scale_rule == "ocp"
    assert AXES["scale_rule"].get(one) is None  # not one value
    assert AXES["q_max"].get(one) is None
    assert AXES["q_max"].get(changed) == 7.25
    assert AXES["q_max"].get(spec("mxfp4")) is None  # the floor rule has no boundary


def test_several_axes_in_their_order() -> None:
    changed = with_axes(spec("mxfp4"), {"hadamard": True, "hadamard_sign_seed": 1234, "row_sum": "quantised"})
    assert changed.stage(Hadamard) == Hadamard(1234)
    uos = with_axes(spec("mxfp4"), {"scale_rule": "uos", "hadamard": True, "row_sum": "quantised"})
    assert uos == spec("mxattn")
    assert apply(apply(spec("mxattn"), "hadamard", False), "scale_rule", "ocp").row_sum == "quantised"


def test_an_operand_takes_the_plain_form_of_a_new_format() -> None:
    mixed = with_axes(spec("mxattn"), {"v.format": "e4m3", "q.format": "none"})
    assert mixed.q is None
    assert mixed.v is not None
    assert mixed.v.granularity == "channel"
    back = apply(mixed, "v.format", "mxfp4")
    assert back.v is not None
    assert back.v.scale_rule == "uos"  # the rule of the other operands
