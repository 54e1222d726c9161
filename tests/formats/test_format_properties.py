"""What must hold of the formats whatever the input; and the error that theory gives for a Gaussian."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mxbench.formats.block import quantise
from mxbench.formats.quantizer import Quantizer

GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
RULES = ["ocp", "tfs", "oas", "uos", "6.5", "8"]

moderate = st.floats(-(2.0**40), 2.0**40, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-40)
rules = st.sampled_from(RULES)
lists = st.lists(moderate, min_size=1, max_size=70)
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def through(x: torch.Tensor, quantizer: Quantizer) -> torch.Tensor:
    return quantise(x, quantizer).dequantise()


def mx(x: torch.Tensor, rule: str) -> torch.Tensor:
    return through(x, Quantizer("mxfp4", scale_rule=rule))


@quick
@given(lists, rules, st.integers(-30, 30))
def test_mxfp4_commutes_with_powers_of_two_and_signs(values: list[float], rule: str, k: int) -> None:
    x = torch.tensor([values])
    assert torch.equal(mx(x * 2.0**k, rule), mx(x, rule) * 2.0**k)
    assert torch.equal(mx(-x, rule), -mx(x, rule))


@quick
@given(lists, rules)
def test_mxfp4_of_its_own_output_is_that_output(values: list[float], rule: str) -> None:
    once = mx(torch.tensor([values]), rule)
    if rule != "8":  # at q = 8 a block of maximum 4·2^e is read as 8·2^(e-1), and saturates
        assert torch.equal(mx(once, rule), once)


@quick
@given(lists, rules)
def test_mxfp4_elements_are_the_nearest_of_their_block(values: list[float], rule: str) -> None:
    x = torch.tensor([values])
    out = quantise(x, Quantizer("mxfp4", scale_rule=rule))
    scale = out.groups.restore(out.scale.expand_as(out.elements)).numpy().astype(np.float64)
    wanted = np.minimum(np.abs(x.numpy().astype(np.float64)) / scale, 6)
    got = np.abs(out.dequantise().numpy().astype(np.float64)) / scale
    nearest = np.abs(wanted[..., None] - GRID).min(-1)
    assert np.array_equal(np.abs(wanted - got), nearest)


@quick
@given(lists, st.randoms(use_true_random=False))
def test_order_inside_a_block_does_not_matter(values: list[float], random: object) -> None:
    x = torch.tensor([values[:16]])
    order = list(range(x.shape[-1]))
    random.shuffle(order)  # type: ignore[attr-defined]
    for quantizer in (Quantizer("mxfp4"), Quantizer("nvfp4"), Quantizer("int8", "rows"), Quantizer("e4m3", "tensor")):
        assert torch.equal(through(x[:, order], quantizer), through(x, quantizer)[:, order])


@quick
@given(lists)
def test_int8_and_e4m3_keep_within_half_a_step(values: list[float]) -> None:
    x = torch.tensor([values]).double()
    amax = x.abs().max()
    assert ((through(x.float(), Quantizer("int8", "tensor")) - x).abs() <= amax / 127 * 0.5001).all()
    error = (through(x.float(), Quantizer("e4m3", "tensor")) - x).abs()
    assert (error <= torch.maximum(x.abs() * 2**-4, amax / 448 * 2**-10) * 1.001).all()


BLOCKS = 160_000


@pytest.fixture(scope="module")
def gaussian() -> torch.Tensor:
    return torch.randn(BLOCKS, 32, generator=torch.Generator().manual_seed(11))


@pytest.mark.parametrize(("rule", "expected"), [("uos", 12.47), ("oas", 12.52), ("ocp", 13.22), ("tfs", 13.33)])
def test_relative_error_of_a_gaussian(gaussian: torch.Tensor, rule: str, expected: float) -> None:
    error = (mx(gaussian, rule) - gaussian).square().double().mean() / gaussian.square().double().mean()
    assert 1000 * error.item() == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(("rule", "expected"), [("uos", 12.52), ("oas", 12.62), ("ocp", 13.36), ("tfs", 13.67)])
def test_relative_error_of_a_gaussian_averaged_over_its_scale(
    gaussian: torch.Tensor, rule: str, expected: float
) -> None:
    scale = torch.exp2((torch.arange(BLOCKS) + 0.5) / BLOCKS)[:, None]
    error = (mx(gaussian * scale, rule) / scale - gaussian).square().double().mean()
    assert 1000 * (error / gaussian.square().double().mean()).item() == pytest.approx(expected, abs=0.03)
