"""``attend``: what it refuses and in which words, the exact kernels, and the public API."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import mxbench
from mxbench import METHODS, AttentionSpec, attend
from mxbench.dispatch import IMPLS, default_impl, unsupported
from mxbench.errors import UserError
from mxbench.kernels import EXACT

CPU = torch.device("cpu")


def operands(nk: int = 77, nq: int = 20, d: int = 32, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, n, d, generator=g).to(dtype) for n in (nq, nk, nk)]


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    return bool((got.double() - expected.double()).norm() <= tolerance * expected.double().norm())


def test_the_public_api() -> None:
    assert mxbench.__all__ == ["METHODS", "AttentionSpec", "__version__", "attach", "attend"]
    assert isinstance(METHODS["mxattn"].spec, AttentionSpec)
    assert callable(mxbench.attach)
    assert dir(mxbench) == sorted(mxbench.__all__)
    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        mxbench.atend  # noqa: B018
    out = attend(*operands(), METHODS["mxattn"], impl="reference")
    assert out.shape == (2, 3, 20, 32)


def test_importing_mxbench_does_not_wait_for_torch() -> None:
    code = "import sys, mxbench; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_method_by_entry_spec_and_name() -> None:
    q, k, v = operands()
    outs = [attend(q, k, v, what) for what in (METHODS["sage2"], METHODS["sage2"].spec, "sage2")]
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    with pytest.raises(UserError, match="unknown method 'sage'"):
        attend(q, k, v, "sage")
    with pytest.raises(UserError, match="function is no method; pass an AttentionSpec"):
        attend(q, k, v, lambda q, _k, _v: q)  # type: ignore[arg-type]


def test_auto_takes_sdpa_for_what_quantises_nothing_and_the_reference_for_the_rest() -> None:
    assert default_impl(METHODS["fp16"].spec) == "sdpa"
    assert default_impl(AttentionSpec(row_sum="quantised", kv_tile=64)) == "sdpa"
    assert {default_impl(m.spec) for n, m in METHODS.items() if n != "fp16"} == {"reference"}
    q, k, v = operands()
    assert torch.equal(attend(q, k, v, METHODS["fp16"]), attend(q, k, v, METHODS["fp16"], impl="sdpa"))
    assert torch.equal(attend(q, k, v, METHODS["vc8"]), attend(q, k, v, METHODS["vc8"], impl="reference"))


Q, K, V = operands()


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (Q[0], K[0], V[0], "do not fit together"),
        (Q, K[:, :, :5], V, r"do not fit together: q \(2, 3, 20, 32\), k \(2, 3, 5, 32\), v \(2, 3, 77, 32\)"),
        (Q[..., :8], K, V, "do not fit together"),
        (Q[:1], K, V, "do not fit together"),
        (Q[:, :1], K, V, "do not fit together"),  # grouped queries
        (Q.expand(2, 3, 20, 32)[:, :, :0], K, V, "an operand is empty"),
        (Q, K[:, :, :0], V[:, :, :0], "an operand is empty"),
        (Q[..., :0], K[..., :0], V, "an operand is empty"),
        (Q, K, V[..., :0], "an operand is empty"),
        (Q[:0], K[:0], V[:0], "an operand is empty"),
        (Q[:, :0], K[:, :0], V[:, :0], "an operand is empty"),
        (
            Q.bfloat16(),
            K,
            V,
            r"operands differ: torch.bfloat16 on cpu, torch.float32 on .*; bring them to one dtype",
        ),
        (Q.double(), K.double(), V.double(), "operands are torch.float64; use float16, bfloat16 or float32"),
        (Q.int(), K.int(), V.int(), "operands are torch.int32"),
    ],
)
@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_operands_that_do_not_fit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, message: str, impl: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        attend(q, k, v, METHODS["fp16"], impl=impl)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "mask",
    [torch.ones(2, 76).bool(), torch.ones(77).bool(), torch.ones(2, 1, 1, 77).bool(), torch.ones(2, 77),
     torch.ones(1, 77).bool(), torch.ones(2, 77, dtype=torch.bool, device="meta")],
    ids=["short", "flat", "4d", "float", "broadcast", "device"],
)  # fmt: skip
@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_masks_that_do_not_fit(mask: torch.Tensor, impl: str) -> None:
    with pytest.raises(UserError, match=r"key_mask is .*; pass a bool mask of shape \(2, 77\) on cpu, True for real"):
        attend(Q, K, V, METHODS["fp16"], impl=impl, key_mask=mask)


def test_implementations_that_do_not_exist_or_do_not_fit() -> None:
    with pytest.raises(UserError, match="unknown impl 'refrence'; did you mean reference"):
        attend(Q, K, V, METHODS["mxattn"], impl="refrence")
    with pytest.raises(UserError, match="unknown impl 'sdp'; did you mean sdpa"):
        unsupported(METHODS["fp16"].spec, "sdp", CPU, torch.float32)
    for impl in EXACT:
        with pytest.raises(UserError, match=f"impl '{impl}' cannot run here: {impl} is an exact kernel and the method"):
            attend(Q, K, V, METHODS["mxfp4"], impl=impl)
    with pytest.raises(UserError, match="impl 'cudnn' cannot run here: cuDNN attention needs a CUDA device; use impl"):
        attend(Q, K, V, METHODS["fp16"], impl="cudnn")
    cuda = torch.device("cuda")
    assert unsupported(METHODS["fp16"].spec, "cudnn", cuda, torch.bfloat16) is None
    reason = unsupported(METHODS["fp16"].spec, "cudnn", cuda, torch.float32)
    assert reason == "cuDNN attention takes float16 or bfloat16, and the operands are float32"
    assert all(unsupported(m.spec, "reference", CPU, torch.float16) is None for m in METHODS.values())
    assert set(EXACT) < set(IMPLS)


def test_a_gradient_is_refused_by_the_reference_and_passes_through_sdpa() -> None:
    q = Q.clone().requires_grad_()
    with pytest.raises(UserError, match=r"the reference has none; call inside torch.no_grad\(\)"):
        attend(q, K, V, METHODS["mxattn"])
    with torch.no_grad():
        assert torch.equal(attend(q, K, V, METHODS["mxattn"]), attend(Q, K, V, METHODS["mxattn"]))
    assert attend(q, K, V, METHODS["fp16"]).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("nk", [1, 31, 77, 193])
def test_sdpa_and_the_reference_agree_on_exact_attention(dtype: torch.dtype, nk: int) -> None:
    q, k, v = operands(nk, dtype=dtype)
    got = attend(q, k, v, METHODS["fp16"], impl="sdpa")
    assert got.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    assert close(got, attend(q, k, v, METHODS["fp16"], impl="reference"), tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sdpa_under_a_mask(dtype: torch.dtype) -> None:
    q, k, v = operands(dtype=dtype)
    mask = torch.rand(2, 77, generator=torch.Generator().manual_seed(1)) < 0.6
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    expected = attend(q, k, v, METHODS["fp16"], impl="reference", key_mask=mask)
    got = attend(q, k, v, METHODS["fp16"], impl="sdpa", key_mask=mask)
    assert close(got, expected, tolerance)
    for poison in (float("nan"), float("inf"), 1e30):
        hidden = ~mask[:, None, :, None]
        dirty = attend(
            q, k.masked_fill(hidden, poison), v.masked_fill(hidden, poison), METHODS["fp16"], impl="sdpa", key_mask=mask
        )
        assert torch.equal(dirty, got)


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
@pytest.mark.parametrize("poison", [0.0, float("nan"), float("inf")])
def test_a_batch_element_without_keys_gives_zeros(impl: str, poison: float) -> None:
    mask = torch.ones(2, 77, dtype=torch.bool)
    mask[1] = False
    k, v = K.clone(), V.clone()
    k[1], v[1] = poison, poison
    got = attend(Q, k, v, METHODS["fp16"], impl=impl, key_mask=mask)
    assert not got[1].any()
    assert close(got[0], attend(Q, K, V, METHODS["fp16"], impl=impl)[0], 1e-6)


def test_sdpa_keeps_a_nan_of_a_real_key() -> None:
    v = V.clone()
    v[0, 1, 3, 5] = float("nan")
    for mask in (None, torch.ones(2, 77, dtype=torch.bool)):
        got = attend(Q, K, v, METHODS["fp16"], impl="sdpa", key_mask=mask)
        assert got[0, 1, :, 5].isnan().all()
        assert np.isfinite(got[1].numpy()).all()


def test_autocast_does_not_reach_sdpa() -> None:
    expected = attend(Q, K, V, METHODS["fp16"], impl="sdpa")
    with torch.autocast("cpu", torch.bfloat16):
        got: Any = attend(Q, K, V, METHODS["fp16"], impl="sdpa")
    assert got.dtype == torch.float32
    assert torch.equal(got, expected)
