"""The pre-pass against the reference's ``prepare``: what is held, times its factors, is the same number to the bit.

Inputs are multiples of 2^-6 inside ±4 wherever bits are compared: sums of them are exact in FP32, in any order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from prepass_checks import (
    DEVICE,
    PATHS,
    check,
    factored,
    in_order,
    kept,
    one_for_all,
    operands,
    scores,
    values,
    wanted,
)
from test_quantise_kernels import adversarial

from mxbench import METHODS
from mxbench.attention.qk import prepare_qk
from mxbench.attention.reference import prepare
from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec, Hadamard, KMean, QBlockMean, VSmooth
from mxbench.attention.value import GroupingState
from mxbench.errors import UserError
from mxbench.formats.block import quantise
from mxbench.formats.quantizer import Quantizer
from mxbench.kernels.prepass import hold, reason
from mxbench.kernels.prepass_config import PASSES
from mxbench.kernels.prepass_launch import Source, owed

SHAPES = [(1, 2, 1, 64), (2, 1, 17, 32), (1, 1, 129, 80), (1, 2, 193, 128)]

MX = Quantizer("mxfp4", scale_rule="uos")
NV = Quantizer("nvfp4", tensor_scale=True)
P8 = Quantizer("e4m3", "unit", prescale=256.0)


def scaled(format: str, granularity: str, **fields: Any) -> Quantizer:
    return Quantizer(format, granularity, **fields)


# Every granularity, and neighbours of the methods that take another way through the kernels.
OTHERS: dict[str, AttentionSpec] = {
    "int8 tensor": AttentionSpec(scaled("int8", "tensor"), scaled("int8", "tensor"), scaled("int8", "tensor"), P8),
    "rows e4m3": AttentionSpec(scaled("e4m3", "rows"), scaled("e4m3", "rows"), scaled("e4m3", "channel"), P8),
    "q rows, k tensor": AttentionSpec(scaled("int8", "rows"), scaled("int8", "tensor"), MX, MX),
    "channels": AttentionSpec(scaled("int8", "channel"), scaled("e4m3", "channel"), scaled("e4m3", "tensor"), P8),
    "threads e4m3": AttentionSpec(scaled("e4m3", "sage_threads", eps=0.01), scaled("e4m3", "sage_threads"), NV, MX),
    "half away": AttentionSpec(*[scaled("int8", "rows", rounding="half_away")] * 2, scaled("int8", "channel"), P8),
    "eps": AttentionSpec(*[scaled("int8", "tensor", eps=0.5)] * 2, scaled("e4m3", "channel", eps=0.25), P8),
    "tfs, 8": AttentionSpec(Quantizer("mxfp4", scale_rule="8"), Quantizer("mxfp4", scale_rule="tfs"), MX, MX),
    "smooth mx": AttentionSpec(MX, MX, MX, MX, qk=(KMean(),), v_smooth=VSmooth(clusters=5)),
    "smooth nv": AttentionSpec(NV, NV, NV, MX, v_smooth=VSmooth(layout="sequence")),
    "smooth tensor": AttentionSpec(NV, NV, scaled("e4m3", "tensor"), P8, v_smooth=VSmooth(clusters=7)),
    "blocks of 50": AttentionSpec(MX, MX, MX, MX, qk=(KMean(), QBlockMean(50))),
    "blocks of 256": AttentionSpec(NV, MX, MX, MX, qk=(QBlockMean(256),), v_smooth=VSmooth(clusters=3)),
    "blocks of 128, rows": AttentionSpec(*[scaled("int8", "rows")] * 2, MX, MX, qk=(QBlockMean(),)),
    "only q": AttentionSpec(q=MX, qk=(KMean(), Hadamard())),
    "only v": AttentionSpec(v=scaled("e4m3", "channel"), p=P8, v_smooth=VSmooth()),
    "only p": AttentionSpec(p=MX, v_smooth=VSmooth(clusters=2)),
    "signs": AttentionSpec(MX, MX, MX, MX, qk=(Hadamard(1234),)),
}
SPECS = {**{name: method.spec for name, method in METHODS.items()}, **OTHERS}


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """NumPy, which stands in for the device, warns where floating point overflows as it should."""
    with np.errstate(all="ignore"):
        yield


def fits(spec: AttentionSpec, shape: tuple[int, ...]) -> bool:
    return shape[-1] & (shape[-1] - 1) == 0 or spec.stage(Hadamard) is None


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", SPECS)
def test_every_spec_on_every_path(name: str, path: str) -> None:
    spec = SPECS[name]
    if (clause := reason(spec, path, torch.bfloat16)) is not None:
        with pytest.raises(UserError, match="cannot hold this method") as caught:
            hold(*operands(SHAPES[0]), spec, path)
        assert clause in str(caught.value)
        return
    for shape in SHAPES[1:3] if path == "float32" else SHAPES:
        if fits(spec, shape):
            tensors = operands(shape)
            check(kept(tensors, spec, path), wanted(tensors, spec), spec)


@pytest.mark.parametrize("tile", [32, 64])
@pytest.mark.parametrize("name", ["mxattn", "vc8", "vc4", "nvfp4-sage", "sage2", "blocks of 256"])
def test_the_tile_of_a_pass_changes_nothing(monkeypatch: pytest.MonkeyPatch, name: str, tile: int) -> None:
    spec, tensors = SPECS[name], operands((1, 1, 300, 64))
    for kind, shape in PASSES.items():
        monkeypatch.setitem(PASSES, kind, replace(shape, tile=tile))
    check(kept(tensors, spec, "conformance"), wanted(tensors, spec), spec)


@pytest.mark.parametrize("path", ["conformance", "fast"])
@pytest.mark.parametrize("name", ["mxattn", "vc8", "smoothed and rotated"])
def test_more_channels_than_a_rotation_has_registers_for(name: str, path: str) -> None:
    both = AttentionSpec(MX, MX, MX, MX, qk=(KMean(), QBlockMean(), Hadamard()))
    spec, tensors = both if name not in METHODS else METHODS[name].spec, operands((1, 1, 150, 256))
    check(kept(tensors, spec, path), wanted(tensors, spec), spec)


def owed_is_exact(d: int) -> None:
    """What is owed is the exact sum rounded once, but for one in twenty; the order of its keys changes nothing."""
    g = torch.Generator().manual_seed(d)
    scale = 1 + 30 * (torch.rand(d, generator=g) < 0.05)
    k = (torch.randn(1, 2, 150, d, generator=g) * scale + 3 * torch.randn(d, generator=g)).bfloat16()
    mean = k.float().mean(-2, keepdim=True)
    q_mean = torch.randn(1, 2, 70, d, generator=g) * scale
    got = owed(Source(k.to(DEVICE), None, mean.to(DEVICE), 150), q_mean.to(DEVICE)).cpu()
    exact = q_mean.double() @ (k.float() - mean).double().mT
    assert float((got.double() - exact).norm() / exact.norm()) < 4e-8  # FP32's own sums: 8e-8
    assert (got != exact.float()).float().mean() < 0.05
    for order in (16, 64, 128, 256):
        other = owed(Source(k.to(DEVICE), None, mean.to(DEVICE), 150), q_mean.to(DEVICE), order).cpu()
        assert other.shape[-1] == -(-150 // order) * order
        assert torch.equal(in_order(other, order), torch.nn.functional.pad(got, (0, -150 % order)))


@pytest.mark.parametrize("d", [64, 80, 128])
def test_what_is_owed_is_the_exact_sum_rounded_once(d: int) -> None:
    owed_is_exact(d)


@pytest.mark.gpu
@pytest.mark.parametrize("d", [32, 64, 80, 128, 200, 256])
def test_what_is_owed_is_exact_by_matrix_units(d: int) -> None:
    owed_is_exact(d)


def test_which_specs_a_path_holds() -> None:
    held = {path: [n for n in METHODS if reason(METHODS[n].spec, path, torch.bfloat16) is None] for path in PATHS}
    assert held["float32"] == list(METHODS)
    assert held["conformance"] == [n for n in METHODS if n != "fp16"]
    assert held["fast"] == [n for n in METHODS if n.startswith("mx") or n in ("sage2", "fp8", "vc8")]
    half = AttentionSpec(p=MX)
    assert reason(half, "conformance", torch.bfloat16) is None
    assert reason(half, "conformance", torch.float16) == "q is not quantised, and bfloat16 would round it"
    mean = replace(half, q=MX, qk=(KMean(),))
    assert reason(mean, "conformance", torch.bfloat16) == "k is not quantised, and bfloat16 would round it"
    mixed = AttentionSpec(MX, scaled("int8", "rows"), MX, MX)
    assert "q is mxfp4 and k is int8" in str(reason(mixed, "fast", torch.bfloat16))
    assert reason(replace(mixed, k=MX, p=None), "fast", torch.bfloat16) == "p is not quantised"
    with pytest.raises(UserError, match="unknown path 'slow'"):
        reason(half, "slow", torch.bfloat16)


@pytest.mark.parametrize("name", METHODS)
def test_holds_are_what_the_paths_promise(name: str) -> None:
    spec, tensors = METHODS[name].spec, operands((1, 2, 130, 32))
    for path in PATHS:
        if reason(spec, path, torch.bfloat16) is not None:
            continue
        held = kept(tensors, spec, path)
        types = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8}
        types |= {"e5m2": torch.float8_e5m2, "e4m3": torch.float8_e4m3fn}
        assert held.q.dtype == held.k.dtype == types[held.hold_qk]
        assert held.v.dtype == types[held.hold_pv]
        fast = {"sage2": ("int8", "e4m3"), "vc8": ("int8", "e4m3"), "fp8": ("bfloat16", "e4m3")}
        fast |= {"mxattn": ("e5m2", "e5m2")}  # the others are not rotated, and 14 bits of their sums are too few
        pair = {
            "float32": ("float32",) * 2,
            "conformance": ("bfloat16",) * 2,
            "fast": fast.get(name, ("bfloat16", "e5m2")),
        }[path]
        assert (held.hold_qk, held.hold_pv) == pair
        assert held.v.shape == ((1, 2, 32, 256) if path == "fast" else (1, 2, 130, 32))
        for scale in (held.q_scale, held.k_scale, held.v_scale, held.mean, held.owed):
            assert scale is None or (scale.dtype == torch.float32 and scale.is_contiguous())


def test_a_factor_for_all_keys_stands_with_the_queries() -> None:
    """It would cost a product a score. What is left of K are its codes, to the bit."""
    tensors = operands((1, 2, 193, 64))
    for name, path in (("nvfp4", "conformance"), ("fp8", "conformance"), ("fp8", "fast"), ("mxattn", "fast")):
        spec = METHODS[name].spec
        if name == "mxattn":
            tensors[1] = tensors[1] * 2.0**-30  # beside what E5M2 holds as it is
        held = kept(tensors, spec, path)
        assert held.k_scale is None
        assert held.q_scale is not None
        assert spec.k is not None
        codes = quantise(prepare_qk(*tensors[:2], spec).k, spec.k, role="k")
        factor = one_for_all(held.k.float(), codes.dequantise())
        if name == "mxattn":
            assert torch.equal(factor.log2(), factor.log2().round())
            assert torch.equal(held.k.float() * factor, codes.dequantise())
        else:
            block = name == "nvfp4"
            held_codes = codes.groups.restore(codes.elements * codes.scale if block else codes.elements)
            assert torch.equal(held.k.float(), held_codes)
        both = scores(held.q.float() * held.q_scale[..., None], held.k.float())
        expected = wanted(tensors, spec)
        torch.testing.assert_close(both, scores(*expected.factored()), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("power", [-40, -8, 0, 11, 14, 40])
def test_e5m2_holds_everyday_operands_as_they_are_and_others_by_powers_of_two(power: int) -> None:
    spec, tensors = METHODS["mxattn"].spec, operands((1, 2, 193, 64))
    moved = power in (-40, 14, 40)
    for which in (1, 2):
        some = [x * 2.0**power if i == which else x for i, x in enumerate(tensors)]
        held = kept(some, spec, "fast")
        assert (held.q_scale is not None) == (moved and which == 1)
        assert (held.v_scale is not None) == (moved and which == 2)
        check(held, wanted(some, spec), spec)


@pytest.mark.parametrize("name", ["mxattn", "nvfp4-sage", "sage2", "vc8", "vc4"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes_and_more_queries_than_keys(name: str, dtype: torch.dtype) -> None:
    spec, tensors = METHODS[name].spec, operands((1, 2, 65, 64), dtype, nq=150)
    for path in PATHS:
        if reason(spec, path, dtype) is None:
            check(kept(tensors, spec, path), wanted(tensors, spec), spec)


@pytest.mark.parametrize("name", ["mxattn", "vc8", "vc4", "nvfp4-sage"])
def test_strides(name: str) -> None:
    """As diffusers hands them over, cut out of something larger, turned, and with channels apart."""
    spec, plain = METHODS[name].spec, operands((2, 3, 70, 32))
    q = plain[0].transpose(1, 2).contiguous().transpose(1, 2)
    k = torch.full((2, 3, 75, 48), float("nan"), dtype=plain[1].dtype)[:, :, 3:73, 5:37].copy_(plain[1])
    v = plain[2].transpose(-1, -2).contiguous().transpose(-1, -2)
    before = [x.clone() for x in (q, k, v)]
    for path in ("float32", "fast" if name in ("mxattn", "vc8") else "conformance"):
        check(kept([q, k, v], spec, path), wanted(plain, spec), spec)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before, strict=True))


def test_offsets_beyond_two_to_the_31() -> None:
    if DEVICE == "cpu":
        try:
            storage = torch.empty(2**31 + 300_000, dtype=torch.bfloat16)  # only the pages that are written take memory
        except RuntimeError:
            pytest.skip("this machine does not lend 4 GiB of address space")
    else:
        storage = torch.empty(2**31 + 300_000, dtype=torch.bfloat16, device=DEVICE)
    plain = operands((1, 2, 70, 32))
    views = [
        storage.as_strided((1, 2, 70, 32), (0, 2**31 + 4096, 32, 1), i * 70 * 32).copy_(x) for i, x in enumerate(plain)
    ]
    for name in ("mxattn", "vc8"):
        spec = METHODS[name].spec
        check(kept(views, spec, "fast"), wanted(plain, spec), spec)


def test_groupings_of_a_render() -> None:
    """The same orders and means as the reference's, step by step, text tokens and masks included."""
    spec = replace(METHODS["vc8"].spec, v_smooth=VSmooth(clusters=4, refresh=2))
    ours, theirs = GroupingState(), GroupingState()
    for step in range(6):
        site = Site(0, 1, 2, "joint", step, 12, grid=(2, 6, 11))
        tensors = [x * (1 + step) for x in operands((1, 2, 140, 32))]
        held = kept(tensors, spec, "fast", site=site, state=ours, tag=3)
        check(held, wanted(tensors, spec, site=site, state=theirs, tag=3), spec)
        assert (held.mean is None) == (step >= 3)


