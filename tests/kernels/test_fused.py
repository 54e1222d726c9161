"""The fused kernel against the reference's walk, step by step in the interpreter, and what it compiles to."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import held_operands
import numpy as np
import pytest
import torch

from mxbench import METHODS, AttentionSpec
from mxbench.attention.reference import Operands, prepare, walk
from mxbench.errors import UserError
from mxbench.formats.quantizer import Quantizer

pytest.importorskip("triton")

from mxbench.kernels.fused import CONFIGS, Config, config_for, fused, unsuited
from mxbench.kernels.key_order import interleaved, quartered, quartered_columns

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="test_fused_gpu runs the kernel on a device"),
    pytest.mark.filterwarnings("ignore:All-NaN slice"),  # the interpreter's maxima of rows that are meant
]

SMALL = Config(block_m=32, descriptors=False, packed=False)
SPECS = {name: method.spec for name, method in METHODS.items()}
MX = SPECS["mxattn"]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """NumPy, which the interpreter computes with, warns of infinities that are meant."""
    with np.errstate(all="ignore"):
        yield


def tensors(nq: int, nk: int, d: int, dv: int | None = None, seed: int = 0, heads: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, heads, nq, d), (1, heads, nk, d), (1, heads, nk, dv or d))
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


LIMIT = 1e-5  # no code differs; where another exponential moves one across a tie, 1e-3 would still hold


def gap(operands: Operands, spec: AttentionSpec, config: Config | None = SMALL) -> float:
    got = fused(held_operands.plain(operands), spec, torch.float32, config=config)
    return distance(got, walk(operands, spec))


@pytest.mark.parametrize("n", [1, 17, 127, 129, 300])
@pytest.mark.parametrize("name", SPECS)
def test_every_method_at_every_length(name: str, n: int) -> None:
    q, k, v = tensors(33, n, 64, heads=1, seed=n)
    assert gap(prepare(q, k, v + 0.5, SPECS[name]), SPECS[name]) < LIMIT


@pytest.mark.parametrize("d", [32, 80, 96, 128])
@pytest.mark.parametrize("name", ["mxattn", "nvfp4-sage", "vc8", "sage2"])
def test_head_dimensions(name: str, d: int) -> None:
    spec = SPECS[name]
    if d & (d - 1):
        spec = dataclasses.replace(spec, qk=tuple(s for s in spec.qk if type(s).__name__ != "Hadamard"))
    q, k, v = tensors(40, 150, d, dv=48, heads=1)
    assert gap(prepare(q, k, v, spec), spec) < LIMIT


def p_of(**fields: object) -> AttentionSpec:
    """MXAttention with another quantiser of P."""
    return dataclasses.replace(MX, p=Quantizer(**fields))  # type: ignore[arg-type]


ABLATIONS = {
    "row sum exact": dataclasses.replace(MX, row_sum="exact"),
    "row sum quantised": dataclasses.replace(SPECS["nvfp4-sage"], row_sum="quantised"),
    "fp8, row sum quantised": dataclasses.replace(SPECS["fp8"], row_sum="quantised"),
    "expcast, row sum exact": dataclasses.replace(SPECS["vc8"], row_sum="exact"),
    "exp2 in vc8": dataclasses.replace(SPECS["vc8"], exponential="exp2"),
    **{f"rule {rule}": p_of(format="mxfp4", scale_rule=rule) for rule in ("ocp", "tfs", "oas", "4", "6.5", "8")},
    **{f"kv_tile {tile}": dataclasses.replace(MX, kv_tile=tile) for tile in (32, 64, 256)},
    "kv_tile 64 in vc8": dataclasses.replace(SPECS["vc8"], kv_tile=64),
    "kv_tile 32 in vc4": dataclasses.replace(SPECS["vc4"], kv_tile=32),
    "prescale 448": p_of(format="e4m3", granularity="unit", prescale=448),
    "prescale 3000": p_of(format="nvfp4", prescale=3000, divide_by="exact"),
    "prescale 100": p_of(format="mxfp4", scale_rule="uos", prescale=100),
    "int8 P": p_of(format="int8", granularity="unit", prescale=127),
    "exact P": dataclasses.replace(MX, p=None, row_sum="exact"),
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_ablations(name: str) -> None:
    spec = ABLATIONS[name]
    q, k, v = tensors(40, 200, 32, heads=1)
    assert gap(prepare(q * 2, k, v + 1, spec), spec) < LIMIT


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["mxattn", "vc8", "nvfp4-sage", "vc4"])
def test_the_shape_of_a_launch_changes_nothing(name: str, overlap: bool) -> None:
    """Interleaved keys, tensor descriptors, another number of rows, P·V beside the next softmax."""
    q, k, v = tensors(150, 333, 64)
    operands = prepare(q, k, v + 1, SPECS[name])
    assert gap(operands, SPECS[name], Config(block_m=64, overlap=overlap, interleave=True, packed=False)) < LIMIT


def test_more_heads_than_one_and_fewer_keys_than_queries() -> None:
    q, k, v = (torch.cat([x, -2 * x.flip(1)]) for x in tensors(70, 40, 32, heads=3))
    assert gap(prepare(q, k, v, MX), MX) < LIMIT


@pytest.mark.parametrize("name", ["mxattn", "vc8", "fp8", "nvfp4"])
def test_constant_and_zero_inputs(name: str) -> None:
    q, k, v = tensors(20, 140, 32, heads=1)
    for operands in (prepare(q * 0, k, v, SPECS[name]), prepare(q, k * 0 + 1, v * 0 + 2, SPECS[name])):
        assert gap(operands, SPECS[name]) < LIMIT
    got = fused(held_operands.plain(prepare(q, k, v * 0, SPECS[name])), SPECS[name], torch.float32, config=SMALL)
    assert not got.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["mxattn", "vc8", "nvfp4-sage", "fp8"])
def test_a_row_without_a_finite_score_is_nan_and_its_neighbours_are_not(name: str, value: float) -> None:
    q, k, v = tensors(20, 140, 32, heads=1)
    operands = prepare(q, k, v, SPECS[name])
    operands.q[0, 0, 7, 3] = value
    expected = walk(operands, SPECS[name])
    got = fused(held_operands.plain(operands), SPECS[name], torch.float32, config=SMALL)
    assert got[0, 0, 7].isnan().all() and expected[0, 0, 7].isnan().all()
    others = torch.arange(20) != 7
    assert distance(got[:, :, others], expected[:, :, others]) < LIMIT


def test_scores_far_below_the_maximum_and_values_near_the_limit() -> None:
    q, k, v = tensors(20, 140, 32, heads=1)
    operands = prepare(q, k, v, MX)
    operands = dataclasses.replace(operands, q=operands.q * 2.0**12, v=operands.v.clamp(-1, 1) * 3e38)
    got = fused(held_operands.plain(operands), MX, torch.float32, config=SMALL)
    assert got.isfinite().all()
    assert distance(got / 3e38, walk(operands, MX) / 3e38) < LIMIT


@pytest.mark.parametrize("overlap", [False, True])
def test_integer_products_of_p_and_v(overlap: bool) -> None:
    z = Quantizer("int8", "channel")
    spec = dataclasses.replace(SPECS["sage2"], v=z, p=Quantizer("int8", "unit", prescale=127))
    held, operands = held_operands.held(*tensors(40, 200, 32), spec, "int8", "int8")
    got = fused(held, spec, torch.float32, config=Config(block_m=32, descriptors=False, overlap=overlap))
    assert distance(got, walk(operands, spec)) < LIMIT


def test_interleaving_moves_keys_inside_their_thirty_two() -> None:
    k = torch.arange(70.0).view(1, 1, 70, 1).expand(1, 1, 70, 8).contiguous()
    out = interleaved(k)[0, 0, :, 0]
    assert out.shape == (96,)
    assert sorted(out[:32].tolist()) == list(range(32)) and sorted(out[32:64].tolist()) == list(range(32, 64))
    assert out[:16].tolist() == [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]
    assert sorted(out[64:].tolist()) == [0.0] * 26 + [64, 65, 66, 67, 68, 69]


def test_a_quarter_of_every_tile_is_every_fourth_pair_of_columns() -> None:
    k = torch.arange(200.0).view(1, 1, 200, 1).expand(1, 2, 200, 3).to(torch.bfloat16)[:, :1].contiguous()
    out = quartered(k, 128)[0, 0, :, 0]
    assert out.shape == (256,)
    assert sorted(out[:128].tolist()) == list(range(128))
    for thread in range(4):
        columns = [8 * j + 2 * thread + p for j in range(16) for p in range(2)]
        assert out[columns].tolist() == list(range(32 * thread, 32 * thread + 32))
    assert out[128 + 2 * 2 : 128 + 2 * 2 + 2].tolist() == [192, 193]
    assert sorted(out[128:].tolist()) == [0.0] * 56 + list(range(128, 200))


def test_columns_of_v_lie_as_bytes_of_p_do() -> None:
    v = torch.arange(256).to(torch.uint8).view(torch.int8).expand(1, 2, 3, 256).contiguous()
    out = quartered_columns(v, 128)
    assert torch.equal(out[0, 1, 2], out[0, 0, 0])
    row = out[0, 0, 0].view(torch.uint8).tolist()
    assert row[:20] == [0, 1, 2, 3, 32, 33, 34, 35, 64, 65, 66, 67, 96, 97, 98, 99, 4, 5, 6, 7]
    assert sorted(row[128:]) == list(range(128, 256))


def test_what_it_does_not_compute_is_an_error() -> None:
    q, k, v = tensors(4, 40, 32, heads=1)
    odd = dataclasses.replace(SPECS["fp8"], kv_tile=96)
    with pytest.raises(UserError, match="kv_tile is 96"):
        fused(held_operands.plain(prepare(q, k, v, odd)), odd, torch.float32)
    assert unsuited(MX, 300) == "the head dimension is 300, and the fused kernels go up to 256"
    assert unsuited(MX, 128) is None


def test_there_is_a_config_for_every_hold_and_width() -> None:
    for hold, _ in CONFIGS:
        for width in (32, 64, 128, 256):
            assert config_for(hold, width).block_m >= 16  # type: ignore[arg-type]
            assert config_for(hold, width, 256, "bfloat16").block_m >= 16  # type: ignore[arg-type]
            assert config_for(hold, width, packed=False).block_m >= 16  # type: ignore[arg-type]


def compiled(*cases: str) -> list[dict[str, object]]:
    """``ahead_of_time`` in a process that may compile, which the interpreter's may not."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    program = [sys.executable, str(Path(__file__).with_name("ahead_of_time.py")), "fused", *cases]
    result = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return list(json.loads(result.stdout))


