"""Inputs that have broken other implementations: each method must say NaN, or the right number, and hide nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle_formats
import pytest
import torch
from attention_cases import SMOOTH, distance, exact, grouped, normal, oracle, reference

from mxbench import METHODS, attend

BF16_MAX = torch.finfo(torch.bfloat16).max


def operands(nk: int = 150, d: int = 64, nq: int = 40) -> list[torch.Tensor]:
    return [normal(2, 2, nq, d), normal(2, 2, nk, d, seed=1), normal(2, 2, nk, d, seed=2)]


def stored(name: str, v: torch.Tensor) -> np.ndarray:
    """V after the method's own quantisation, for a V without residual under V-Smooth."""
    spec, x = METHODS[name].spec, v.numpy()
    if name in SMOOTH:
        return oracle_formats.bf16(x)
    if spec.v is None:
        return x
    if spec.v.format == "mxfp4":
        return oracle_formats.mxfp4(x, -2, spec.v.scale_rule)
    if spec.v.format == "nvfp4":
        return oracle_formats.nvfp4(x, -2, spec.v.tensor_scale)
    return oracle_formats.scaled(x, "e4m3", spec.v.granularity)


@pytest.mark.parametrize("name", METHODS)
def test_a_zero_channel_of_v_stays_zero(name: str) -> None:
    q, k, v = operands()
    v[..., 5] = 0
    v[0, 1] = 0
    got = reference(name, q, k, v)
    assert got.isfinite().all()
    assert not got[..., 5].any()
    assert not got[0, 1].any()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("which", ["q", "k", "v", "all", "blocks"])
def test_zeros(name: str, which: str) -> None:
    q, k, v = operands()
    if which == "blocks":
        for x in (q, k, v):
            x[:, :, 16:48] = 0
            x[..., 32:] = 0
    for letter, x in zip("qkv", (q, k, v), strict=True):
        if which in (letter, "all"):
            x.zero_()
    got = reference(name, q, k, v)
    assert got.isfinite().all()
    if v.any():
        assert distance(got, oracle(name, q, k, v, **grouped(name, v))) < 2e-3
    else:
        assert not got.any()


@pytest.mark.parametrize("name", METHODS)
def test_one_key_gives_its_value(name: str) -> None:
    q, k, v = operands(1)
    factor = 1.03125 if name == "nvfp4" else 1.0  # E4M3(1/6)·6
    expected = np.broadcast_to(factor * stored(name, v), v.expand(2, 2, 40, 64).shape)
    assert reference(name, q, k, v).numpy() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_a_constant_v(name: str) -> None:
    q, k, v = operands(301)
    v[:] = v[:, :, :1]
    v_hat = np.broadcast_to(stored(name, v)[:, :, :1], q.shape)
    off = distance(reference(name, q, k, v), v_hat)
    if METHODS[name].spec.row_sum == "quantised" or name in SMOOTH or name == "fp16":
        assert off < 1e-6
    elif name.startswith("mxfp4"):
        assert 0.03 < off < 0.2
    else:
        assert 1e-4 < off < 0.1


def test_the_quantised_row_sum_takes_out_the_bias_of_a_biased_v() -> None:
    q, k, v = operands(512)
    v = v + 5
    spec = METHODS["mxattn"].spec
    direct = attend(q, k, v, replace(spec, row_sum="exact"), impl="reference")
    truth = exact(q, k, v)
    assert distance(reference("mxattn", q, k, v), truth) < 0.5 * distance(direct, truth)


