"""V-Smooth over a render: what is grouped when, kept by what, and dropped when, against a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import SMOOTH, distance, grid, reference
from smoothing_simulation import Call, Simulation

from mxbench import METHODS, attend
from mxbench.attention import value as value_module
from mxbench.attention.axes import with_axes
from mxbench.attention.site import Site
from mxbench.attention.value import GroupingState

STEPS = 16
SWITCH = 3  # the step from which the second expert runs: inside the window of four steps


def render(steps: int = STEPS, switch: int = SWITCH, n: int = 140, seed: int = 0, **fields: Any) -> Iterator[Call]:
    """The calls of one layer: one expert, then the other; two guidance branches a step; V drifts from step to step."""
    base = {(e, b): grid(1, 2, n, 32, seed=10 * e + b + seed) for e in (0, 1) for b in (0, 1)}
    for step in range(steps):
        expert = int(step >= switch)
        for branch in (0, 1):
            v = base[expert, branch] + step * grid(1, 2, n, 32, seed=97 + seed) / 8
            q, k = grid(1, 2, 9, 32, seed=1000 + step), grid(1, 2, n, 32, seed=2000 + step)
            yield Call(q, k, v, Site(expert, 0, 1, "self", step, steps, branch, **fields))


@pytest.fixture
def groupings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each grouping that is made has, in order."""
    made: list[int] = []
    group = value_module._group

    def counted(v: torch.Tensor, *args: Any) -> Any:
        made.append(v.shape[2])
        return group(v, *args)

    monkeypatch.setattr(value_module, "_group", counted)
    return made


