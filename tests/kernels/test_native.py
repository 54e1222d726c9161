"""Attention on packed FP4 operands: in the interpreter, and the instructions that it compiles to."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from mxbench import METHODS
from mxbench.attention.reference import prepare, walk
from mxbench.errors import UserError

pytest.importorskip("triton")

from mxbench.kernels.native import hold_native, native, native_unsuited

SPECS = {name: method.spec for name, method in METHODS.items()}
FP4 = ["mxfp4", "mxfp4-tfs", "mxfp4-oas", "mxattn", "nvfp4", "nvfp4-sage", "vc4"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def decoded(codes: np.ndarray, scale: np.ndarray, e8m0: bool) -> np.ndarray:
    """FP32 ``[R, C]`` of codes ``[R, C/2]`` and scales ``[R, C/block]``, by ml_dtypes."""
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(codes.shape[0], -1)
    values = nibbles.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    kind = ml_dtypes.float8_e8m0fnu if e8m0 else ml_dtypes.float8_e4m3fn
    scales = np.ascontiguousarray(scale).view(np.uint8).view(kind).astype(np.float32)
    return values * np.repeat(scales, values.shape[1] // scales.shape[1], 1)


@pytest.fixture(autouse=True)
def _scaled_dot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The interpreter lacks the scaled dot."""
    from triton.runtime import interpreter

    def dot(_self, a, a_scale, _a_kind, b, b_scale, _b_kind, _fast, _a_pack, _b_pack, acc):  # type: ignore[no-untyped-def]
        e8m0 = a_scale.dtype.scalar.name == "uint8"
        left = decoded(a.data, a_scale.data, e8m0)
        right = decoded(b.data.T, b_scale.data, e8m0)
        return interpreter.TensorHandle(left @ right.T + acc.data, acc.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot_scaled", dot, raising=False)
    with np.errstate(all="ignore"):
        yield


def tensors(nq: int, nk: int, d: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(nk)
    q, k, v = (torch.randn(1, 2, n, d, generator=generator).to(DEVICE) for n in (nq, nk, nk))
    return [q * 1.5, k, v + 0.5]


@pytest.mark.parametrize("n", [1, 77, 300])
@pytest.mark.parametrize("name", FP4)
def test_it_computes_what_the_reference_does(name: str, n: int) -> None:
    spec = SPECS[name]
    if spec.q.format == "nvfp4" and DEVICE == "cuda" and torch.cuda.get_device_capability()[0] < 10:
        pytest.skip("this GPU has no FP4 units: Triton emulates the scaled product of MXFP4 alone")
    q, k, v = tensors(70, n, 64)
    expected = walk(prepare(q, k, v, spec), spec)
    got = native(hold_native(q, k, v, spec), spec, torch.float32, block_m=64)
    assert float((got - expected).norm() / expected.norm()) < (1e-5 if DEVICE == "cpu" else 1e-3)


@pytest.mark.parametrize("name", FP4)
def test_operands_decode_to_the_reference(name: str) -> None:
    spec = SPECS[name]
    q, k, v = (x.cpu() for x in tensors(20, 150, 64))
    held, operands = hold_native(q, k, v, spec), prepare(q, k, v, spec)
    e8m0 = spec.q is not None and spec.q.format == "mxfp4"
    for head in (0, 1):
        if held.score_factor is None:
            for name_, x in (("q", operands.q), ("k", operands.k)):
                codes, scale = getattr(held, name_)[0, head].numpy(), getattr(held, f"{name_}_scale")[0, head].numpy()
                np.testing.assert_array_equal(decoded(codes, scale, e8m0), x[0, head].numpy())
            values = decoded(held.v[0, head].numpy(), held.v_scale[0, head].numpy(), e8m0)
            np.testing.assert_array_equal(values[:, :150].T, operands.v[0, head].numpy())
            assert not values[:, 150:].any()
        else:
            assert held.value_factor is not None
            values = decoded(held.v[0, head].numpy(), held.v_scale[0, head].numpy(), e8m0)
            values = values[:, :150].T * held.value_factor[0, head].item()
            np.testing.assert_allclose(values, operands.v[0, head].numpy(), rtol=1e-6)


def test_a_nan_score_is_a_nan_row() -> None:
    spec = SPECS["mxattn"]
    held = hold_native(*tensors(20, 150, 64), spec)
    ones = torch.ones(1, 2, device=DEVICE)
    factor = torch.tensor([[1.0, float("nan")]], device=DEVICE)
    got = native(dataclasses.replace(held, score_factor=factor, value_factor=ones), spec, torch.float32, block_m=64)
    assert got[0, 1].isnan().all() and got[0, 0].isfinite().all()


def test_what_it_does_not_compute_is_an_error() -> None:
    q, k, v = tensors(4, 40, 64)
    with pytest.raises(UserError, match="one FP4 format for all"):
        hold_native(q, k, v, SPECS["vc8"])
    wide = native_unsuited(SPECS["mxattn"], 80, 64)
    assert wide == "the head dimension is 80, and the native kernel knows 64, 128 and 256"
    odd = native_unsuited(dataclasses.replace(SPECS["mxattn"], kv_tile=32), 64, 64)
    assert odd == "kv_tile is 32, and the native kernel knows 64, 128 and 256"


@pytest.mark.slow
def test_the_assembly_holds_scaled_fp4_matrix_instructions() -> None:
    mx, nv = "kind::mxf4.block_scale.scale_vec::2X", "kind::mxf4nvf4.block_scale.scale_vec::4X"
    cases = {
        "mxattn,sm100": f"tcgen05.mma.cta_group::1.{mx}",
        "nvfp4,sm100": f"tcgen05.mma.cta_group::1.{nv}",
        "nvfp4-sage,sm100": f"tcgen05.mma.cta_group::1.{nv}",
        "vc4,sm100": f"tcgen05.mma.cta_group::1.{nv}",
        "mxattn,gfx950": "v_mfma_scale_f32_32x32x64_f8f6f4 blgp:4 cbsz:4",  # 4 is FP4, of either operand
        "mxfp4,gfx950": "v_mfma_scale_f32_32x32x64_f8f6f4 blgp:4 cbsz:4",
    }
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    program = [sys.executable, str(Path(__file__).with_name("ahead_of_time.py")), "native", *cases]
    result = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for case, found in zip(cases, json.loads(result.stdout), strict=True):
        assert found["instructions"] == [cases[case]], case
