"""The fused kernel on a GPU, in the types of the matrix units, against the reference's walk."""

from __future__ import annotations

import dataclasses

import held_operands
import pytest
import torch
import witnesses

from mxbench import METHODS, AttentionSpec
from mxbench.attention.reference import walk
from mxbench.formats.quantizer import Quantizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
pytest.importorskip("triton")

from mxbench.kernels.fused import choice, config_for, fused  # noqa: E402
from mxbench.kernels.key_order import interleaved  # noqa: E402
from mxbench.kernels.prepass import hold  # noqa: E402

SPECS = {name: method.spec for name, method in METHODS.items()}
Case = tuple[str, str, str]
CASES: list[Case] = [
    ("mxattn", "bfloat16", "bfloat16"),
    ("mxfp4", "bfloat16", "bfloat16"),
    ("mxfp4-tfs", "bfloat16", "bfloat16"),
    ("mxfp4-oas", "bfloat16", "bfloat16"),
    ("nvfp4", "bfloat16", "bfloat16"),
    ("nvfp4-sage", "bfloat16", "bfloat16"),
    ("vc4", "bfloat16", "bfloat16"),
    ("vc8", "bfloat16", "bfloat16"),
    ("mxattn", "e5m2", "e5m2"),
    ("mxfp4", "e5m2", "e5m2"),
    ("mxfp4", "bfloat16", "e5m2"),
    ("fp8", "e4m3", "e4m3"),
    ("fp8", "bfloat16", "e4m3"),
    ("sage2", "int8", "e4m3"),
    ("vc8", "int8", "e4m3"),
]
MAIN = [("mxattn", "e5m2", "e5m2"), ("vc8", "int8", "e4m3"), ("mxattn", "bfloat16", "bfloat16")]


