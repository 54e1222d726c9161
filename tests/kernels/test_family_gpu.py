"""The kernels against the reference on the device: shapes, strides, masks, 1,000 random cases and every neighbour."""

from __future__ import annotations

import random

import pytest
import torch
import witnesses
from test_mutations import TOLERANCE, fails, neighbours

from mxbench import METHODS
from mxbench.attention.reference import reference
from mxbench.attention.spec import Hadamard
from mxbench.errors import UserError

pytestmark = pytest.mark.gpu

EMULATED = [name for name in METHODS if name != "fp16"]
FAST = ("mxfp4", "mxfp4-tfs", "mxfp4-oas", "mxattn", "sage2", "fp8", "vc8")


def operands(b, h, nq, nk, d, seed=0, dtype=torch.bfloat16):
    """Operands with the outliers of a video model: a few large channels, K with a mean, V with groups."""
    g = torch.Generator("cuda").manual_seed(seed)
    q, k, v = (torch.randn(b, h, n, d, generator=g, device="cuda") for n in (nq, nk, nk))
    scale = 1 + 6 * (torch.rand(d, generator=g, device="cuda") < 0.05)
    q, k = q * scale, k * scale + torch.randn(d, generator=g, device="cuda")
    v = v + 2 * torch.randn(8, d, generator=g, device="cuda")[torch.arange(nk, device="cuda") * 8 // max(nk, 1)]
    return tuple(x.to(dtype) for x in (q, k, v))


def off(out, true):
    return float((out.double() - true.double()).norm() / true.double().norm().clamp(min=1e-30))


def exact(q, k, v):
    s = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    return s.softmax(-1) @ v.double()


def tolerance(path, spec, q, k, v, true):
    """``design``: conformance 1e-3; E5M2 1/50 of the method's own error; 8 bits max(2e-3, 1/20 of it)."""
    if path == "conformance":
        return 1e-3
    own = off(true, exact(q.float(), k.float(), v.float()))
    return own / 50 if spec.p.format == "mxfp4" else max(2e-3, own / 20)


def check(path, spec, q, k, v):
    """The error, beyond the rounding of an output, and what is allowed; None where the path loses an element."""
    from mxbench.kernels.fused import fused
    from mxbench.kernels.prepass import hold

    before = [x.clone() for x in (q, k, v)]
    held = hold(q, k, v, spec, path)
    if held.lost is not None and int(held.lost):
        return None
    got = fused(held, spec, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v), strict=True))
    true = reference(q.float(), k.float(), v.float(), spec)
    return off(got, true), tolerance(path, spec, q, k, v, true)


def assert_near(path, spec, q, k, v):
    found = check(path, spec, q, k, v)
    assert found is not None
    error, allowed = found
    assert error <= allowed, (tuple(q.shape), tuple(k.shape), error, allowed)


@pytest.mark.parametrize("path", ["conformance", "fast"])
@pytest.mark.parametrize("method", EMULATED)
def test_shapes(method, path):
    if path == "fast" and method not in FAST:
        pytest.skip("NVFP4 has no exact 8-bit hold")
    spec = METHODS[method].spec
    for d in (64, 80, 96, 128, 256):
        if d & (d - 1) and spec.stage(Hadamard):
            continue
        for nq, nk in ((1, 1), (17, 17), (127, 127), (127, 129), (129, 127), (1000, 1000), (130, 4099)):
            assert_near(path, spec, *operands(1, 2, nq, nk, d, seed=d + nq))


