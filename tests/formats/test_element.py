"""Every element format against ml_dtypes: all codes, all midpoints, all BF16 values, random FP32 bit patterns."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import oracle_formats
import pytest
import torch

from mxbench.formats.element import (
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    ELEMENTS,
    INT8,
    Element,
    decode,
    encode,
    exponent_floor,
    round_to,
)

DTYPES = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "int8": np.int8,
}
ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "e2m1": oracle_formats.e2m1,
    "e4m3": oracle_formats.e4m3,
    "e5m2": oracle_formats.e5m2,
    "int8": oracle_formats.int8,
}
FLOATS = [E2M1, E4M3, E5M2]
ROUNDED = [*FLOATS, INT8]


def codes_of(element: Element) -> torch.Tensor:
    return torch.arange(1 << element.bits, dtype=torch.uint8)


def values_of(element: Element) -> np.ndarray:
    """The finite values of a format, ascending, by ml_dtypes."""
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    values = codes.view(DTYPES[element.name]).astype(np.float32)
    return np.unique(values[np.isfinite(values)])


def beside(points: np.ndarray) -> np.ndarray:
    """FP32 points, and one ulp to either side of each."""
    points = points.astype(np.float32)
    low, high = np.nextafter(points, np.float32(-np.inf)), np.nextafter(points, np.float32(np.inf))
    return np.concatenate([low, points, high])


def all_bf16() -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)


def random_bits(n: int = 1 << 17) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)


def check(x: np.ndarray, element: Element) -> None:
    got = round_to(torch.from_numpy(x.copy()), element).numpy()
    unknown = np.isnan(x)
    assert np.isnan(got[unknown]).all()
    with np.errstate(invalid="ignore"):
        expected = ROUND[element.name](x[~unknown])
    assert np.array_equal(got[~unknown], expected)


@pytest.mark.parametrize("element", ELEMENTS.values(), ids=str)
def test_every_code_decodes(element: Element) -> None:
    codes = codes_of(element)
    expected = codes.numpy().view(DTYPES[element.name]).astype(np.float32)
    got = decode(codes, element).numpy()
    assert np.array_equal(got, expected, equal_nan=True)
    known = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("element", ELEMENTS.values(), ids=str)
def test_every_code_survives_decoding_and_encoding(element: Element) -> None:
    codes = codes_of(element)
    values = decode(codes, element)
    back = encode(values, element)
    known = ~values.isnan()
    assert torch.equal(back[known], codes[known])
    assert decode(back[~known], element).isnan().all()
    assert back.dtype == torch.uint8


def test_the_ends_of_e8m0() -> None:
    assert decode(torch.tensor([0, 127, 254], dtype=torch.uint8), E8M0).tolist() == [2.0**-127, 1.0, 2.0**127]
    assert decode(torch.tensor([255], dtype=torch.uint8), E8M0).isnan().item()
    assert encode(torch.tensor([2.0**-127, 1.0, 2.0**127, float("nan")]), E8M0).tolist() == [0, 127, 254, 255]
    for value in (0.0, -1.0, 1.5, 2.0**-128, float("inf")):
        with pytest.raises(ValueError, match="round it first"):
            encode(torch.tensor([value]), E8M0)
    with pytest.raises(ValueError, match="scale rule"):
        round_to(torch.ones(1), E8M0)


@pytest.mark.parametrize(
    ("element", "value"),
    [(E2M1, 5.0), (E2M1, float("nan")), (E4M3, 450.0), (E4M3, float("inf")), (INT8, 0.5), (INT8, 300.0)],
    ids=str,
)
def test_values_of_no_code_are_refused(element: Element, value: float) -> None:
    with pytest.raises(ValueError, match="round it first"):
        encode(torch.tensor([1.0, value]), element)


@pytest.mark.parametrize("element", ROUNDED, ids=str)
def test_rounding_at_every_midpoint_and_beside_it(element: Element) -> None:
    values = values_of(element).astype(np.float64)
    midpoints = (values[:-1] + values[1:]) / 2  # FP32 holds each
    assert np.array_equal(midpoints, midpoints.astype(np.float32))
    check(beside(midpoints), element)
    check(beside(values), element)


@pytest.mark.parametrize("element", ROUNDED, ids=str)
def test_rounding_of_all_bf16_values_and_of_random_bits(element: Element) -> None:
    check(all_bf16(), element)
    check(random_bits(), element)


@pytest.mark.parametrize("element", ROUNDED, ids=str)
def test_rounding_of_zeros_subnormals_and_what_is_too_large(element: Element) -> None:
    tiny = np.array([0.0, -0.0, 1e-45, -1e-45, 1.2e-38, 2.0**-126], np.float32)
    check(tiny, element)
    assert not round_to(torch.from_numpy(tiny), element).any()
    big = np.array([element.max, np.nextafter(np.float32(element.max), np.float32(np.inf)), 3.4e38, np.inf], np.float32)
    assert (round_to(torch.from_numpy(big), element) == element.max).all()
    assert (round_to(torch.from_numpy(-big), element) == -element.max).all()


def test_ties_of_e2m1() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert round_to(ties, E2M1).tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert round_to(-ties, E2M1).tolist() == [0, -1, -1, -2, -2, -4, -4]


def test_half_away_is_exact() -> None:
    near = beside(np.arange(-130, 130, dtype=np.float64) + 0.5)
    x = np.concatenate([near, np.float32([0.49999997, -0.49999997, 0.0, -0.0, 1e-45, 126.99999]), all_bf16()])
    x = x[np.isfinite(x)]

    def exact(value: float) -> int:
        whole = int(abs(Fraction(value)) + Fraction(1, 2))
        return min(whole, 127) * (-1 if value < 0 else 1)

    got = round_to(torch.from_numpy(x.copy()), INT8, "half_away")
    assert got.tolist() == [exact(float(value)) for value in x]
    assert round_to(torch.tensor([0.49999997, 0.5, -0.5, 2.5]), INT8, "half_away").tolist() == [0, 1, -1, 3]
    with pytest.raises(ValueError, match="int8 alone"):
        round_to(torch.ones(1), E4M3, "half_away")


@pytest.mark.parametrize("element", ROUNDED, ids=str)
def test_rounding_leaves_its_input_alone(element: Element) -> None:
    x = torch.randn(5, 7).mul_(100)
    before = x.clone()
    round_to(x, element)
    exponent_floor(x, -6)
    assert torch.equal(x, before)
    strided = torch.randn(6, 8).t()[::2]
    assert torch.equal(round_to(strided, element), round_to(strided.contiguous(), element))


def test_exponent_floor_beside_every_power_of_two() -> None:
    with np.errstate(over="ignore"):
        x = beside(np.ldexp(np.float64(1), np.arange(-149, 128)))
    x = x[(x > 0) & np.isfinite(x)]
    _, exponent = np.frexp(x.astype(np.float64))
    for least in (-6, 0, -126):
        expected = np.ldexp(1.0, np.maximum(exponent - 1, least))
        assert np.array_equal(exponent_floor(torch.from_numpy(x), least).numpy(), expected)
        assert np.array_equal(exponent_floor(-torch.from_numpy(x), least).numpy(), expected)
