"""``quantise`` against the numpy oracle, bit for bit, on awkward shapes and hostile blocks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import oracle_formats
import pytest
import torch

from mxbench.formats.block import quantise
from mxbench.formats.quantizer import Quantizer

DIMS = [32, 64, 80, 96, 112, 128, 256]
TOKENS = [1, 17, 31, 77, 127, 129, 193]
RULES = ["ocp", "tfs", "oas", "uos", "6.5", "8"]
BF16_MAX = float(np.float32(ml_dtypes.finfo(ml_dtypes.bfloat16).max))


def normal(*shape: int, seed: int = 0, bf16: bool = True) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32) if bf16 else x


def through(x: np.ndarray, quantizer: Quantizer, axis: int = -1, role: Any = "q") -> np.ndarray:
    return quantise(torch.from_numpy(x.copy()), quantizer, axis=axis, role=role).dequantise().numpy()


def same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == np.float32
    assert got.shape == expected.shape
    assert np.array_equal(got, expected, equal_nan=True)


def hostile(shape: tuple[int, int, int, int]) -> list[tuple[str, np.ndarray]]:
    """Tensors of that shape that have broken others."""
    rng = np.random.default_rng(5)
    base = normal(*shape, seed=6)
    zeros = base.copy()
    zeros[..., : shape[-1] // 2] = 0
    zeros[..., ::3, :] = 0
    spread = base * np.exp2(rng.integers(-30, 30, shape)).astype(np.float32)
    one_big = base.copy()
    one_big[0, 0, 0, 0] = BF16_MAX
    one_big[-1, -1, -1, -1] = -70000.0  # beyond what FP16 holds
    with np.errstate(over="ignore"):
        powers = np.exp2(rng.integers(-8, 8, shape)).astype(np.float32) * rng.choice([-1, 1], shape).astype(np.float32)
        tiny = (base * np.float32(1e-38)) * np.float32(1e-3)
    return [
        ("zero blocks", zeros),
        ("all zero", np.zeros(shape, np.float32)),
        ("powers of two", powers),
        ("wide", spread),
        ("bf16 max", one_big),
        ("all bf16 max", np.full(shape, BF16_MAX, np.float32)),
        ("subnormal", tiny),
        ("smallest subnormal", np.full(shape, 1e-45, np.float32)),
        ("one ulp under the fp32 limit", np.full(shape, np.finfo(np.float32).max, np.float32)),
        ("not bf16", normal(*shape, seed=8, bf16=False)),
    ]


@pytest.mark.parametrize("d", DIMS)
@pytest.mark.parametrize("axis", [-1, -2])
def test_mxfp4_on_awkward_shapes(d: int, axis: int) -> None:
    for n, rule in zip([*TOKENS, 64], [*RULES, "uos", "4"], strict=True):
        x = normal(2, 3, n, d, seed=n * d)
        same(through(x, Quantizer("mxfp4", scale_rule=rule), axis), oracle_formats.mxfp4(x, axis, rule_of(rule)))


def rule_of(rule: str) -> str | float:
    return rule if rule.isalpha() else float(rule)


@pytest.mark.parametrize("d", DIMS)
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("tensor_scale", [False, True])
def test_nvfp4_on_awkward_shapes(d: int, axis: int, tensor_scale: bool) -> None:
    for n in TOKENS:
        x = normal(2, 3, n, d, seed=n * d) * 3
        got = through(x, Quantizer("nvfp4", tensor_scale=tensor_scale), axis)
        same(got, oracle_formats.nvfp4(x, axis, tensor_scale))


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("rule", RULES)
def test_mxfp4_on_hostile_blocks(axis: int, rule: str) -> None:
    for name, x in hostile((2, 2, 77, 80)):
        got = through(x, Quantizer("mxfp4", scale_rule=rule), axis)
        assert np.isfinite(got).all(), name
        same(got, oracle_formats.mxfp4(x, axis, rule_of(rule)))


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("tensor_scale", [False, True])
def test_nvfp4_on_hostile_blocks(axis: int, tensor_scale: bool) -> None:
    for name, x in hostile((2, 2, 77, 80)):
        got = through(x, Quantizer("nvfp4", tensor_scale=tensor_scale), axis)
        if name != "one ulp under the fp32 limit":  # 6·448·g may exceed it by rounding
            assert np.isfinite(got).all(), name
        same(got, oracle_formats.nvfp4(x, axis, tensor_scale))


def test_nvfp4_divided_by_the_exact_scale() -> None:
    p = np.exp2(-5 * np.random.default_rng(1).random((3, 40, 112))).astype(np.float32)
    got = through(p * np.float32(2688), Quantizer("nvfp4", divide_by="exact")) / np.float64(2688)
    expected, _ = oracle_formats.two_level(p)
    assert np.array_equal(got, expected)
    assert not np.array_equal(through(p * np.float32(2688), Quantizer("nvfp4")) / np.float64(2688), expected)


@pytest.mark.parametrize("fmt", ["e4m3", "int8"])
@pytest.mark.parametrize("granularity", ["tensor", "channel", "rows", "sage_threads"])
def test_eight_bit_granularities(fmt: str, granularity: str) -> None:
    roles = ("q", "k") if granularity == "sage_threads" else ("q",)
    for role in roles:
        for n in [*TOKENS, 128, 256]:
            x = normal(2, 2, n, 40, seed=n) * np.float32(5)
            for name, y in [("plain", x), *hostile((1, 2, n, 40))]:
                if name == "smallest subnormal":  # amax/127 of it is 0 by rounding: the divisor is 1
                    assert not through(y, Quantizer(fmt, granularity), role=role).any()
                got = through(y, Quantizer(fmt, granularity), role=role)
                same(got, oracle_formats.scaled(y, fmt, granularity, role))


@pytest.mark.parametrize("rounding", ["rne", "half_away"])
@pytest.mark.parametrize("eps", [0.0, 1e-7, 0.5])
def test_rounding_and_eps_of_int8(rounding: Any, eps: float) -> None:
    x = normal(2, 2, 130, 64)
    x[..., 0] = 127  # a scale of one: every half is a tie
    x = np.round(x * 8) / np.float32(2)
    x[0, 0, 16:32] = 0
    away = "away" if rounding == "half_away" else "rne"
    for role in ("q", "k"):
        got = through(x, Quantizer("int8", "sage_threads", rounding=rounding, eps=eps), role=role)
        same(got, oracle_formats.scaled(x, "int8", "sage_threads", role, rounding=away, eps=eps))


def groups_of(quantizer: Quantizer, shape: tuple[int, ...], axis: int, role: str, at: tuple[int, ...]) -> np.ndarray:
    """Elements that share a scale with element ``at``."""
    b, h, n, d = at
    out = np.zeros(shape, bool)
    if quantizer.tensor_scale or quantizer.granularity == "tensor":
        out[b, h] = True
    elif quantizer.granularity == "channel":
        out[b, h, :, d] = True
    elif quantizer.granularity == "block":
        size = 32 if quantizer.format == "mxfp4" else 16
        if axis == -1:
            out[b, h, n, d // size * size :][:size] = True
        else:
            out[b, h, n // size * size :, d][:size] = True
    else:
        labels = oracle_formats.group_labels(shape[-2], quantizer.granularity, role)
        out[b, h, labels == labels[n]] = True
    return out


QUANTIZERS = [
    Quantizer("mxfp4", scale_rule="uos"),
    Quantizer("nvfp4"),
    Quantizer("nvfp4", tensor_scale=True),
    Quantizer("nvfp4", divide_by="exact"),
    Quantizer("e4m3", "tensor"),
    Quantizer("e4m3", "channel"),
    Quantizer("int8", "rows"),
    Quantizer("int8", "sage_threads", rounding="half_away", eps=1e-7),
]


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda z: f"{z.format}-{z.granularity}")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [-1, -2])
def test_one_non_finite_element_spoils_its_group_alone(quantizer: Quantizer, bad: float, axis: int) -> None:
    clean = normal(2, 2, 150, 80)
    x = clean.copy()
    at = (1, 0, 37, 50)
    x[at] = bad
    out = quantise(torch.from_numpy(x), quantizer, axis=axis, role="k")
    got = out.dequantise().numpy()
    assert np.array_equal(np.isnan(got), groups_of(quantizer, x.shape, axis, "k", at))
    intact = ~np.isnan(got)
    assert np.array_equal(got[intact], through(clean, quantizer, axis, "k")[intact])


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda z: f"{z.format}-{z.granularity}")
def test_strides_dtypes_and_an_untouched_input(quantizer: Quantizer) -> None:
    x = torch.from_numpy(normal(2, 3, 40, 64))
    expected = quantise(x, quantizer).dequantise()
    bytes_before = x.numpy().tobytes()
    swapped = x.transpose(1, 2).contiguous().transpose(1, 2)
    strided = torch.empty(2, 3, 80, 128)[..., ::2, ::2].copy_(x)
    for view in (swapped, strided, x.bfloat16()):
        assert torch.equal(quantise(view, quantizer).dequantise(), expected)
    repeated = x[:1].expand(2, 3, 40, 64)
    assert torch.equal(quantise(repeated, quantizer).dequantise()[0], expected[0])
    assert x.numpy().tobytes() == bytes_before
