"""Means and rotations of Q and K against FP64."""

from __future__ import annotations

import numpy as np
import oracle_methods
import pytest
import torch
from attention_cases import distance, grid, normal

from mxbench.attention.qk import contiguous_fp32, hadamard_matrix, prepare_qk
from mxbench.attention.spec import AttentionSpec, Hadamard, KMean, QBlockMean
from mxbench.errors import UserError


@pytest.mark.parametrize("d", [1, 2, 32, 64, 128, 256])
@pytest.mark.parametrize("seed", [None, 1234])
def test_the_rotation(d: int, seed: int | None) -> None:
    r = hadamard_matrix(d, seed).double()
    assert torch.allclose(r @ r.T, torch.eye(d, dtype=torch.float64), atol=1e-6)
    signs = None
    if seed is not None:
        signs = torch.randint(0, 2, (d,), generator=torch.Generator("cpu").manual_seed(seed)).numpy() * 2 - 1
    x = normal(1, 1, 50, d)
    ready = prepare_qk(x, x + 1, AttentionSpec(qk=(Hadamard(seed),)))
    assert distance(ready.q[0, 0], oracle_methods.hadamard(x[0, 0].numpy(), signs)) < 2e-7
    assert distance(ready.k[0, 0], oracle_methods.hadamard((x + 1)[0, 0].numpy(), signs)) < 2e-7
    if signs is not None and d >= 32:
        assert 0 < (signs > 0).sum() < d


@pytest.mark.parametrize("d", [32, 64, 128, 256])
def test_sums_of_short_values_are_exact_so_the_rotation_has_one_rounding(d: int) -> None:
    x = grid(1, 1, 200, d)
    ready = prepare_qk(x, x, AttentionSpec(qk=(Hadamard(),)))
    sums = torch.from_numpy(oracle_methods.hadamard(np.eye(d, dtype=np.float32))).sign().double()
    expected = (x.double() @ sums).float() * torch.tensor(d**-0.5, dtype=torch.float32)
    assert torch.equal(ready.q, expected)


@pytest.mark.parametrize("d", [0, 3, 80, 96, 112])
def test_other_widths_are_refused(d: int) -> None:
    with pytest.raises(UserError, match=f"needs a power of two, and D is {d}; use a method without it"):
        hadamard_matrix(d)


@pytest.mark.parametrize("n", [1, 77, 129, 300])
def test_means(n: int) -> None:
    q, k = normal(2, 2, n, 40), normal(2, 2, n, 40, seed=1) + 30
    ready = prepare_qk(q, k, AttentionSpec(qk=(KMean(), QBlockMean())))
    smooth_k = k.double() - k.double().mean(-2, keepdim=True)
    assert torch.allclose(ready.k.double(), smooth_k, atol=1e-5)
    assert ready.owed is not None
    assert ready.owed.shape == (2, 2, -(-n // 128), n)
    assert ready.owed_rows == 128
    for i, start in enumerate(range(0, n, 128)):
        block = q[:, :, start : start + 128].double()
        mean = block.mean(-2, keepdim=True)
        assert torch.allclose(ready.q[:, :, start : start + 128].double(), block - mean, atol=1e-6)
        assert torch.allclose(ready.owed[:, :, i : i + 1].double(), mean @ smooth_k.mT, atol=1e-4)


def test_stages_leave_exact_scores_as_they_are() -> None:
    """Up to a constant a row: what the softmax does not see."""
    q, k = normal(1, 2, 140, 64), normal(1, 2, 200, 64, seed=1)
    ready = prepare_qk(q, k, AttentionSpec(qk=(KMean(), QBlockMean(), Hadamard(3))))
    assert ready.owed is not None
    scores = ready.q.double() @ ready.k.double().mT + ready.owed.double().repeat_interleave(128, 2)[:, :, :140]
    difference = scores - q.double() @ k.double().mT
    assert (difference - difference[..., :1]).abs().max() < 1e-4


def test_fp32_in_one_order_of_memory() -> None:
    x = normal(2, 3, 4, 5)
    for view in (x, x.transpose(1, 2), x.bfloat16().transpose(-1, -2), x.expand(2, 3, 4, 5)[:, ::2]):
        got = contiguous_fp32(view)
        assert got.dtype == torch.float32
        assert got.is_contiguous()
        assert torch.equal(got, view.float())