def test_a_rotation_needs_a_power_of_two_and_kernels_no_more_than_256_channels() -> None:
    with pytest.raises(UserError, match="power of two"):
        hold(*operands((1, 1, 8, 80)), METHODS["mxattn"].spec, "float32")
    with pytest.raises(UserError, match="256 channels"):
        hold(*operands((1, 1, 8, 260)), METHODS["mxfp4"].spec, "float32")


COMPILE = Path(__file__).with_name("prepass_compile.py")


def compiled(*arguments: str) -> list[str]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(COMPILE), *arguments], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.slow
def test_kernels_compile_for_hopper_without_spills() -> None:
    lines = compiled("128")
    assert len(lines) > 20
    assert not [line for line in lines if not line.endswith("spills 0")]


@pytest.mark.slow
def test_kernels_compile_for_hopper_at_256_channels() -> None:
    assert len(compiled("256", "mxattn", "vc8", "nvfp4-sage")) > 8


@pytest.mark.gpu
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", METHODS)
def test_a_long_video(name: str, path: str) -> None:
    """Gaussian BF16 on the device: a code may differ where a sum, rounded otherwise, stands beside a tie."""
    spec = METHODS[name].spec
    if reason(spec, path, torch.bfloat16) is not None:
        pytest.skip("the path does not hold it")
    g = torch.Generator("cuda").manual_seed(0)
    tensors = [torch.randn(1, 20_001, 4, 128, generator=g, device="cuda").bfloat16().transpose(1, 2) for _ in range(3)]
    held, expected = hold(*tensors, spec, path), prepare(*tensors, spec)
    q, k = factored(held)
    right_q, right_k = expected.factored()
    factor = one_for_all(k, right_k)
    pairs = [(q / factor, right_q), (k * factor, right_k), (values(held), expected.v)]
    for got, right in pairs:
        close = torch.isclose(got, right, rtol=1e-5, atol=0)
        assert close.float().mean() > 0.9999
    assert held.lost is None or int(held.lost) == 0