FIELDS = [
    {},
    {"placement": "uniform"},
    {"placement": "every", "clusters": 16},
    {"window": "0.5", "refresh": 3},
    {"window": "0.6", "placement": "uniform", "refresh": 2},
    {"layout": "sequence"},
    {"iterations": 1},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize("name", SMOOTH)
def test_a_render_of_two_experts_and_two_branches(name: str, fields: dict[str, Any], groupings: list[int]) -> None:
    spec = with_axes(METHODS[name].spec, {f"v_smooth.{field}": value for field, value in fields.items()})
    simulation, state = Simulation(**fields), GroupingState()
    distances = []
    for call in render():
        got = attend(call.q, call.k, call.v, spec, impl="reference", site=call.site, state=state)
        distances.append(distance(got, simulation.attention(name, call)))
        assert len(groupings) == len(simulation.grouped_at), call.site
    # A mean of rows that are not exactly summed may flip one tie: then every row of a head moves a little.
    assert max(distances) < 1e-2
    assert np.median(distances) < 1e-3


def test_when_the_default_schedule_groups() -> None:
    simulation = Simulation()
    for call in render():
        simulation.at(call.v, call.site)
    assert simulation.grouped_at == [(0, 0, 0), (0, 0, 1), (1, 3, 0), (1, 3, 1)]
    simulation = Simulation()
    for call in render(steps=40, switch=6):
        simulation.at(call.v, call.site)
    assert [(e, s) for e, s, b in simulation.grouped_at if b == 0] == [(0, 0), (0, 4), (1, 6), (1, 8)]


def made_at(calls: list[Call], state: GroupingState, groupings: list[int], **options: Any) -> list[int]:
    """The steps at which something was grouped."""
    steps = []
    for call in calls:
        before = len(groupings)
        reference("vc8", call.q, call.k, call.v, site=call.site, state=state, **options)
        steps += [call.site.step] * (len(groupings) - before)
    return steps


def test_an_expert_that_begins_after_the_window_stays_ungrouped(groupings: list[int]) -> None:
    calls = list(render(switch=9))
    assert made_at(calls, GroupingState(), groupings) == [0, 0]
    late = calls[-1]
    got = reference("vc8", late.q, late.k, late.v, site=late.site, state=GroupingState())
    plain = with_axes(METHODS["vc8"].spec, {"v_smooth": False})
    assert torch.equal(got, attend(late.q, late.k, late.v, plain, impl="reference"))


def test_step_0_forgets_the_last_render(groupings: list[int]) -> None:
    first, second = list(render()), list(render(seed=500))
    state = GroupingState()
    made_at(first, state, groupings)
    again = [reference("vc8", c.q, c.k, c.v, site=c.site, state=state) for c in second]
    fresh_state = GroupingState()
    fresh = [reference("vc8", c.q, c.k, c.v, site=c.site, state=fresh_state) for c in second]
    assert all(torch.equal(x, y) for x, y in zip(again, fresh, strict=True))


def test_a_second_expert_does_not_find_the_last_renders_grouping(groupings: list[int]) -> None:
    """It does not run at step 0, so step 0 of its own never comes."""
    state = GroupingState()
    made_at(list(render(switch=2)), state, groupings)
    late = [c for c in render(switch=9, seed=500) if c.site.branch == 0]
    for call in late[:-1]:
        reference("vc8", call.q, call.k, call.v, site=call.site, state=state)
    call = late[-1]
    got = reference("vc8", call.q, call.k, call.v, site=call.site, state=state)
    assert torch.equal(got, reference("vc8", call.q, call.k, call.v, site=call.site, state=GroupingState()))


def test_what_a_grouping_belongs_to(groupings: list[int]) -> None:
    state = GroupingState()
    call = next(render())
    variants = [
        {},
        {"branch": 1},
        {"layer": 1},
        {"kind": "cross"},
        {"expert": 1},
    ]
    for i, variant in enumerate(variants):
        fields = {"expert": 0, "layer": 0, "n_layers": 2, "kind": "self", "step": 1, "n_steps": 16, **variant}
        for _ in range(2):  # the second call finds the first one's
            reference("vc8", call.q, call.k, call.v, site=Site(**fields), state=state)
        assert len(groupings) == i + 1
    site = Site(0, 0, 2, "self", 1, 16)
    reference("vc8", call.q, call.k[:, :, :77], call.v[:, :, :77], site=site, state=state)
    assert len(groupings) == len(variants) + 1
    assert len(state.groupings) == len(variants) + 1


def test_batch_elements_of_a_masked_call_keep_groupings_of_their_own(groupings: list[int]) -> None:
    q, k, v = grid(2, 2, 9, 32), grid(2, 2, 140, 32, seed=1), grid(2, 2, 140, 32, seed=2)
    mask = torch.ones(2, 140, dtype=torch.bool)
    mask[1, ::2] = False
    mask[0, 70:] = False  # as many keys as the other has
    state = GroupingState()
    for step in (0, 1, 9):
        site = Site(0, 0, 1, "self", step, 16)
        got = reference("vc8", q, k, v, key_mask=mask, site=site, state=state)
        assert len(groupings) == 2
        assert got.isfinite().all()
    site = Site(0, 0, 1, "self", 0, 16)
    reference("vc8", q, k, v, key_mask=mask, site=site, state=state)
    assert len(groupings) == 4
    assert len(state.groupings) == 2


@pytest.mark.parametrize("name", [n for n in METHODS if n not in SMOOTH])
def test_methods_without_state_do_not_read_the_site(name: str) -> None:
    call = next(render())
    state = GroupingState()
    got = reference(name, call.q, call.k, call.v, site=call.site, state=state)
    assert torch.equal(got, reference(name, call.q, call.k, call.v))
    assert not state.groupings


@pytest.mark.parametrize("name", SMOOTH)
def test_without_a_site_every_call_groups_afresh(name: str, groupings: list[int]) -> None:
    call = next(render())
    state = GroupingState()
    first = reference(name, call.q, call.k, call.v, state=state)
    assert torch.equal(reference(name, call.q, call.k, call.v, state=state), first)
    assert len(groupings) == 2
    assert not state.groupings
