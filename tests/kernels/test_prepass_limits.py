"""The pre-pass at the limits of its types: zeros, NaN, infinities, the smallest and the largest, and E5M2's range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from prepass_checks import check, factored, kept, operands, values, wanted

from mxbench import METHODS
from mxbench.kernels.prepass import reason

BF16_MAX = torch.finfo(torch.bfloat16).max


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """NumPy, which stands in for the device, warns where floating point overflows as it should."""
    with np.errstate(all="ignore"):
        yield


def hostile() -> dict[str, list[torch.Tensor]]:
    def changed(**changes: tuple[Any, float]) -> list[torch.Tensor]:
        tensors = dict(zip("qkv", operands((1, 2, 150, 32)), strict=True))
        for letter, (at, value) in changes.items():
            tensors[letter][at] = value
        return list(tensors.values())

    everywhere, channel = (...,), (..., 5)
    block = (slice(None), slice(None), slice(16, 48), slice(None))
    one = (0, 1, 21, 19)
    tensors = {
        "zeros": changed(q=(everywhere, 0.0), k=(everywhere, 0.0), v=(everywhere, 0.0)),
        "zero channels": changed(q=(channel, 0.0), k=(channel, 0.0), v=(channel, 0.0)),
        "zero blocks": changed(q=(block, 0.0), k=(block, 0.0), v=(block, 0.0)),
        "constant v": changed(v=(everywhere, 1.375)),
        "nan": changed(q=(one, float("nan")), k=(one, float("nan")), v=(one, float("nan"))),
        "inf": changed(q=(one, float("inf")), k=((0, 0, 3, 1), float("-inf")), v=(one, float("inf"))),
        "huge v": changed(v=(one, BF16_MAX)),
        "huge q": changed(q=(one, -BF16_MAX)),
    }
    q, k, v = operands((1, 2, 150, 32))
    tensors["a large mean of k"] = [q, k + 64, v]
    tensors["blocks far below the tensor"] = changed(q=(one, 2.0**20), k=(one, 2.0**20), v=(one, 2.0**20))
    tensors["tiny"] = [x * 2.0**-100 for x in operands((1, 2, 150, 32))]
    tensors["subnormal"] = [x * 2.0**-128 for x in operands((1, 2, 150, 32))]
    tensors["huge"] = [x * 2.0**120 for x in operands((1, 2, 150, 32))]
    return tensors


@pytest.mark.parametrize("case", hostile())
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "nvfp4-sage", "sage2", "fp8"])
def test_hostile_inputs(name: str, case: str) -> None:
    spec, tensors = METHODS[name].spec, hostile()[case]
    expected = wanted(tensors, spec)
    for path in ("conformance", "fast"):
        if reason(spec, path, torch.bfloat16) is not None:
            continue
        held = kept(tensors, spec, path)
        if held.lost is not None and int(held.lost):  # the caller refuses it
            assert case in ("huge v", "huge q", "subnormal")
        # The factor of a pair of operands may leave FP32 where those of the two do not: what it stands for does too.
        elif case not in ("huge", "tiny", "subnormal") or held.k_scale is not None or held.q_scale is None:
            check(held, expected, spec)


@pytest.mark.parametrize("case", ["nan", "inf", "zeros", "zero blocks"])
@pytest.mark.parametrize("name", ["mxattn", "vc8", "vc4"])
def test_hostile_inputs_with_a_rotation(name: str, case: str) -> None:
    """NaN and zeros stand where the reference has them; the sums of what is left may be rounded otherwise."""
    spec, tensors = METHODS[name].spec, hostile()[case]
    expected = wanted(tensors, spec)
    for path in ("conformance", "fast"):
        if reason(spec, path, torch.bfloat16) is None:
            held = kept(tensors, spec, path)
            q, k = factored(held)
            right_q, right_k = expected.factored()
            for got, right in ((q, right_q), (k, right_k), (values(held), expected.v)):
                assert torch.equal(got.isnan(), right.isnan())
                assert ((got == 0) == (right == 0)).float().mean() > 0.999


def test_what_e5m2_cannot_hold_is_counted() -> None:
    for name in ("mxfp4", "mxattn"):  # unrotated K is held in BF16
        spec, tensors = METHODS[name].spec, operands((1, 2, 96, 64))
        for x in tensors[1:]:
            x[0, 0, 32:64] *= 2.0**-40
        held = kept(tensors, spec, "fast")
        expected = wanted(tensors, spec)
        tiny = [expected.v] if name == "mxfp4" else [expected.k, expected.v]
        gone = sum(int((x[0, 0, 32:64] != 0).sum()) for x in tiny)
        assert held.lost is not None
        assert int(held.lost) == gone > 1000
    # Each row of Q has a power of two of its own.
    tensors = operands((1, 2, 96, 64))
    tensors[0][0, 0, 32:64] *= 2.0**-40
    check(kept(tensors, spec, "fast"), wanted(tensors, spec), spec)


def test_every_exponent_that_e5m2_has_is_used() -> None:
    """A block is exact at 28 powers of two below the largest, and is counted at 29."""
    spec = METHODS["mxfp4-tfs"].spec
    for below, lost in ((28, 0), (29, 1)):
        tensors = operands((1, 1, 64, 32))
        tensors[2][...] = 0
        tensors[2][0, 0, 3, 0] = 6.0
        tensors[2][0, 0, 40:43, 0] = torch.tensor([6.0, 0.5, 1.5]) * 2.0**-below
        held = kept(tensors, spec, "fast")
        assert held.lost is not None
        assert (int(held.lost) > 0) == bool(lost)
