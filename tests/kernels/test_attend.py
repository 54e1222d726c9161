"""The kernels as ``attend`` and ``mxbench bench`` hand them out, in the interpreter."""

from __future__ import annotations

import pytest
import torch
from attention_cases import normal

pytest.importorskip("triton")

from test_native import FP4, _scaled_dot  # noqa: F401 - the interpreter lacks the scaled dot

from mxbench import METHODS, attend, kernels
from mxbench.attention.reference import reference
from mxbench.bench import candidates
from mxbench.bench.operands import Operands, Seat, draw
from mxbench.bench.run import bench
from mxbench.bench.shapes import Shape
from mxbench.dispatch import Tally, unsupported
from mxbench.errors import UserError
from mxbench.kernels import family, prepass

CPU = torch.device("cpu")
FAST = [name for name, m in METHODS.items() if prepass.reason(m.spec, "fast", torch.float32) is None]
QUANTISED = [name for name in METHODS if name != "fp16"]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on a device")


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels on a CPU, and FP32 in the place of BF16, which the interpreter does not multiply."""
    honest = prepass.hold

    def hold(q, k, v, spec, path, **options):  # type: ignore[no-untyped-def]
        return honest(q, k, v, spec, "float32" if path == "conformance" else path, **options)

    monkeypatch.setattr(kernels, "_missing", lambda _impl, _device: None)
    monkeypatch.setattr(family, "INTERPRETED", False)
    monkeypatch.setattr(family, "hold", hold)
    monkeypatch.setattr(prepass, "hold", hold)


def off(out: torch.Tensor, true: torch.Tensor) -> float:
    return float((out.double() - true.double()).norm() / true.double().norm())


@pytest.mark.parametrize(("impl", "method"), [("conformance", m) for m in QUANTISED] + [("fast", m) for m in FAST])
def test_attend_hands_the_kernels_out(impl: str, method: str) -> None:
    q, k, v = normal(2, 1, 45, 32), normal(2, 1, 77, 32, seed=1) + 1, normal(2, 1, 77, 32, seed=2) + 0.5
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    mask = torch.ones(2, 77, dtype=torch.bool)
    mask[0, 50:] = False
    spec, tally = METHODS[method].spec, Tally()
    for options in ({}, {"key_mask": mask}):
        out = attend(q, k, v, method, impl=impl, tally=tally, **options)
        assert off(out, reference(q, k, v, spec, **options)) < 1e-3
    assert tally.widened == 0


@pytest.mark.parametrize("method", FP4)
def test_attend_hands_out_the_native_kernels(method: str) -> None:
    q, k, v = normal(2, 1, 45, 64), normal(2, 1, 77, 64, seed=1) + 1, normal(2, 1, 77, 64, seed=2) + 0.5
    mask = torch.ones(2, 77, dtype=torch.bool)
    mask[0, 50:] = False
    for options in ({}, {"key_mask": mask}):
        out = attend(q, k, v, method, impl="native", **options)
        assert off(out, reference(q, k, v, METHODS[method].spec, **options)) < 1e-3
    with pytest.raises(UserError, match="impl 'native' cannot run here: the head dimension is 32"):
        attend(*(x[..., :32] for x in (q, k, v)), method, impl="native")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_output_has_the_dtype_of_the_operands_and_autocast_changes_nothing(dtype: torch.dtype) -> None:
    q, k, v = (normal(1, 1, 40, 64, seed=seed).to(dtype) for seed in range(3))
    out = attend(q, k, v, "vc8", impl="fast")
    assert out.dtype == dtype
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(out, attend(q, k, v, "vc8", impl="fast"))


def test_a_call_that_e5m2_cannot_hold_is_seen_by_who_asks() -> None:
    q, k, v = (normal(1, 2, 64, 32, seed=seed) for seed in range(3))
    k[..., :20, :] *= 2.0**-40
    tally = Tally()
    out = attend(q, k, v, "mxattn", impl="fast", tally=tally)
    assert tally == Tally(widened=1)
    assert torch.equal(out, attend(q, k, v, "mxattn", impl="conformance", tally=tally))
    attend(q, k, v, "vc8", impl="fast", tally=tally)
    assert tally == Tally(widened=1)


def test_what_the_kernels_refuse_is_one_line() -> None:
    wide = [normal(1, 1, 8, 288, seed=seed) for seed in range(3)]
    with pytest.raises(UserError, match="impl 'fast' cannot run here: the head dimension is 288"):
        attend(*wide, "fp8", impl="fast")
    q, k, v = (normal(1, 1, 8, 96, seed=seed) for seed in range(3))
    for impl in ("conformance", "fast"):
        with pytest.raises(UserError, match="a Hadamard rotation needs a power of two, and D is 96"):
            attend(q, k, v, "mxattn", impl=impl)
        with pytest.raises(UserError, match=f"impl '{impl}' has none; call inside torch.no_grad"):
            attend(q.clone().requires_grad_(), k, v, "fp8", impl=impl)


def test_bench_times_the_halves_apart() -> None:
    found = bench(shapes=["1x2x40x32:72"], methods=["mxattn", "vc8"], impls=["conformance", "fast"],
                  peers=["none"], device="cpu", reps=1)  # fmt: skip
    rows = found.shapes[0].rows
    assert [(row.method, row.impl) for row in rows] == [
        ("mxattn", "conformance"), ("vc8", "conformance"), ("mxattn", "fast"), ("vc8", "fast"),
    ]  # fmt: skip
    for row in rows:
        assert row.status == "measured", row.reason
        assert row.prepass is not None and row.kernel is not None and row.call is not None
        assert row.prepass_of_copy is not None
        assert (row.fp4 == "emulated") == (row.method == "mxattn")
        assert row.own_error is not None
        wanted = {"mxattn": max(1e-3, row.own_error / 50), "vc8": max(2e-3, row.own_error / 20)}
        assert row.allowed == (1e-3 if row.impl == "conformance" else wanted[row.method])


@pytest.mark.parametrize("impl", ["conformance", "fast"])
def test_the_halves_make_what_attend_makes(impl: str) -> None:
    shape = Shape(1, 2, 33, 150, 32)
    operands = draw(shape, CPU, torch.float32, 0)
    for method in FAST:
        bound = candidates.of_method(method, impl, CPU, torch.float32).bind(operands, Seat())
        assert bound.prepare is not None and bound.run is not None
        assert torch.equal(bound.call(), bound.run(bound.prepare()))


def test_bench_gives_no_time_of_another_implementation() -> None:
    operands = draw(Shape(1, 1, 33, 64, 32), CPU, torch.float32, 0)
    k = operands.k.clone()
    k[..., :20, :] *= 2.0**-40
    candidate = candidates.of_method("mxattn", "fast", CPU, torch.float32)
    assert candidate.missing is unsupported(METHODS["mxattn"].spec, "fast", CPU, torch.float32) is None
    with pytest.raises(UserError, match="E5M2 cannot hold these operands"):
        candidate.bind(Operands(operands.q, k, operands.v), Seat()).call()
