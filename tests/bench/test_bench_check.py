"""What an output must equal: samples, tolerances, and neighbours that must be told apart."""

import math

import pytest
import torch

from mxbench.attention.axes import apply
from mxbench.attention.methods import METHODS, method
from mxbench.attention.reference import reference
from mxbench.bench import check
from mxbench.bench.check import EXACT_TOLERANCE, Judge, distance, tolerance
from mxbench.bench.operands import Seat, draw, sample, seat
from mxbench.bench.shapes import Shape
from mxbench.dispatch import attend

CPU = torch.device("cpu")
AWKWARD = Shape(2, 3, 300, 193, 64)
QUANTISED = [name for name, entry in METHODS.items() if entry.spec.quantised]


@pytest.fixture(scope="module")
def operands():
    return draw(AWKWARD, CPU, torch.float32, 0)


def computed(operands, spec, where):
    return reference(operands.q, operands.k, operands.v, spec, site=where.site, state=where.state)


def test_operands_have_the_shape_and_come_from_the_seed():
    shape = Shape(1, 2, 5, 7, 8)
    a, b, c = (draw(shape, CPU, torch.bfloat16, seed) for seed in (0, 0, 1))
    assert (a.q.shape, a.k.shape, a.v.shape) == ((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8))
    assert {x.dtype for x in (a.q, a.k, a.v)} == {torch.bfloat16}
    assert a.nbytes == 2 * 2 * 8 * (5 + 7 + 7)
    assert torch.equal(a.k, b.k)
    assert not torch.equal(a.k, c.k)
    assert a.fingerprint() == b.fingerprint() != c.fingerprint()


