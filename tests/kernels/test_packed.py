"""P in packed arithmetic, its PTX carried out by ``ptx_steps``, against the reference's walk, in the real types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import held_operands
import numpy as np
import ptx_steps
import pytest
import torch
import witnesses

from mxbench import METHODS, AttentionSpec
from mxbench.attention.reference import Operands, walk
from mxbench.formats.quantizer import Quantizer
from mxbench.kernels.held import Held

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

import mxbench.kernels.fused as module  # noqa: E402
from mxbench.formats.element import E2M1, round_to  # noqa: E402
from mxbench.kernels import prepass  # noqa: E402
from mxbench.kernels.packed_jit import _e2m1, _halves_of_units  # noqa: E402

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="test_fused runs the instructions themselves"),
    pytest.mark.filterwarnings("ignore:All-NaN slice"),  # the interpreter's maxima of rows that are meant
]

SPECS = {name: method.spec for name, method in METHODS.items()}
CONFIG = module.Config(block_m=32, descriptors=False)


@pytest.fixture(autouse=True)
def _steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ptx_steps.install(monkeypatch)
    monkeypatch.setattr(module, "packable", lambda _device: True)
    with np.errstate(all="ignore"):
        yield


def tensors(nq: int, nk: int, d: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 1, n, d, generator=generator) for n in (nq, nk, nk))
    return [q * 1.5, k, v + 0.5]


def both(spec: AttentionSpec, hold_qk: str, hold_pv: str, n: int = 200) -> tuple[Held, Operands]:
    held, operands = held_operands.held(*tensors(40, n, 32), spec, hold_qk, hold_pv)  # type: ignore[arg-type]
    fields = module.constants(spec, held, CONFIG, packable=True)
    assert fields["PACKED"]  # what is not packed proves nothing here
    return held, operands


def gap(spec: AttentionSpec, held: Held, operands: Operands, config: module.Config = CONFIG) -> float:
    got, expected = module.fused(held, spec, torch.float32, config=config), walk(operands, spec)
    return float((got - expected).norm() / expected.norm())


def mx(rule: str, row_sum: str, kv_tile: int = 128) -> AttentionSpec:
    z = Quantizer("mxfp4", scale_rule=rule)
    return AttentionSpec(q=z, k=z, v=z, p=z, row_sum=row_sum, kv_tile=kv_tile)  # type: ignore[arg-type]


@pytest.mark.parametrize("hold", ["e5m2", "bfloat16"])
@pytest.mark.parametrize("row_sum", ["exact", "quantised"])
@pytest.mark.parametrize("rule", ["ocp", "tfs", "oas", "uos", "4", "6.5", "8"])
def test_every_scale_rule(rule: str, row_sum: str, hold: str) -> None:
    spec = mx(rule, row_sum)
    assert gap(spec, *both(spec, hold, hold)) < 1e-5


@pytest.mark.parametrize("kv_tile", [32, 64, 256])
def test_key_tiles(kv_tile: int) -> None:
    for spec, hold in ((mx("uos", "quantised", kv_tile), "e5m2"), (mx("ocp", "exact", kv_tile), "bfloat16")):
        assert gap(spec, *both(spec, hold, hold)) < 1e-5
    if kv_tile < 256:
        spec = dataclasses.replace(SPECS["vc8"], kv_tile=kv_tile)
        assert gap(spec, *both(spec, "int8", "e4m3")) < 1e-3


METHOD_HOLDS = [
    ("nvfp4", "bfloat16", "bfloat16", 1e-5),
    ("nvfp4-sage", "bfloat16", "bfloat16", 1e-5),
    ("vc4", "bfloat16", "bfloat16", 1e-5),
    ("fp8", "e4m3", "e4m3", 1e-5),
    ("sage2", "int8", "e4m3", 1e-5),
    ("vc8", "int8", "e4m3", 1e-3),  # near-ties of ExpCast's codes, see packed_expcast
]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("name", "hold_qk", "hold_pv", "limit"), METHOD_HOLDS)
def test_methods(name: str, hold_qk: str, hold_pv: str, limit: float, overlap: bool) -> None:
    spec = SPECS[name]
    assert gap(spec, *both(spec, hold_qk, hold_pv, 300), dataclasses.replace(CONFIG, overlap=overlap)) < limit


@pytest.mark.parametrize("tile", [0, 128, 64])
@pytest.mark.parametrize("n", [200, 260, 384])
def test_what_is_owed_comes_by_a_descriptor(n: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, boxes, describe = SPECS["nvfp4-sage"], [], module._descriptor
    monkeypatch.setattr(module, "_descriptor", lambda x, box: (boxes.append(box), describe(x, box))[1])
    held, operands = both(spec, "bfloat16", "bfloat16", n)
    if tile:
        assert held.owed is not None
        padded = torch.nn.functional.pad(held.owed, (0, -n % tile)).unflatten(-1, (-1, 4, tile // 16, 4))
        held = dataclasses.replace(held, owed=padded.transpose(-3, -2).flatten(-4).contiguous(), owed_tile=tile)
    described = dataclasses.replace(CONFIG, descriptors=True, overlap=True)
    suits = tile in (0, spec.kv_tile)
    assert module.owed_suits(module.constants(spec, held, described, packable=True)) is suits
    assert gap(spec, held, operands, described) < 1e-5
    assert ([1, 128] in boxes) is suits


@pytest.mark.parametrize("prescale", [1.0, 100.0, 2688.0, 4000.0])
@pytest.mark.parametrize("divide_by", ["stored", "exact"])
def test_nvfp4_of_either_divisor(divide_by: str, prescale: float) -> None:
    p = Quantizer("nvfp4", prescale=prescale, divide_by=divide_by)  # type: ignore[arg-type]
    spec = dataclasses.replace(SPECS["nvfp4-sage"], p=p, qk=())
    assert gap(spec, *both(spec, "bfloat16", "bfloat16")) < 1e-5


ONE_OF_EACH = [
    ("mxattn", "e5m2", "e5m2"),
    ("mxfp4", "bfloat16", "bfloat16"),
    ("nvfp4-sage", "bfloat16", "bfloat16"),
    ("fp8", "e4m3", "e4m3"),
    ("vc8", "int8", "e4m3"),
]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("name", "hold_qk", "hold_pv"), ONE_OF_EACH)
def test_a_row_without_a_finite_score_is_nan_and_its_neighbours_are_not(
    name: str, hold_qk: str, hold_pv: str, value: float
) -> None:
    spec = SPECS[name]
    held, _ = both(spec, hold_qk, hold_pv)
    clean = module.fused(held, spec, torch.float32, config=CONFIG)
    scale = held.q_scale if held.q_scale is not None else torch.ones(1, 1, 40)
    scale[0, 0, 7] = value
    got = module.fused(dataclasses.replace(held, q_scale=scale), spec, torch.float32, config=CONFIG)
    assert got[0, 0, 7].isnan().all()
    others = torch.arange(40) != 7
    assert torch.equal(got[:, :, others], clean[:, :, others])


@pytest.mark.parametrize("hold", ["e5m2", "bfloat16"])
def test_equal_scores_and_blocks_far_below(hold: str) -> None:
    """Constant rows put every exponential on a power of two; a spike puts most blocks below what E5M2 holds."""
    spec = mx("ocp", "quantised")
    q, k, v = tensors(40, 200, 32)
    for queries, keys in ((q * 0, k), (torch.ones_like(q) * 4, torch.sign(k[..., :1]).expand_as(k) * 4)):
        held, operands = held_operands.held(queries, keys, v, spec, hold, hold)  # type: ignore[arg-type]
        assert gap(spec, held, operands) < 1e-5


@pytest.mark.parametrize("method", ["mxfp4", "mxfp4-tfs", "mxfp4-oas", "mxattn"])
def test_p_down_to_two_to_the_minus_127(method: str) -> None:
    """BF16 holds it, and V makes up for it: against the oracle."""

    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        held = prepass.hold(q, k, v, spec, "conformance")
        assert module.constants(spec, held, CONFIG, packable=True)["PACKED"]
        return module.fused(held, spec, torch.float32, config=CONFIG)

    (far,) = (w for w in witnesses.of(method) if w.name == "far keys")
    assert witnesses.off(far, method, SPECS[method], compute) < 1e-5


@pytest.mark.parametrize("row_sum", ["exact", "quantised"])
@pytest.mark.parametrize("rule", ["ocp", "uos"])
def test_a_maximum_that_rises_by_two_to_the_127(rule: str, row_sum: str) -> None:
    spec = mx(rule, row_sum)
    held, operands = held_operands.held(*held_operands.falling("cpu"), spec, "bfloat16", "bfloat16")
    assert gap(spec, held, operands) < 1e-5


@triton.jit
def _rounding(x, codes, units, N: tl.constexpr):
    at = tl.arange(0, N)
    low = tl.load(x + 2 * at) * 2.0**-14
    high = tl.load(x + 2 * at + 1) * 2.0**-14
    pair = _e2m1(low, high, 0x01000100, True)
    tl.store(codes + at, pair)
    tl.store(units + at, _halves_of_units(pair))


def test_rounding_to_e2m1_in_fp16() -> None:
    """Against ``round_to`` on both sides of every tie, an FP32 ulp away; on a tie it rounds away from zero."""
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0])
    beside = [torch.nextafter(ties, torch.tensor(side)) for side in (0.0, 8.0)]
    x = torch.cat([*beside, torch.linspace(0, 7.25, 1008)])
    codes, units = torch.empty(512, dtype=torch.int32), torch.empty(512, dtype=torch.int32)
    _rounding[(1,)](x, codes, units, N=512)
    expected = round_to(x, E2M1)
    assert torch.equal(codes.view(torch.float16).float() * 2.0**14, expected)
    assert torch.equal(units.view(torch.float16).float() * 2, expected)
