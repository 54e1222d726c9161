"""Each method's reference against the oracle: shapes, strides, dtypes, masks, tiles, and the error against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_cases import HADAMARD, SMOOTH, distance, exact, grid, grouped, normal, oracle, reference

from mxbench import METHODS
from mxbench.attention.axes import apply
from mxbench.dispatch import attend
from mxbench.errors import UserError

DIMS = [32, 64, 80, 96, 112, 128, 256]
KEYS = [1, 17, 31, 77, 127, 129, 193, 512]

# A value within rounding of a tie may go either way: a K or V moves an output by up to 1e-2, a P by up to 1e-3.
CLOSE = 1e-2
ONE_P = 2e-3
MOSTLY = 2e-4


def operands(nk: int, d: int, *, nq: int = 45, b: int = 2, h: int = 3) -> tuple[torch.Tensor, ...]:
    return normal(b, h, nq, d, seed=nk), normal(b, h, nk, d, seed=nk + 1), normal(b, h, nk, d, seed=nk + d)


@pytest.mark.parametrize("name", METHODS)
def test_every_shape_agrees_with_the_oracle(name: str) -> None:
    distances = []
    for d in DIMS:
        if name in HADAMARD and d & (d - 1):
            with pytest.raises(UserError, match=f"needs a power of two, and D is {d}"):
                reference(name, *operands(17, d))
            continue
        for nk in KEYS:
            q, k, v = operands(nk, d, nq=21)
            got = reference(name, q, k, v)
            assert got.dtype == torch.float32
            assert got.shape == q.shape
            distances.append(distance(got, oracle(name, q, k, v, **grouped(name, v))))
    assert max(distances) < CLOSE
    assert np.median(distances) < MOSTLY


@pytest.mark.parametrize("name", METHODS)
def test_agreement_is_exact_where_the_arithmetic_before_p_is(name: str) -> None:
    q, k, v = grid(1, 2, 130, 64), grid(1, 2, 256, 64, seed=1) + 20, grid(1, 2, 256, 64, seed=2)
    assert distance(reference(name, q, k, v), oracle(name, q, k, v, **grouped(name, v))) < ONE_P


def test_fp16_is_softmax_attention() -> None:
    for nk in KEYS:
        q, k, v = operands(nk, 96)
        assert distance(reference("fp16", q, k, v), exact(q, k, v)) < 1e-5
    q, k, v = 30 * normal(1, 1, 9, 32), normal(1, 1, 300, 32, seed=1), normal(1, 1, 300, 32, seed=2)
    assert distance(reference("fp16", q, k, v), exact(q, k, v)) < 1e-5


BANDS = {
    "fp16": (0, 1e-6),
    "fp8": (0.03, 0.06),
    "sage2": (0.02, 0.045),
    "vc8": (0.02, 0.05),
    "nvfp4": (0.1, 0.25),
    "nvfp4-sage": (0.1, 0.25),
    "vc4": (0.1, 0.25),
}


@pytest.mark.parametrize("name", METHODS)
def test_error_against_float64(name: str) -> None:
    q, k, v = normal(1, 2, 256, 64), normal(1, 2, 640, 64, seed=1), normal(1, 2, 640, 64, seed=2)
    low, high = BANDS.get(name, (0.2, 0.32))
    assert low <= distance(reference(name, q, k, v), exact(q, k, v)) <= high


def test_a_large_mean_of_k_is_harmless_where_it_is_taken_out() -> None:
    q, k, v = normal(1, 2, 77, 64), normal(1, 2, 512, 64, seed=1), normal(1, 2, 512, 64, seed=2)
    far = k + 50 * normal(64, seed=3)
    truth = exact(q, k, v)
    for name in ("nvfp4-sage", "sage2", "vc8", "vc4"):
        assert distance(reference(name, q, far, v), exact(q, far, v)) < 1.1 * distance(reference(name, q, k, v), truth)
    for name in ("mxfp4", "nvfp4", "fp8"):
        assert distance(reference(name, q, far, v), exact(q, far, v)) > 2 * distance(reference(name, q, k, v), truth)


@pytest.mark.parametrize("name", METHODS)
def test_strides_change_nothing(name: str) -> None:
    q, k, v = operands(77, 64)
    expected = reference(name, q, k, v)
    tokens_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    columns = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v)]
    every_other = [torch.full((2, 3, 2 * x.shape[2], 128), 1e30)[:, :, ::2, 1::2].copy_(x) for x in (q, k, v)]
    for views in (tokens_first, columns, every_other):
        assert not any(x.is_contiguous() for x in views)
        assert torch.equal(reference(name, *views), expected)


def test_one_storage_with_offsets_and_repeated_heads() -> None:
    storage = normal(40_000)
    q = storage.as_strided((2, 3, 20, 64), (64, 0, 193, 1), 31)  # heads share their memory
    k = storage.as_strided((2, 3, 45, 64), (7001, 64, 193, 1), 977)
    v = k.expand(2, 3, 45, 64)
    for name in METHODS:
        assert torch.equal(reference(name, q, k, v), reference(name, q.clone(), k.clone(), v.clone()))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_inputs_are_only_upcast(name: str, dtype: torch.dtype) -> None:
    q, k, v = operands(129, 32)
    got = reference(name, q.to(dtype), k.to(dtype), v.to(dtype))
    assert got.dtype == dtype
    wide = reference(name, q.to(dtype).float(), k.to(dtype).float(), v.to(dtype).float())
    assert torch.equal(got, wide.to(dtype))


@pytest.mark.parametrize("name", METHODS)
def test_autocast_and_the_default_dtype_change_nothing(name: str) -> None:
    q, k, v = operands(150, 64)
    expected = reference(name, q, k, v)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(reference(name, q, k, v), expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(reference(name, q, k, v), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", METHODS)
def test_a_narrower_or_wider_v(name: str) -> None:
    q, k, v = operands(140, 64)
    got = reference(name, q, k, torch.cat([v, v[..., :17]], -1))
    assert got.shape == (2, 3, 45, 81)
    if name not in SMOOTH and name not in ("nvfp4", "fp8"):  # these group or scale by all channels
        assert torch.equal(got[..., :64], reference(name, q, k, v))


@pytest.mark.parametrize("name", METHODS)
def test_masked_keys_are_as_if_they_were_not_there(name: str) -> None:
    q, k, v = operands(150, 64, b=3)
    mask = torch.rand(3, 150, generator=torch.Generator().manual_seed(3)) < 0.8
    mask[1] = torch.arange(150) < 33
    mask[2] = False
    got = reference(name, q, k, v, key_mask=mask)
    for b in (0, 1):
        alone = [x[b : b + 1] for x in (q, k[:, :, mask[b]], v[:, :, mask[b]])]
        assert torch.equal(got[b : b + 1], reference(name, *alone))
    assert not got[2].any()
    for poison in (float("nan"), float("inf"), 1e30):
        hidden = ~mask[:, None, :, None]
        assert torch.equal(
            reference(name, q, k.masked_fill(hidden, poison), v.masked_fill(hidden, poison), key_mask=mask), got
        )


@pytest.mark.parametrize("name", METHODS)
def test_the_mask_of_the_oracle(name: str) -> None:
    q, k, v = operands(200, 64)
    mask = torch.rand(2, 200, generator=torch.Generator().manual_seed(4)) < 0.7
    options = {}
    if name in SMOOTH:
        options["permutation"] = [grouped(name, v[b : b + 1, :, mask[b]])["permutation"][0] for b in range(2)]
    expected = oracle(name, q, k, v, key_mask=mask.numpy(), **options)
    assert distance(reference(name, q, k, v, key_mask=mask), expected) < CLOSE


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kv_tile", [32, 64, 128, 256])
def test_every_tile_agrees_with_the_oracle(name: str, kv_tile: int) -> None:
    q, k, v = grid(1, 2, 70, 64), grid(1, 2, 333, 64, seed=1), grid(1, 2, 333, 64, seed=2)
    if name in SMOOTH and kv_tile == 256:
        with pytest.raises(UserError, match="does not divide V-Smooth's blocks of 128"):
            apply(METHODS[name].spec, "kv_tile", kv_tile)
        return
    got = attend(q, k, v, apply(METHODS[name].spec, "kv_tile", kv_tile), impl="reference")
    assert distance(got, oracle(name, q, k, v, kv_tile=kv_tile, **grouped(name, v))) < CLOSE


def test_the_tile_is_part_of_a_method() -> None:
    q, k, v = normal(1, 2, 128, 64), normal(1, 2, 512, 64, seed=1), normal(1, 2, 512, 64, seed=2)
    for name in ("mxfp4", "mxattn", "nvfp4"):
        outs = [attend(q, k, v, apply(METHODS[name].spec, "kv_tile", t), impl="reference") for t in (64, 128)]
        assert 0.005 < distance(outs[0], outs[1].double().numpy()) < 0.1
        errors = [distance(out, exact(q, k, v)) for out in outs]
        assert errors[0] == pytest.approx(errors[1], rel=0.1)


@pytest.mark.parametrize("name", ["mxattn", "nvfp4-sage", "vc8"])
@pytest.mark.parametrize("chunk", [1 << 8, 1 << 14, 75_000, 1 << 22])
def test_how_the_work_is_cut_changes_nothing(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from mxbench.attention import reference as module

    q, k, v = grid(1, 3, 400, 64), grid(1, 3, 200, 64, seed=1), grid(1, 3, 200, 64, seed=2)
    expected = reference(name, q, k, v)
    monkeypatch.setattr(module, "_CHUNK", chunk // torch.get_num_threads())
    assert distance(reference(name, q, k, v), expected.double().numpy()) < ONE_P
