"""Pre-pass and fused kernel together, in the interpreter, against the reference."""

from __future__ import annotations

import pytest
import torch
from attention_cases import normal

from mxbench import METHODS
from mxbench.attention.reference import reference
from mxbench.errors import UserError
from mxbench.kernels.family import compute

EMULATED = [name for name in METHODS if name != "fp16"]


def off(out: torch.Tensor, true: torch.Tensor) -> float:
    return float((out.double() - true.double()).norm() / true.double().norm())


@pytest.mark.parametrize("method", EMULATED)
def test_the_family_computes_what_the_reference_does(method: str) -> None:
    q, k, v = normal(1, 2, 70, 64), normal(1, 2, 193, 64, seed=1) + 1, normal(1, 2, 193, 64, seed=2) + 0.5
    spec = METHODS[method].spec
    assert off(compute(q, k, v, spec, "float32"), reference(q, k, v, spec)) < 1e-3


def test_a_key_mask_leaves_the_real_keys_alone_and_a_row_without_any_is_zero() -> None:
    q, k, v = normal(2, 1, 33, 32), normal(2, 1, 80, 32, seed=1), normal(2, 1, 80, 32, seed=2)
    mask = torch.rand(2, 80, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[1] = False
    k[1], v[1] = float("nan"), float("inf")
    k[0, :, ~mask[0]] = float("nan")
    spec = METHODS["mxattn"].spec
    out = compute(q, k, v, spec, "float32", key_mask=mask)
    assert bool((out[1] == 0).all())
    assert off(out[:1], reference(q[:1], k[:1], v[:1], spec, key_mask=mask[:1])) < 1e-3


def test_what_e5m2_cannot_hold_is_refused() -> None:
    q, k, v = normal(1, 1, 32, 32), normal(1, 1, 64, 32, seed=1), normal(1, 1, 64, 32, seed=2)
    k[..., :32, :] *= 2.0**-40
    with pytest.raises(UserError, match=r"below the range of E5M2.*conformance"):
        compute(q, k, v, METHODS["mxfp4"].spec, "fast")