def test_a_small_output_is_compared_whole_and_a_large_one_in_blocks_of_some_heads():
    assert sample(AWKWARD, CPU).whole
    part = sample(Shape(2, 3, 1000, 512, 64), CPU, scores=4 * 3 * 128 * 512)
    assert not part.whole
    assert part.heads.tolist() == [0, 1, 3, 5]
    blocks = (part.rows // 128).unique().tolist()
    assert blocks == [0, 3, 7]
    assert part.rows.tolist() == [r for b in blocks for r in range(128 * b, min(128 * b + 128, 1000))]
    tiny = sample(Shape(1, 40, 75_600, 75_600, 128), CPU, scores=1)
    assert (len(tiny.heads), len(tiny.rows)) == (1, 75_600 % 128)
    assert len(sample(Shape(1, 40, 75_600, 75_600, 128), CPU).rows) <= 2**27 // (4 * 75_600)


@pytest.mark.parametrize("name", QUANTISED)
def test_what_a_sample_is_due_is_a_part_of_the_whole_reference(operands, name):
    """Statistics over all of Q enter, whichever rows are compared."""
    part = sample(AWKWARD, CPU, scores=2 * 2 * 128 * 193)
    assert not part.whole
    spec = method(name).spec
    where = seat(operands, spec)
    whole = computed(operands, spec, where)
    want, own = Judge(operands, part).reference(spec, where)
    b, h = part.heads // 3, part.heads % 3
    expected = whole[b, h][:, part.rows][None]
    assert want.shape == expected.shape == (1, len(part.heads), len(part.rows), 64)
    assert float((want - expected).norm() / expected.norm()) < 1e-4
    assert 1e-3 < own < 0.5


def test_exact_attention_of_a_sample_is_that_of_torch_in_float64(operands):
    part = sample(AWKWARD, CPU, scores=2 * 2 * 128 * 193)
    wide = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in (operands.q, operands.k, operands.v)))
    expected = wide[part.heads // 3, part.heads % 3][:, part.rows][None]
    torch.testing.assert_close(Judge(operands, part).exact(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", METHODS)
def test_the_reference_itself_is_right_in_every_dtype(name, dtype):
    operands = draw(AWKWARD, CPU, dtype, 1)
    spec = method(name).spec
    where = seat(operands, spec)
    out = attend(operands.q, operands.k, operands.v, spec, impl="reference", site=where.site, state=where.state)
    for scores in (None, 2 * 2 * 128 * 193):
        verdict = Judge(operands, sample(AWKWARD, CPU, scores)).of_method(out, spec, "reference", where)
        assert not verdict.red, verdict
        assert verdict.against == ("reference" if spec.quantised else "exact")
        assert (verdict.own is None) == (not spec.quantised)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("mxattn", "row_sum", "exact"),
        ("mxattn", "hadamard", False),
        ("mxattn", "scale_rule", "oas"),
        ("mxattn", "kv_tile", 64),
        ("nvfp4", "tensor_scale", False),
        ("nvfp4-sage", "k_mean", False),
        ("nvfp4-sage", "q_block_mean", False),
        ("nvfp4-sage", "p.prescale", 1.0),
        ("sage2", "k_mean", False),
        ("sage2", "p.prescale", 256.0),
        ("fp8", "p.prescale", 448.0),
        ("vc8", "k_mean", False),
        ("vc8", "exponential", "exp2"),
        ("vc8", "row_sum", "exact"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_neighbour_is_red(name, field, value, dtype):
    operands = draw(AWKWARD, CPU, dtype, 2)
    spec = method(name).spec
    where = seat(operands, spec)
    out = computed(operands, apply(spec, field, value), where)
    verdict = Judge(operands, sample(AWKWARD, CPU)).of_method(out, spec, "conformance", where)
    assert verdict.red
    assert verdict.error > 1e-3
    assert "1.0e-03 is allowed" in verdict.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0.0, 3e-4, 1e-3, 1e-2])
def test_distance_leaves_out_what_rounding_the_output_makes(dtype, size):
    want = torch.randn(400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = distance((want + size * noise).to(dtype), want)
    assert found == pytest.approx(size, rel=0.1, abs=1e-12)


def test_distance_is_the_relative_one_in_float64():
    want = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert distance(torch.tensor([3.0, 4.5], dtype=torch.float64), want) == pytest.approx(0.1, rel=1e-12)
    assert distance(torch.zeros(2), torch.zeros(2)) == 0.0


def test_tolerances_are_those_of_the_paths():
    def of(name, impl, own=0.24, dtype=torch.bfloat16):
        return tolerance(method(name).spec, impl, dtype, own)

    assert of("mxattn", "conformance") == of("vc8", "conformance") == of("nvfp4", "native") == 1e-3
    assert of("mxattn", "fast") == pytest.approx(0.24 / 50)
    assert of("mxattn", "fast", own=0.01) == 1e-3
    assert of("vc8", "fast", own=0.02) == 2e-3
    assert of("fp8", "fast", own=0.06) == pytest.approx(0.06 / 20)
    for dtype, allowed in EXACT_TOLERANCE.items():
        assert of("fp16", "sdpa", dtype=dtype) == allowed


def test_outputs_of_another_kind_and_non_finite_ones_are_red(operands):
    judge = Judge(operands, sample(AWKWARD, CPU, scores=128 * 193))
    right = torch.nn.functional.scaled_dot_product_attention(operands.q, operands.k, operands.v)
    assert not judge.of_peer(right, 1e-5).red
    for wrong in (right[..., :32], right.bfloat16(), right.transpose(1, 2)):
        verdict = judge.of_peer(wrong, 1e-5)
        assert verdict.red
        assert "is due" in verdict.reason
    right[0, 0, 3, 5] = math.nan  # not in the sample
    verdict = judge.of_peer(right, 1e-5)
    assert verdict.red
    assert verdict.reason == "the output holds a NaN or an infinity"


def test_memory_that_an_output_is_written_to_holds_nan(monkeypatch):
    poison = []
    honest = torch.full_like
    monkeypatch.setattr(check.torch, "full_like", lambda *a: poison.append(honest(*a)) or poison[-1])
    out = check.poisoned(torch.zeros(2, 3), lambda: torch.ones(1))
    assert torch.equal(out, torch.ones(1))
    assert [bool(each.isnan().all()) for each in poison] == [True]


def test_methods_without_state_have_no_seat_and_v_smooth_keeps_its_grouping(operands):
    assert seat(operands, method("mxattn").spec) == Seat()
    where = seat(operands, method("vc4").spec)
    before = {key: each.order.clone() for key, each in where.state.groupings.items()}
    computed(operands, method("vc4").spec, where)
    assert len(before) == 1
    assert all(torch.equal(before[key], each.order) for key, each in where.state.groupings.items())
