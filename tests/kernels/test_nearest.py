"""``nearest`` forgives a rounding of the scores, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attention_cases import normal
from nearest import nearest

from mxbench import METHODS
from mxbench.attention.reference import prepare, walk

LIMIT = 1e-3  # what the conformance path is held to


@pytest.mark.parametrize("name", ["mxfp4", "mxattn", "nvfp4-sage", "sage2", "fp8", "vc8"])
def test_a_neighbour_and_a_wrong_row_are_not_near(name: str) -> None:
    spec = METHODS[name].spec
    operands = prepare(3 * normal(1, 2, 60, 64), normal(1, 2, 300, 64, seed=1), normal(1, 2, 300, 64, seed=2), spec)
    true = walk(operands, spec)
    assert nearest(true, operands, spec) == 0
    assert nearest(walk(operands, replace(spec, kv_tile=64)), operands, spec) > LIMIT
    assert nearest(walk(replace(operands, q=operands.q * 1.01), spec), operands, spec) > LIMIT
    wrong = true.clone()
    wrong[0, 1, 59] *= 1.05  # of 120 rows
    assert nearest(wrong, operands, spec) > LIMIT


def test_a_score_between_two_roundings_is_near() -> None:
    spec = METHODS["nvfp4"].spec
    operands = prepare(3 * normal(1, 2, 60, 64), normal(1, 2, 300, 64, seed=1), normal(1, 2, 300, 64, seed=2), spec)
    moved = walk(replace(operands, q=operands.q * (1 + 2.0**-18)), spec)
    assert nearest(moved, operands, spec) < LIMIT