def beside_boundaries(spec: AttentionSpec, heads: int, n: int, device: str) -> list[torch.Tensor]:
    """Q, K and V ``[1,heads,n,128]`` in FP32, of blocks beside boundaries of scale rules and ties, with signs.

    Blocks lie along channels, and along tokens in V. They are repeated, in another order in every head.
    """
    block = 16 if spec.q is not None and spec.q.format == "nvfp4" else 32
    blocks = adversarial(block, -6, 6).to(device)
    g = torch.Generator(device).manual_seed(n)
    found = []
    for along_tokens in (False, False, True):
        pick = torch.randint(0, len(blocks), (heads * n * 128 // block,), generator=g, device=device)
        x = blocks[pick].flatten()
        x = x * (1 - 2 * torch.randint(0, 2, x.shape, generator=g, device=device))
        found.append(x.view(1, heads, 128, n).mT if along_tokens else x.view(1, heads, n, 128))
    return found


def assert_to_the_bit(name: str, heads: int, n: int, device: str) -> None:
    """Without what makes sums, whose roundings may differ: quantisers alone."""
    spec = replace(METHODS[name].spec, qk=(), v_smooth=None)
    tensors = beside_boundaries(spec, heads, n, device)
    check(hold(*tensors, spec, "float32"), prepare(*tensors, spec), spec)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fp16"])
def test_operands_beside_boundaries_are_quantised_to_the_bit(name: str) -> None:
    assert_to_the_bit(name, 1, 256, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in METHODS if name != "fp16"])
def test_a_hundred_million_elements_beside_boundaries_are_quantised_to_the_bit(name: str) -> None:
    assert_to_the_bit(name, 4, 65_792, "cuda")  # 4 heads of 65,792 × 128 elements, three times
