"""Every neighbour of every method fails the method's own check, so that the check tells what the method is.

A method's own check: its reference agrees with the oracle's output for the *method* on every witness. A neighbour is
the method with one named axis at another value. Where no input can tell two specs apart, ``canonical()`` must say so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import witnesses
from attention_cases import SMOOTH, distance

from mxbench import METHODS
from mxbench.attention.axes import AXES, apply, with_axes
from mxbench.attention.spec import AttentionSpec
from mxbench.errors import UserError

# One P that rounds the other way on another machine moves an output by up to 1e-3; most agree to 1e-7.
TOLERANCE = 2e-3

MORE: dict[str, tuple[Any, ...]] = {
    "scale_rule": ("8", "4", "7.3", "5.5"),
    "q_max": (4, 5, 6.05, 7.1, 7.3, 7.9),
    "p.scale_rule": ("8", "6.5", "7.3"),
    "hadamard_sign_seed": (0, 7),
    "v_smooth.clusters": (1, 2, 63, 65, 300),
    "v_smooth.iterations": (0, 2, 3, 5),
    "v_smooth.window": (0.1, 0.3, 0.6),
    "v_smooth.refresh": (2, 3, 5),
    "kv_tile": (32, 96, 512),
    "eps": (1e-8, 1e-6, 1e-3),
    "p.prescale": (0.5, 2.0, 255.0, 512.0),
}


def neighbours(method: str) -> list[tuple[str, AttentionSpec]]:
    """The valid specs one axis away that compute something else, by name."""
    own = METHODS[method].spec
    found = []
    for name, axis in AXES.items():
        for value in (*axis.values, *MORE.get(name, ())):
            try:
                spec = apply(own, name, value)
            except UserError:
                continue
            if spec.canonical() != own.canonical():
                found.append((f"{name}={value}", spec))
    return found


def fails(method: str, spec: AttentionSpec, compute: witnesses.Compute = witnesses.reference) -> bool:
    """Whether the check of the method tells the spec from it."""
    for witness in witnesses.of(method):
        try:
            if not witnesses.off(witness, method, spec, compute) < TOLERANCE:
                return True
        except UserError:  # a layout that needs a latent grid
            continue
    return False


@pytest.mark.parametrize("method", METHODS)
def test_the_method_itself_passes(method: str) -> None:
    off = {w.name: witnesses.off(w, method, METHODS[method].spec) for w in witnesses.of(method)}
    assert max(off.values()) < TOLERANCE, off


@pytest.mark.parametrize("method", METHODS)
def test_no_neighbour_passes(method: str) -> None:
    all_of_them = neighbours(method)
    survivors = [name for name, spec in all_of_them if not fails(method, spec)]
    assert not survivors, f"{method} is not told from {', '.join(survivors)}"
    assert len(all_of_them) >= 16


def test_every_axis_has_a_neighbour_somewhere() -> None:
    names = {name.split("=")[0] for method in METHODS for name, _ in neighbours(method)}
    assert names == set(AXES)


def with_fields(method: str, **values: Any) -> AttentionSpec:
    return with_axes(METHODS[method].spec, {name.replace("__", "."): value for name, value in values.items()})


EQUATED = [
    with_fields("fp16", k_mean=True, hadamard=True, v_smooth=True, row_sum="quantised", kv_tile=32),
    with_fields("mxfp4", k__format="none", k_mean=True),
    with_fields("mxfp4", p__divide_by="exact"),
    with_fields("mxfp4", v__format="none", v_smooth=True, v_smooth__layout="sequence"),
    with_fields("sage2", p__format="none", row_sum="quantised", kv_tile=64),
    with_fields("mxattn", v__format="none", p__format="none", v_smooth=True),
    with_fields("vc8", v_smooth__clusters=1),
    with_fields("vc8", v_smooth__layout="sequence", v_smooth__refresh=1, v_smooth__iterations=7),
    with_fields("vc8", v_smooth__placement="every", v_smooth__refresh=2, v_smooth__window=0.5),
    with_fields("vc4", v_smooth__placement="uniform", v_smooth__window=1),
    with_fields("vc4", v_smooth__refresh=1, v_smooth__window=1.0),
    with_fields("vc4", v_smooth__layout="cube", v_smooth__window=1.0, v_smooth__refresh=3),
]


@pytest.mark.parametrize("spec", EQUATED, ids=range(len(EQUATED)))
def test_specs_that_are_canonically_equal_compute_the_same(spec: AttentionSpec) -> None:
    other = spec.canonical()
    assert other != spec
    assert other.canonical() == other
    assert other.id == spec.id
    assert replace(spec).id == spec.id
    for witness in (w for w in witnesses.WITNESSES if w.methods == tuple(METHODS) or w.methods == SMOOTH):
        try:
            got, want = witnesses.run(witness, spec), witnesses.run(witness, other)
        except UserError:  # a layout that needs a latent grid
            continue
        assert distance(got, want) < TOLERANCE


DISTINCT = [
    (with_fields("mxfp4", scale_rule="ocp"), with_fields("mxfp4", q_max=8)),
    (with_fields("mxfp4", k__format="none", q_block_mean=True), with_fields("mxfp4", k__format="none")),
    (with_fields("mxfp4", q__format="none", hadamard=True), with_fields("mxfp4", q__format="none")),
    (with_fields("mxfp4", v__format="none", v_smooth=True), with_fields("mxfp4", v__format="none")),
    (
        with_fields("vc8", exponential="exp2", v__format="none", p__format="none"),
        with_fields("vc8", exponential="exp2", v__format="none", p__format="none", v_smooth=False),
    ),
]


@pytest.mark.parametrize(("one", "other"), DISTINCT, ids=range(len(DISTINCT)))
def test_specs_that_differ_are_not_equated(one: AttentionSpec, other: AttentionSpec) -> None:
    assert one.canonical() != other.canonical()
    assert one.id != other.id
    everywhere = [w for w in witnesses.WITNESSES if w.methods == tuple(METHODS)]
    assert max(distance(witnesses.run(w, one), witnesses.run(w, other)) for w in everywhere) > TOLERANCE