@pytest.mark.parametrize("path", ["conformance", "fast"])
@pytest.mark.parametrize("method", EMULATED)
def test_the_keys_of_a_whole_video(method, path):
    """75,600 of them, as Wan2.2 has at 720p; ``mxbench bench`` checks as many queries before it times a kernel."""
    if path == "fast" and method not in FAST:
        pytest.skip("NVFP4 has no exact 8-bit hold")
    assert_near(path, METHODS[method].spec, *operands(1, 2, 300, 75_600, 128))


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("path", ["conformance", "fast"])
@pytest.mark.parametrize("method", EMULATED)
def test_strides_and_masks(method, path, d):
    if path == "fast" and method not in FAST:
        pytest.skip("NVFP4 has no exact 8-bit hold")
    from mxbench.kernels.family import compute

    spec = METHODS[method].spec
    q, k, v = operands(2, 3, 300, 300, d)
    assert_near(path, spec, *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)))
    mask = torch.rand(2, 300, generator=torch.Generator("cuda").manual_seed(1), device="cuda") < 0.7
    masked = compute(q, k, v, spec, path, key_mask=mask)
    assert masked.dtype == q.dtype
    for b, keys in enumerate(mask):
        one = q[b : b + 1], k[b : b + 1, :, keys], v[b : b + 1, :, keys]
        assert torch.equal(masked[b : b + 1], compute(*one, spec, path))
        assert_near(path, spec, *one)
    true = reference(q.float(), k.float(), v.float(), spec, key_mask=mask)
    assert off(masked, true.to(q.dtype)) <= max(1e-3, tolerance(path, spec, q, k, v, true))  # both rounded to BF16
    mask[1] = False
    k[1], v[1] = float("nan"), float("inf")
    out = compute(q, k, v, spec, path, key_mask=mask)
    assert bool((out[1] == 0).all())
    assert bool(torch.isfinite(out).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("path", ["conformance", "fast"])
def test_what_compute_returns_is_the_kernel_s_output_in_the_type_of_the_operands(path, dtype):
    from mxbench.kernels.family import compute
    from mxbench.kernels.fused import fused
    from mxbench.kernels.prepass import hold

    spec, tensors = METHODS["mxattn"].spec, operands(1, 2, 129, 300, 64, dtype=dtype)
    got, wide = compute(*tensors, spec, path), fused(hold(*tensors, spec, path), spec, torch.float32)
    assert got.dtype == dtype
    assert off(got, wide) <= torch.finfo(dtype).eps / 2


def random_program(rng):
    """A method or a neighbour of one, a path that computes it, and head dimension and dtype: what is compiled."""
    from mxbench.kernels.fused import unsuited
    from mxbench.kernels.prepass import reason

    while True:
        method = rng.choice(EMULATED)
        name, spec = rng.choice(neighbours(method)) if rng.random() < 0.5 else ("itself", METHODS[method].spec)
        path, dtype = rng.choice(["conformance", "fast"]), rng.choice([torch.bfloat16, torch.float16])
        d = rng.choice([64, 128, 256] if spec.stage(Hadamard) else [64, 72, 80, 96, 112, 128, 256])
        if reason(spec, path, dtype) is None and unsuited(spec, d) is None:
            return f"{method} {name} {path} {dtype} {d}", spec, path, d, dtype


def length(rng):
    return rng.choice([1, 2, 31, 64, 127, 128, 129, 257, 500, rng.randint(1, 1500)])


@pytest.mark.parametrize("lot", range(50))
def test_a_thousand_random_cases(lot):
    """Twenty a lot, each of a method, a neighbour, a path, a dtype and a shape of its own."""
    rng, done, wrong = random.Random(lot), 0, []
    while done < 20:
        name, spec, path, d, dtype = random_program(rng)
        shape = (rng.randint(1, 2), rng.randint(1, 3), length(rng), length(rng), d)
        tensors = operands(*shape, seed=rng.randint(0, 1 << 30), dtype=dtype)
        if rng.random() < 0.5:  # as diffusers hands them over; or every other key of a longer sequence
            tensors = tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors)
        if rng.random() < 0.2:
            tensors = (tensors[0], *(x.repeat_interleave(2, 2)[:, :, ::2] for x in tensors[1:]))
        try:
            found = check(path, spec, *tensors)
        except UserError:  # a layout that needs the latent grid
            continue
        if found is not None:  # else more powers of two than E5M2 has
            done += 1
            if not found[0] <= found[1]:
                wrong.append((name, shape, *found))
    assert not wrong, wrong


def on_the_device(q, k, v, spec, **more):
    from mxbench.kernels.family import compute

    return compute(q.cuda(), k.cuda(), v.cuda(), spec, "conformance", **more).cpu()


@pytest.mark.parametrize("method", EMULATED)
def test_the_method_passes_and_no_neighbour_does(method):
    """The mutation test of tests/attention, computed by the kernels: against the oracle, on the same witnesses."""
    from mxbench.kernels.fused import unsuited
    from mxbench.kernels.prepass import reason

    worst = max(witnesses.off(w, method, METHODS[method].spec, on_the_device) for w in witnesses.of(method))
    assert worst < TOLERANCE
    computed = [
        (name, spec)
        for name, spec in neighbours(method)
        if reason(spec, "conformance", torch.float32) is None and unsuited(spec, 64) is None
    ]
    assert len(computed) >= 12
    survivors = [name for name, spec in computed if not fails(method, spec, on_the_device)]
    assert not survivors
