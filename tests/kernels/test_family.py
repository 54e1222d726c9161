"""Pre-pass and fused kernel together, in the interpreter, against the reference."""

from __future__ import annotations

from dataclasses import replace

import attention_cases
import pytest
import torch

from mxbench import METHODS
from mxbench.attention.reference import reference
from mxbench.attention.site import Site
from mxbench.attention.spec import VSmooth
from mxbench.attention.value import GroupingState
from mxbench.errors import UserError
from mxbench.kernels import Tally, family
from mxbench.kernels.family import compute

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EMULATED = [name for name in METHODS if name != "fp16"]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return attention_cases.normal(*shape, seed=seed).to(DEVICE)


def off(out: torch.Tensor, true: torch.Tensor) -> float:
    return float((out.double() - true.double()).norm() / true.double().norm())


@pytest.mark.parametrize("method", EMULATED)
def test_the_family_computes_what_the_reference_does(method: str) -> None:
    q, k, v = normal(1, 2, 70, 64), normal(1, 2, 193, 64, seed=1) + 1, normal(1, 2, 193, 64, seed=2) + 0.5
    spec = METHODS[method].spec
    assert off(compute(q, k, v, spec, "float32"), reference(q, k, v, spec)) < 1e-3


def test_a_key_mask_leaves_the_real_keys_alone_and_a_row_without_any_is_zero() -> None:
    q, k, v = normal(2, 1, 33, 32), normal(2, 1, 80, 32, seed=1), normal(2, 1, 80, 32, seed=2)
    mask = (torch.rand(2, 80, generator=torch.Generator().manual_seed(0)) < 0.6).to(DEVICE)
    mask[1] = False
    k[1], v[1] = float("nan"), float("inf")
    k[0, :, ~mask[0]] = float("nan")
    spec = METHODS["mxattn"].spec
    out = compute(q, k, v, spec, "float32", key_mask=mask)
    assert bool((out[1] == 0).all())
    assert off(out[:1], reference(q[:1], k[:1], v[:1], spec, key_mask=mask[:1])) < 1e-3


def wide(*lead: int, nk: int = 70, d: int = 32) -> list[torch.Tensor]:
    """Q, K and V, the two spanning more than E5M2 holds: half of the keys are tiny, and weigh like scores of zero."""
    q, k, v = normal(*lead, 33, d), normal(*lead, nk, d, seed=1), normal(*lead, nk, d, seed=2) + 0.5
    for x in (k, v):
        x[..., : nk // 2, :] *= 2.0**-40
    return [q, k, v]


@pytest.fixture
def widened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widen into FP32, since the interpreter does not multiply BF16."""
    if DEVICE == "cpu":
        monkeypatch.setattr(family, "_WIDER", "float32")


@pytest.mark.usefixtures("widened")
@pytest.mark.parametrize("method", ["mxfp4", "mxattn"])
def test_what_e5m2_cannot_hold_is_computed_by_the_wider_path_and_counted(method: str) -> None:
    q, k, v = wide(1, 2)
    spec, tally = METHODS[method].spec, Tally()
    compute(q, normal(1, 2, 70, 32, seed=1), normal(1, 2, 70, 32, seed=2), spec, "fast", tally=tally)
    assert tally.widened == 0
    for calls in (1, 2):
        out = compute(q, k, v, spec, "fast", tally=tally)
        assert off(out, reference(q, k, v, spec)) < 1e-3
        assert tally.widened == calls
    with pytest.warns(UserWarning, match="more powers of two than E5M2 has"):  # without anybody who counts
        assert torch.equal(out, compute(q, k, v, spec, "fast"))


@pytest.mark.usefixtures("widened")
def test_a_call_is_widened_as_a_whole_and_counted_once_under_a_mask() -> None:
    q, k, v = wide(3, 1)
    k[0], v[0] = normal(1, 70, 32, seed=3), normal(1, 70, 32, seed=4)
    mask = torch.ones(3, 70, dtype=torch.bool, device=DEVICE)
    mask[:, 60:] = False
    spec, tally = METHODS["mxfp4"].spec, Tally()
    out = compute(q, k, v, spec, "fast", key_mask=mask, tally=tally)
    assert tally.widened == 1
    assert off(out, reference(q, k, v, spec, key_mask=mask)) < 1e-3
    mask[1:, :35] = False  # what is left fits
    compute(q, k, v, spec, "fast", key_mask=mask, tally=tally)
    assert tally.widened == 1


@pytest.mark.usefixtures("widened")
def test_a_widened_call_groups_once() -> None:
    """A refresh starts from the centres of the one before: made twice, it would be another grouping."""
    smooth = VSmooth(clusters=8, iterations=1, window=1.0, refresh=2)
    spec = replace(METHODS["mxattn"].spec, v_smooth=smooth)
    ours, theirs, tally = GroupingState(), GroupingState(), Tally()
    for step in range(4):
        q, k, v = wide(1, 1, nk=200)
        v += normal(1, 1, 200, 32, seed=10 + step)
        site = Site(expert=0, layer=0, n_layers=1, kind="self", step=step, n_steps=4)
        out = compute(q, k, v, spec, "fast", site=site, state=ours, tally=tally)
        assert off(out, reference(q, k, v, spec, site=site, state=theirs)) < 1e-3
        (mine,), (true,) = ours.groupings.values(), theirs.groupings.values()
        assert torch.equal(mine.order, true.order)
    assert tally.widened == 4


def test_the_interpreter_is_not_asked_to_multiply_bfloat16() -> None:
    if DEVICE == "cuda":
        pytest.skip("the kernels run on a device")
    q, k, v = normal(1, 1, 32, 32), normal(1, 1, 64, 32, seed=1), normal(1, 1, 64, 32, seed=2)
    with pytest.raises(UserError, match="interpreter does not multiply bfloat16"):
        compute(q, k, v, METHODS["mxfp4"].spec, "conformance")


def test_native_keeps_no_groupings_under_a_mask() -> None:
    q, k, v = (normal(1, 1, 64, 64, seed=seed) for seed in range(3))
    site = Site(expert=0, layer=0, n_layers=1, kind="self", step=0, n_steps=4)
    mask = torch.ones(1, 64, dtype=torch.bool, device=DEVICE)
    with pytest.raises(UserError, match="'native' keeps no groupings under a key mask; use impl 'reference'"):
        compute(q, k, v, METHODS["vc4"].spec, "native", key_mask=mask, site=site, state=GroupingState())
