"""Ablations and sweeps."""

import pytest

from mxbench.attention.methods import METHODS
from mxbench.errors import UserError
from mxbench.runs.ablation import ABLATIONS, parse_sweep, sequential, sweep
from mxbench.runs.entries import parse_entry


def test_the_sequential_ablation_is_the_papers_table_3():
    rows = sequential("mxattn")
    assert [row["label"] for row in rows] == ["Full", "w/o UOS", "w/o PNQ and UOS", "OCP MXFP4"]
    assert [tuple(row["flags"].values()) for row in rows] == [
        (True, True, True),
        (True, True, False),
        (True, False, False),
        (False, False, False),
    ]
    specs = [parse_entry(row).schedule.main.spec.canonical() for row in rows]
    assert specs[0] == METHODS["mxattn"].spec.canonical()
    assert specs[-1] == METHODS["mxfp4"].spec.canonical()


@pytest.mark.parametrize("name", list(ABLATIONS))
def test_each_step_changes_the_method(name):
    ids = [parse_entry(row).schedule.id for row in sequential(name)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("q_max=6:8:0.25", "q_max", [6, 6.25, 6.5, 6.75, 7, 7.25, 7.5, 7.75, 8]),
        ("q_max=6:7:0.3", "q_max", [6, 6.3, 6.6, 6.9]),
        ("row_sum=exact,quantised", "row_sum", ["exact", "quantised"]),
        ("hadamard", "hadamard", [False, True]),
        ("hadamard_sign_seed=none,7", "hadamard_sign_seed", [None, 7]),
        ("hadamard=true", "hadamard", [True]),
    ],
)
def test_sweeps_are_read(text, name, values):
    assert parse_sweep(text) == (name, values)


@pytest.mark.parametrize(
    "text", ["q_mx=6:8:1", "q_max=8:6:1", "q_max=6:8:0", "q_max=a:b:c", "q_max=", "q_max=1:2", "q_max=0:9e9:1"]
)
def test_what_is_no_sweep_is_refused(text):
    with pytest.raises(UserError):
        parse_sweep(text)


def test_a_sweep_gives_every_combination_and_refuses_impossible_values():
    rows = sweep("mxattn", [("q_max", [6, 7]), ("row_sum", ["exact", "quantised"])])
    assert len({parse_entry(row).schedule.id for row in rows}) == 4
    assert rows[1]["axis"] == {"q_max": "6", "row_sum": "quantised"}
    with pytest.raises(UserError, match="q_max"):
        sweep("mxattn", [("q_max", [6, 9])])
    with pytest.raises(UserError, match="no operand"):
        sweep("fp8", [("q_max", [6, 7])])
