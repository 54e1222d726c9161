"""Schedules: which method where."""

import pytest

from mxbench.attention.methods import METHODS
from mxbench.errors import UserError
from mxbench.policy import Rule, Schedule, Selector, Site, Use, as_schedule

FP16, MX = Use("fp16", METHODS["fp16"].spec), Use("mxattn", METHODS["mxattn"].spec)


def site(layer=3, step=5, expert=0, kind="self"):
    return Site(expert=expert, layer=layer, n_layers=40, kind=kind, step=step, n_steps=40)


@pytest.mark.parametrize(
    ("given", "count", "wanted"),
    [
        (None, 4, {0, 1, 2, 3}),
        ("all", 3, {0, 1, 2}),
        (0, 4, {0}),
        (-1, 4, {3}),
        ("-2", 4, {2}),
        ([0, -1], 5, {0, 4}),
        ("1:3", 5, {1, 2}),
        ("-2:", 5, {3, 4}),
        ([":2", 4], 5, {0, 1, 4}),
    ],
)
def test_selectors_select_what_python_slices_select(given, count, wanted):
    assert Selector.parse(given, "layers").indices(count) == wanted


@pytest.mark.parametrize("given", ["x", "1-3", [], [[1]], 1.5, True, {"a": 1}])
def test_what_selects_nothing_is_refused(given):
    with pytest.raises(UserError, match="select"):
        Selector.parse(given, "layers")


@pytest.mark.parametrize(("given", "count"), [(4, 4), (-5, 4), ("4:", 4), ("2:1", 4)])
def test_an_index_that_does_not_exist_is_refused(given, count):
    with pytest.raises(UserError):
        Selector.parse(given, "layers").indices(count, "layer")


def test_the_papers_hybrid_policy_keeps_layer_0_and_the_last_two_steps():
    policy = Schedule(
        "hybrid",
        (
            Rule(FP16, layers=Selector.parse(0, "layers")),
            Rule(FP16, steps=Selector.parse([-2, -1], "steps")),
            Rule(MX),
        ),
    )
    policy.check(40, 40, 2)
    used = {(layer, step): policy.at(site(layer, step), 2) for layer in range(40) for step in range(40)}
    assert all((use is FP16) == (layer == 0 or step >= 38) for (layer, step), use in used.items())
    assert policy.at(site(kind="cross"), 2) is None
    assert policy.main is MX


def test_the_first_match_wins_and_experts_are_told_apart():
    policy = Schedule("x", (Rule(FP16, experts=Selector.parse(1, "experts")), Rule(MX)))
    assert policy.at(site(expert=0), 2) is MX
    assert policy.at(site(expert=1), 2) is FP16


def test_a_rule_that_cannot_match_is_an_error_before_the_run():
    with pytest.raises(UserError, match="there is no layer 40"):
        Schedule("x", (Rule(MX, layers=Selector.parse(40, "layers")),)).check(40, 8, 2)


def test_equal_computations_have_equal_ids_whatever_they_are_called():
    one = as_schedule("mxattn")
    other = Schedule("another name", (Rule(Use("y", METHODS["mxattn"].spec), layers=Selector()),))
    assert one.id == other.id
    assert one.id != as_schedule("mxfp4").id


def test_as_schedule_takes_names_methods_specs_and_functions():
    assert as_schedule(METHODS["vc8"]).name == "vc8"
    assert as_schedule(METHODS["vc8"].spec).name == "vc8"
    assert as_schedule(lambda q, k, v: v).unverified
    with pytest.raises(UserError, match="did you mean mxattn"):
        as_schedule("mxatn")
    with pytest.raises(UserError, match="no attention method"):
        as_schedule(3)