@pytest.mark.slow
def test_compiled_for_sm90_it_feeds_the_matrix_units() -> None:
    cases = {
        "mxattn,e5m2,e5m2,128": ["f32.e5m2.e5m2"],
        "vc8,int8,e4m3,128": ["f32.e4m3.e4m3", "s32.s8.s8"],
        "mxattn,bfloat16,bfloat16,128": ["f32.bf16.bf16"],
        "nvfp4-sage,bfloat16,bfloat16,128": ["f32.bf16.bf16"],
        "fp8,e4m3,e4m3,64,overlap=false,packed=false": ["f32.e4m3.e4m3"],
        "mxfp4,e5m2,e5m2,80,descriptors=false,overlap=false": ["f32.e5m2.e5m2"],
        "mxfp4,bfloat16,bfloat16,64,packed=false": ["f32.bf16.bf16"],
    }
    for case, found in zip(cases, compiled(*cases), strict=True):
        assert found["products"] == cases[case], case
        assert found["scattered"] == [] and found["complaints"] == [], case
        assert found["descriptors"] is ("descriptors=false" not in case), case
        assert (found["flushed"] == 0) is case.startswith("mxfp4,bfloat16"), case  # P goes down to 2^-127 there
        assert found["stack"] == 0 or case.startswith(("vc8", "fp8", "mxfp4")), case


@pytest.mark.slow
def test_the_widest_tiles_fit_into_the_shared_memory_of_sm90() -> None:
    wide = ["e5m2,e5m2,256", "e5m2,e5m2,128", "bfloat16,bfloat16,128", "bfloat16,bfloat16,256"]
    cases = [f"mxattn,{case},kv_tile=256" for case in wide] + ["fp8,bfloat16,e4m3,256", "mxfp4,bfloat16,e5m2,128"]
    cases += ["vc4,bfloat16,bfloat16,128", "nvfp4-sage,bfloat16,bfloat16,128"]  # means, and what Q's means owe
    cases += ["vc8,bfloat16,bfloat16,128", "sage2,bfloat16,bfloat16,128"]  # P step by step
    for case, found in zip(cases, compiled(*cases), strict=True):
        assert found["shared"] <= 232_448, case