def tensors(nq: int, nk: int, d: int, heads: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(nk)
    q, k, v = (torch.randn(1, heads, n, d, generator=generator, device="cuda") for n in (nq, nk, nk))
    return [q * 1.5, k, v + 0.25]


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def check(spec: AttentionSpec, hold_qk: str, hold_pv: str, nq: int, nk: int, d: int, **change: object) -> None:
    """Within the tolerance of the path: 1e-3 in BF16, 1/50 of the method's own error in E5M2, 1/20 in 8 bits."""
    q, k, v = tensors(nq, nk, d)
    held, operands = held_operands.held(q, k, v, spec, hold_qk, hold_pv)  # type: ignore[arg-type]
    base = choice(spec, held, packable=True)
    if not change.get("packed", True):
        base = config_for(hold_pv, d, 128, hold_qk, packed=False)  # type: ignore[arg-type]
    config = dataclasses.replace(base, **change)  # type: ignore[arg-type]
    got, expected = fused(held, spec, torch.float32, config=config), walk(operands, spec)
    exact = torch.softmax(q.double() @ k.double().mT / d**0.5, -1) @ v.double()
    own = distance(expected, exact)
    limit = {"bfloat16": 1e-3, "e5m2": own / 50}.get(hold_pv, max(2e-3, own / 20))
    assert distance(got, expected) < limit


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_methods(case: Case) -> None:
    check(SPECS[case[0]], *case[1:], 300, 2000, 128)


@pytest.mark.parametrize(
    "change",
    [
        {"packed": False},
        {"descriptors": False},
        {"overlap": False},
        {"block_m": 128, "num_warps": 8, "overlap": True},
        {"block_m": 64, "num_warps": 4, "num_stages": 2, "overlap": False, "registers": 168},
        {"block_m": 64, "num_warps": 4, "num_stages": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("case", MAIN, ids="-".join)
def test_the_shape_of_a_launch_changes_nothing(case: Case, change: dict[str, object]) -> None:
    check(SPECS[case[0]], *case[1:], 300, 2000, 128, **change)


@pytest.mark.parametrize("n", [1, 17, 127, 129, 193])
@pytest.mark.parametrize("case", MAIN, ids="-".join)
def test_lengths(case: Case, n: int) -> None:
    check(SPECS[case[0]], *case[1:], n, n, 64)


@pytest.mark.parametrize("d", [32, 80, 256])
def test_head_dimensions(d: int) -> None:
    check(SPECS["mxfp4"], "e5m2", "e5m2", 200, 500, d)
    check(SPECS["sage2"], "int8", "e4m3", 200, 500, d)
    check(SPECS["nvfp4"], "bfloat16", "bfloat16", 200, 500, d)


@pytest.mark.parametrize("rule", ["4", "6.5", "8"])
def test_scale_rules(rule: str) -> None:
    z = Quantizer("mxfp4", scale_rule=rule)
    spec = AttentionSpec(q=z, k=z, v=z, p=z, row_sum="quantised")
    check(spec, "e5m2", "e5m2", 200, 500, 64)
    check(dataclasses.replace(spec, row_sum="exact"), "bfloat16", "bfloat16", 200, 500, 64)


@pytest.mark.parametrize("kv_tile", [32, 64])
@pytest.mark.parametrize("case", MAIN, ids="-".join)
def test_key_tiles(case: Case, kv_tile: int) -> None:
    check(dataclasses.replace(SPECS[case[0]], kv_tile=kv_tile), *case[1:], 200, 500, 64)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("case", MAIN, ids="-".join)
def test_a_row_without_a_finite_score_is_nan_and_its_neighbours_are_not(case: Case, value: float) -> None:
    spec = SPECS[case[0]]
    held, _ = held_operands.held(*tensors(300, 2000, 128), spec, *case[1:])  # type: ignore[arg-type]
    scale = held.q_scale.clone() if held.q_scale is not None else torch.ones(1, 2, 300, device="cuda")
    clean = fused(dataclasses.replace(held, q_scale=scale.clone()), spec, torch.float32)
    scale[0, 1, 7] = value
    got = fused(dataclasses.replace(held, q_scale=scale), spec, torch.float32)
    assert got[0, 1, 7].isnan().all()
    got[0, 1, 7] = clean[0, 1, 7]
    assert torch.equal(got, clean)


@pytest.mark.parametrize("case", MAIN, ids="-".join)
def test_long_rows_lose_nothing(case: Case) -> None:
    """Sums of many tiles: what FP8 units keep of a product must not be what is kept of the sum."""
    check(SPECS[case[0]], *case[1:], 128, 32768, 128)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("method", ["mxfp4", "mxfp4-tfs", "mxfp4-oas", "mxattn"])
def test_p_down_to_two_to_the_minus_127(method: str, packed: bool) -> None:
    """BF16 holds it, and V makes up for it."""

    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        held = hold(q.cuda(), k.cuda(), v.cuda(), spec, "conformance")
        config = dataclasses.replace(config_for("bfloat16", 64), packed=packed)
        return fused(held, spec, torch.float32, config=config).cpu()

    (far,) = (w for w in witnesses.of(method) if w.name == "far keys")
    assert witnesses.off(far, method, SPECS[method], compute) < 1e-3


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rule", ["ocp", "uos", "4"])
def test_what_a_new_maximum_leaves_of_a_sum_is_not_lost_below_two_to_the_minus_126(rule: str, packed: bool) -> None:
    z = Quantizer("mxfp4", scale_rule=rule)
    spec = AttentionSpec(q=z, k=z, v=z, p=z)
    held, operands = held_operands.held(*held_operands.falling("cuda"), spec, "bfloat16", "bfloat16")
    got = fused(held, spec, torch.float32, config=dataclasses.replace(config_for("bfloat16", 64), packed=packed))
    assert distance(got, walk(operands, spec)) < 1e-3


def test_offsets_beyond_two_to_the_31() -> None:
    """The last of many heads, alone and among the others."""
    spec, (hold_qk, hold_pv) = SPECS["mxattn"], ("bfloat16", "bfloat16")
    heads, n, d = 66, 2**18, 128
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of GPU memory")
    last = [x.contiguous() for x in tensors(256, n, d, heads=1)]
    one, _ = held_operands.held(*last, spec, hold_qk, hold_pv)  # type: ignore[arg-type]
    k, v = (torch.zeros(1, heads, n, d, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    q = torch.zeros(1, heads, 256, d, dtype=torch.bfloat16, device="cuda")
    for many, single in ((q, one.q), (k, one.k), (v, one.v)):
        many[:, -1:] = single
    for change in ({}, {"descriptors": False}):
        config = dataclasses.replace(config_for("bfloat16", d), **change)
        got = fused(dataclasses.replace(one, q=q, k=k, v=v), spec, torch.float32, config=config)
        assert torch.equal(got[:, -1:], fused(one, spec, torch.float32, config=config))


def test_interleaving_is_a_permutation_of_rows() -> None:
    k = torch.randn(1, 2, 77, 80, device="cuda").to(torch.float8_e4m3fn)
    rows = {bytes(r) for r in interleaved(k)[0, 1].view(torch.uint8).cpu().numpy()}
    assert rows >= {bytes(r) for r in k[0, 1].view(torch.uint8).cpu().numpy()}
