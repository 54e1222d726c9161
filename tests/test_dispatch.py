"""``attend``: what it refuses and in which words, the exact kernels, and the public API."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_mutations import neighbours

import mxbench
from mxbench import METHODS, AttentionSpec, attend, kernels
from mxbench.dispatch import IMPLS, default_impl, unsupported
from mxbench.errors import UserError
from mxbench.kernels import EXACT, FAMILY
from mxbench.kernels.prepass_plan import reason

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
    assert default_impl(METHODS["fp16"].spec, CPU, torch.float32) == "sdpa"
    assert default_impl(AttentionSpec(row_sum="quantised", kv_tile=64), CPU, torch.float32) == "sdpa"
    assert {default_impl(m.spec, CPU, torch.float32) for n, m in METHODS.items() if n != "fp16"} == {"reference"}
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
    assert unsupported(METHODS["fp16"].spec, "flash", cuda, torch.float16) is None
    assert "float32" in (unsupported(METHODS["fp16"].spec, "flash", cuda, torch.float32) or "")
    with pytest.raises(UserError, match="takes no key mask"):
        EXACT["flash"].run(Q, K, V, torch.ones(1, 1, dtype=torch.bool))
    reason = unsupported(METHODS["fp16"].spec, "cudnn", cuda, torch.float32)
    assert reason == "cuDNN attention takes float16 or bfloat16, and the operands are float32"
    assert all(unsupported(m.spec, "reference", CPU, torch.float16) is None for m in METHODS.values())
    assert list(IMPLS) == ["reference", *FAMILY, *EXACT]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("impl", FAMILY)
def test_on_a_cpu_the_kernels_say_what_they_need(impl: str, method: str) -> None:
    assert unsupported(METHODS[method].spec, impl, CPU, torch.bfloat16) == "its kernels need a CUDA device"
    said = f"impl '{impl}' cannot run here: its kernels need a CUDA device; use impl 'reference'"
    with pytest.raises(UserError, match=said):
        attend(Q, K, V, METHODS[method], impl=impl)


def test_asking_on_a_cpu_does_not_import_triton() -> None:
    code = """
import sys, torch
from mxbench import METHODS, attend
from mxbench.dispatch import IMPLS, unsupported
import mxbench.kernels.prepass_plan, mxbench.kernels.fused_config
for impl in IMPLS:
    unsupported(METHODS["mxattn"].spec, impl, torch.device("cpu"), torch.float32)
