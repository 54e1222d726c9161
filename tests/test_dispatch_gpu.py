"""``attend`` on a CUDA device: what ``auto`` takes, the kernels by name, and a call that E5M2 cannot hold."""

from __future__ import annotations

import pytest
import torch

from mxbench import METHODS, attach, attend
from mxbench.attention.reference import reference
from mxbench.attention.value import GroupingState
from mxbench.dispatch import Tally, default_impl, unsupported
from mxbench.errors import UserError

pytestmark = pytest.mark.gpu

FAST = {"mxfp4", "mxfp4-tfs", "mxfp4-oas", "mxattn", "sage2", "fp8", "vc8"}


def operands(nq: int = 300, nk: int = 517, d: int = 128, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    g = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1, 3, n, d, generator=g, device="cuda") for n in (nq, nk, nk))
    return [x.to(dtype) for x in (q, k + 1, v + 0.5)]


def off(out: torch.Tensor, true: torch.Tensor) -> float:
    return float((out.double() - true.double()).norm() / true.double().norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", METHODS)
def test_auto_is_the_first_that_computes_the_method(method: str, dtype: torch.dtype) -> None:
    q, k, v = operands(dtype=dtype)
    chosen = "sdpa" if method == "fp16" else "fast" if method in FAST else "conformance"
    assert default_impl(METHODS[method].spec, q.device, dtype) == chosen
    assert torch.equal(attend(q, k, v, method), attend(q, k, v, method, impl=chosen))


@pytest.mark.parametrize("method", [name for name in METHODS if name != "fp16"])
def test_conformance_computes_every_method(method: str) -> None:
    wide = [x.float() for x in operands()]
    assert off(attend(*wide, method, impl="conformance"), reference(*wide, METHODS[method].spec)) < 1e-3


@pytest.mark.parametrize("method", ["mxfp4", "mxattn"])
def test_what_e5m2_cannot_hold_is_computed_in_bf16_and_counted(method: str) -> None:
    q, k, v = operands()
    tally = Tally()
    attend(q, k, v, method, impl="fast", tally=tally)
    assert tally.widened == 0
    for x in (k, v):
        x[..., :200, :] *= 2.0**-40
    out = attend(q, k, v, method, impl="fast", tally=tally)
    assert tally.widened == 1
    assert torch.equal(out, attend(q, k, v, method, impl="conformance"))


def test_native_needs_fp4_matrix_units() -> None:
    q, k, v = operands()
    if torch.cuda.get_device_capability()[0] == 10:
        pytest.skip("this device has them")
    assert unsupported(METHODS["mxattn"].spec, "native", q.device, q.dtype) is not None
    with pytest.raises(UserError, match="its kernels need FP4 matrix units"):
        attend(q, k, v, "mxattn", impl="native")


@pytest.fixture(scope="module")
def pipe():
    from mxbench.models.nano.model import Nano

    return Nano("cuda:0").pipe


PATHS = [(name, impl) for name in METHODS if name != "fp16" for impl in ("conformance", "fast")]


@pytest.mark.parametrize(("method", "impl"), [p for p in PATHS if p[1] == "conformance" or p[0] in FAST])
def test_every_call_of_a_render_is_computed_as_the_reference_computes_it(pipe, method: str, impl: str) -> None:
    """On the operands of a render by the reference: two renders part (``mxbench.analysis.rounding``)."""
    spec, states, found = METHODS[method].spec, (GroupingState(), GroupingState()), []

    def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        wide = [x.float() for x in (q, k, v)]
        true, got = (
            attend(*wide, spec, impl=by, site=seam.site, state=state)
            for by, state in zip(("reference", impl), states, strict=True)
        )
        own = off(true, attend(*wide, "fp16"))
        allowed = 1e-3 if impl == "conformance" else own / 50 if spec.p.format == "mxfp4" else max(2e-3, own / 20)
        found.append((off(got, true), allowed))
        return true.to(q.dtype)

    with attach(pipe, both) as seam:
        pipe(
            "a red circle moves left", height=128, width=128, num_frames=17, num_inference_steps=4, guidance_scale=4.0,
            guidance_scale_2=3.0, max_sequence_length=64, output_type="latent",
            generator=torch.Generator("cpu").manual_seed(0),
        )  # fmt: skip
    assert len(found) == 4 * 2 * 8  # steps, branches, layers
    assert not [pair for pair in found if not pair[0] <= pair[1]]