POISON = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("bad", POISON)
def test_one_non_finite_element_is_never_hidden(name: str, which: int, bad: float) -> None:
    tensors = operands()
    tensors[which][1, 0, 21, 37] = bad
    with np.errstate(all="ignore"):
        expected = oracle(name, *tensors, **grouped(name, tensors[2]))
    got = reference(name, *tensors)
    assert np.array_equal(np.isfinite(got.numpy()), np.isfinite(expected))
    sick = ~got.isfinite()
    assert not sick[0].any()
    assert not sick[1, 1].any()
    if METHODS[name].spec.quantised:
        assert torch.equal(sick, got.isnan())
        # What the element would have reached is NaN whole: its row, every row, or its channel.
        assert sick[1, 0, 21].all() if which == 0 else sick[1, 0].all() if which == 1 else sick[1, 0, :, 37].all()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("big", [BF16_MAX, -BF16_MAX, 70000.0])
def test_a_huge_value_in_v(name: str, big: float) -> None:
    q, k, v = operands()
    v[0, 0, 7, 3] = big
    v[1, 1, 149, 60] = -big
    got = reference(name, q, k, v)
    assert got.isfinite().all()
    expected = oracle(name, q, k, v, **grouped(name, v))
    for channel in (slice(0, 3), slice(3, 4), slice(4, 60), slice(60, 61), slice(61, None)):
        if np.abs(expected[..., channel]).max() > 0:
            assert distance(got[..., channel], expected[..., channel]) < 2e-3


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("which", [0, 1])
def test_a_row_that_a_huge_value_in_q_or_k_leaves_finite_is_right(name: str, which: int) -> None:
    tensors = operands()
    tensors[which][0, 1, 9, 11] = BF16_MAX
    got = reference(name, *tensors).numpy()
    expected = oracle(name, *tensors, **grouped(name, tensors[2]))
    known = np.isfinite(got).all(-1)
    assert known[0, 0].all()
    assert known[1].all()
    off = np.abs(got - expected)[known].max(-1)
    assert np.median(off) < 1e-5  # scores of 1e38 that cancel may leave another winner in a row of FP32


@pytest.mark.parametrize("name", METHODS)
def test_scores_that_differ_by_thousands(name: str) -> None:
    q, k, v = operands()
    got = reference(name, 60 * q, 60 * k, v)
    assert got.isfinite().all()
    assert distance(got, oracle(name, 60 * q, 60 * k, v, **grouped(name, v))) < 1e-2


@pytest.mark.parametrize("name", METHODS)
def test_equal_scores_stay_equal(name: str) -> None:
    """Keys that tie for the row maximum have P = 1 each; half an ulp less is another block exponent under OCP."""
    q, k, v = operands(256)
    k[:, :, 128:] = k[:, :, :128].flip(-2)
    assert distance(reference(name, q, k, v), oracle(name, q, k, v, **grouped(name, v))) < 2e-3


@pytest.mark.parametrize("name", METHODS)
def test_inputs_keep_their_bytes(name: str) -> None:
    tensors = [x.to(torch.float32) for x in operands()]
    mask = torch.arange(150).expand(2, 150) < 99
    before = [x.numpy().tobytes() for x in (*tensors, mask)]
    reference(name, *tensors)
    reference(name, *tensors, key_mask=mask)
    assert [x.numpy().tobytes() for x in (*tensors, mask)] == before
    halves = [x.bfloat16() for x in tensors]
    copies = [x.clone() for x in halves]
    reference(name, *halves)
    assert all(torch.equal(x, y) for x, y in zip(halves, copies, strict=True))


def test_strides_beyond_two_to_the_31() -> None:
    far = 2**31 + 4097 + 400 * 64
    try:
        storage = torch.empty(far + 400 * 64, dtype=torch.bfloat16)  # only the pages that are written take memory
    except RuntimeError:
        pytest.skip("this machine does not lend 4 GiB of address space")
    q, k, v = operands()
    views: list[torch.Tensor] = []
    for x in (q, k, v):
        start = sum(view.shape[2] * 64 for view in views)
        views.append(storage.as_strided((1, 2, x.shape[2], 64), (0, far - 400 * 64, 64, 1), start).copy_(x[:1]))
    for name in METHODS:
        assert torch.equal(reference(name, *views), reference(name, *(x[:1].bfloat16() for x in (q, k, v))))