attend(*torch.ones(3, 1, 1, 8, 32), "mxattn")
sys.exit("triton" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


FAST = {"mxfp4", "mxfp4-tfs", "mxfp4-oas", "mxattn", "sage2", "fp8", "vc8"}
FP4 = {"mxfp4", "mxfp4-tfs", "mxfp4-oas", "mxattn", "nvfp4", "nvfp4-sage", "vc4"}
GPU = torch.device("cuda:1")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let torch see a device of a compute capability, or an AMD one of an architecture."""
    pytest.importorskip("triton")
    monkeypatch.setattr(kernels, "_interpreted", lambda: False)

    def seen(capability: tuple[int, int], amd: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.version, "hip", None if amd is None else "7.0")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName=amd))

    return seen


def computed(impl: str, dtype: torch.dtype = torch.bfloat16, dims: tuple[int, int] | None = None) -> set[str]:
    return {name for name, m in METHODS.items() if unsupported(m.spec, impl, GPU, dtype, dims) is None}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_which_kernels_compute_which_method_on_which_device(gpu: Callable[..., None], dtype: torch.dtype) -> None:
    quantised = set(METHODS) - {"fp16"}
    for capability, fp4 in (((9, 0), set()), ((10, 0), FP4), ((10, 3), FP4), ((12, 0), set())):
        gpu(capability)
        assert computed("conformance", dtype) == quantised
        assert computed("fast", dtype) == FAST
        assert computed("native", dtype) == fp4
    gpu((8, 9))
    assert [computed(impl, dtype) for impl in FAMILY] == [set()] * 3
    gpu((9, 5), "gfx950:sramecc+:xnack-")
    mxfp4 = {name for name in FP4 if METHODS[name].spec.q.format == "mxfp4"}  # scales of E8M0 alone
    assert [computed(impl, dtype) for impl in FAMILY] == [set(), set(), mxfp4]
    gpu((9, 4), "gfx942:sramecc+:xnack-")
    assert [computed(impl, dtype) for impl in FAMILY] == [set()] * 3


def test_the_reasons_of_the_kernels(gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def said(method: AttentionSpec | str, impl: str, dims: tuple[int, int] | None = None) -> str | None:
        spec = METHODS[method].spec if isinstance(method, str) else method
        return unsupported(spec, impl, GPU, torch.float16, dims)

    gpu((8, 9))
    for impl in ("conformance", "fast"):
        assert said("vc8", impl) == "its kernels need compute capability 9.0, and this device has 8.9"
    gpu((9, 0))
    for impl in ("conformance", "fast"):
        assert said("fp16", impl) == "the method quantises nothing, which impl 'auto' leaves to sdpa"
        assert said("vc8", impl, (512, 64)) == "the head dimension is 512, and the fused kernels go up to 256"
        assert said("vc8", impl, (64, 257)) == "the head dimension is 257, and the fused kernels go up to 256"
        tile = replace(METHODS["mxattn"].spec, kv_tile=96)
        assert said(tile, impl) == "kv_tile is 96, and the fused kernels know 32, 64, 128 and 256"
    assert said("nvfp4", "fast") == "no 8-bit type of the matrix units holds the nvfp4 values of q"
    unquantised = replace(METHODS["mxattn"].spec, k=None)
    assert said(unquantised, "conformance") == "k is not quantised, and bfloat16 would round it"
    assert said("mxattn", "native") == "its kernels need FP4 matrix units: compute capability 10, or gfx950"
    gpu((10, 0))
    assert said("sage2", "native") == ("Q, K, V and P are e4m3, int8, and the matrix units take one FP4 format for all")
    assert said("mxattn", "native", (96, 96)) == "the head dimension is 96, and the native kernel knows 64, 128 and 256"
    monkeypatch.setattr(kernels, "_interpreted", lambda: True)
    assert said("mxattn", "fast") == "TRITON_INTERPRET is set, and the interpreter computes on the CPU"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert {said("mxattn", impl) for impl in FAMILY} == {"its kernels need Triton, which is not installed"}


def test_auto_on_cuda_takes_fast_then_conformance_then_the_reference(
    gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(dims: tuple[int, int] | None = None) -> dict[str, str]:
        return {name: default_impl(m.spec, GPU, torch.float16, dims) for name, m in METHODS.items()}

    kept = dict.fromkeys(METHODS, "reference") | {"fp16": "sdpa"}
    gpu((9, 0))
    assert chosen() == dict.fromkeys(METHODS, "conformance") | dict.fromkeys(FAST, "fast") | {"fp16": "sdpa"}
    assert chosen((512, 512)) == kept
    gpu((8, 0))
    assert chosen() == kept
    gpu((9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert chosen() == kept


def test_what_fast_holds_conformance_holds() -> None:
    """So that what E5M2 cannot hold has somewhere to go."""
    held = 0
    for method in METHODS:
        for _, spec in [("itself", METHODS[method].spec), *neighbours(method)]:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                if reason(spec, "fast", dtype) is None:
                    held += 1
                    assert reason(spec, "conformance", dtype) is None, (method, spec)
    assert held > 100


def test_a_gradient_is_refused_by_the_reference_and_passes_through_sdpa() -> None:
    q = Q.clone().requires_grad_()
    with pytest.raises(UserError, match=r"impl 'reference' has none; call inside torch.no_grad\(\)"):
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
