"""What the pre-pass holds, times its factors, against the reference's operands."""

from __future__ import annotations

from typing import Any

import torch

from mxbench.attention.reference import Operands, prepare
from mxbench.attention.spec import AttentionSpec
from mxbench.kernels.held import Held
from mxbench.kernels.prepass import hold

PATHS = ("float32", "conformance", "fast")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def grid(*shape: int, seed: int, step: float = 2.0**-6) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return ((x / step).round() * step).clamp(-4, 4)


def operands(shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, nq: int | None = None) -> list[torch.Tensor]:
    b, h, n, d = shape
    sizes = [nq or n, n, n]
    return [grid(b, h, size, d, seed=i).to(dtype) for i, size in enumerate(sizes)]


def kept(tensors: list[torch.Tensor], spec: AttentionSpec, path: str, **options: Any) -> Held:
    """``hold`` on the device of the tests; what it holds, on the CPU."""
    held = hold(*(x.to(DEVICE) if x.device.type != DEVICE else x for x in tensors), spec, path, **options)
    fields = {name: getattr(held, name) for name in Held.__dataclass_fields__}
    return Held(**{n: x.cpu() if isinstance(x, torch.Tensor) else x for n, x in fields.items()})


def wanted(tensors: list[torch.Tensor], spec: AttentionSpec, **options: Any) -> Operands:
    """``prepare`` on the same device, whose groupings may turn on a rounding; on the CPU."""
    made = prepare(*(x.to(DEVICE) for x in tensors), spec, **options)
    fields = {name: getattr(made, name) for name in Operands.__dataclass_fields__}
    return Operands(**{n: x.cpu() if isinstance(x, torch.Tensor) else x for n, x in fields.items()})


def values(held: Held) -> torch.Tensor:
    """V, times its factors, in the order of the keys."""
    v = held.v.float()
    if held.hold_pv in ("e5m2", "e4m3", "int8"):
        assert not v[..., held.k.shape[-2] :].any()
        v = v.transpose(-1, -2)[..., : held.k.shape[-2], :]
    return v if held.v_scale is None else v * held.v_scale[:, :, None, :]


def factored(held: Held) -> tuple[torch.Tensor, torch.Tensor]:
    """Q and K, times their factors."""
    q, k = held.q.float(), held.k.float()
    return (
        q if held.q_scale is None else q * held.q_scale[..., None],
        k if held.k_scale is None else k * held.k_scale[..., None],
    )


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(got.nan_to_num(-7e30), expected.nan_to_num(-7e30)) and torch.equal(got.isnan(), expected.isnan())


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q.double() @ k.double().transpose(-1, -2)


def one_for_all(k: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """K's factor that was folded into Q's: ``[B,H,1,1]``, from the largest element; 1 for zeros."""
    at = k.flatten(-2).nan_to_num(0.0).abs().argmax(-1, keepdim=True)
    ratio = expected.flatten(-2).gather(-1, at) / k.flatten(-2).gather(-1, at)
    return torch.where(ratio.isfinite(), ratio, torch.ones_like(ratio))[..., None]


def in_order(owed: torch.Tensor, tile: int) -> torch.Tensor:
    """What Q's means owe ``[..., N']``, its keys back in their order from ``key_order.quartered_columns``'s."""
    if tile == 0:
        return owed
    return owed.unflatten(-1, (-1, tile // 16, 4, 4)).transpose(-3, -2).flatten(-4)


def check(held: Held, expected: Operands, spec: AttentionSpec) -> None:
    """Held values times factors against the reference's operands."""
    assert all(x.is_contiguous() for x in (held.q, held.k, held.v))
    assert same(values(held), expected.v)
    q, k = factored(held)
    right_q, right_k = expected.factored()
    if held.k_scale is None and not same(q, right_q):  # one factor of all keys, which stands with the queries
        assert held.q_scale is not None
        got, right = scores(q, k), scores(right_q, right_k)
        assert torch.equal(got.isnan(), right.isnan())
        assert ((got - right).abs() <= 1e-6 * scores(right_q.abs(), right_k.abs()))[~right.isnan()].all()
    else:
        assert same(q, right_q)
        assert same(k, right_k)
    assert (held.mean is None) == (expected.mean is None)
    if held.mean is not None and expected.mean is not None:
        mean = held.mean if held.v_scale is None else held.mean * held.v_scale[:, :, None, :]
        if held.v_scale is None or held.hold_pv in ("int8", "e4m3", "e5m2"):
            assert same(mean, expected.mean)
        else:
            torch.testing.assert_close(mean, expected.mean, rtol=2e-7, atol=0, equal_nan=True)
    assert (held.owed is None) == (expected.owed is None)
    if held.owed is not None:
        assert held.owed_rows == expected.owed_rows
        owed = in_order(held.owed, held.owed_tile)[..., : expected.owed.shape[-1]]
        torch.testing.assert_close(owed, expected.owed, rtol=1e-5, atol=1e-4, equal_nan=True)
    if held.lost is not None:
        assert int(held.lost) == 0
