"""Held operands made in plain torch, with their factors taken out, for the kernel tests."""

from __future__ import annotations

import torch

from mxbench.attention.qk import prepare_qk
from mxbench.attention.reference import Operands, prepare
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import arrange
from mxbench.formats.block import Quantised, quantise
from mxbench.formats.groups import ROWS
from mxbench.kernels.held import Held, Hold

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
    "int8": torch.int8,
}


def plain(operands: Operands) -> Held:
    """The reference's own operands, in FP32."""
    q, k, v = (x.contiguous() for x in (operands.q, operands.k, operands.v))
    scales = [x if x is None else x[..., 0].contiguous() for x in (operands.q_scale, operands.k_scale)]
    return Held(q, k, v, *scales, None, operands.mean, operands.owed, operands.owed_rows, "float32", "float32")


def _expanded(x: torch.Tensor, like: Quantised) -> torch.Tensor:
    """A factor of a group at every element, in the shape of the input."""
    return like.groups.restore(x.expand_as(like.elements))


def _split(z: Quantised) -> tuple[torch.Tensor, torch.Tensor]:
    """Values for the matrix unit and their factor, both in the shape of the input."""
    one = torch.ones_like(z.elements)
    if z.quantizer.form.block is None:
        return z.groups.restore(z.elements), _expanded(z.scale, z)
    return z.groups.restore(z.elements * z.scale), _expanded(one if z.tensor_scale is None else z.tensor_scale, z)


def _lifted(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Into the range of E5M2 by powers of two, one for each index outside ``dims``."""
    amax = x.abs().amax(dims, keepdim=True)
    power = torch.exp2(torch.floor(torch.log2(amax)) - 14)
    power = torch.where(amax == 0, torch.ones_like(power), power)
    return x / power, power.expand_as(x)


def held(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec, hold_qk: Hold, hold_pv: Hold
) -> tuple[Held, Operands]:
    """Operands as the pre-pass would hold them, and the reference's."""
    assert spec.q is not None and spec.k is not None and spec.v is not None
    ready, n = prepare_qk(q, k, spec), k.shape[-2]
    k_ready, v_ready, owed, mean = ready.k, v.float(), ready.owed, None
    if spec.v_smooth is not None:
        order, _ = arrange(v_ready, spec.v_smooth, None, None)
        assert order is not None
        k_ready, v_ready = (x.take_along_dim(order[..., None], -2) for x in (k_ready, v_ready))
        blocks = torch.nn.functional.pad(v_ready, (0, 0, 0, -n % ROWS)).unflatten(-2, (-1, ROWS))
        counts = torch.full(blocks.shape[-3:-2], float(ROWS), device=v.device)
        counts[-1] = n - ROWS * (len(counts) - 1)
        mean = blocks.sum(-2) / counts[:, None]
        v_ready = (blocks - mean[..., None, :]).flatten(-3, -2)[..., :n, :]
    q_values, q_factor = _split(quantise(ready.q, spec.q, role="q"))
    k_values, k_factor = _split(quantise(k_ready, spec.k, role="k"))
    v_values, v_factor = _split(quantise(v_ready, spec.v, axis=-2, role="v"))
    if hold_qk == "e5m2":
        (q_values, lift_q), (k_values, lift_k) = _lifted(q_values, (-2, -1)), _lifted(k_values, (-2, -1))
        q_factor, k_factor = q_factor * lift_q, k_factor * lift_k
    if hold_pv == "e5m2":
        v_values, lift_v = _lifted(v_values, (-2,))
        v_factor = v_factor * lift_v
    q_rows, k_rows, v_columns = q_factor[..., 0], k_factor[..., 0], v_factor[..., 0, :]
    if bool((k_rows == k_rows[..., :1]).all()):  # one for all keys goes with Q's
        q_rows, k_rows = q_rows * k_rows[..., :1], torch.ones_like(k_rows)
    if mean is not None:
        stored = mean if spec.v.form.block is not None else mean / v_columns[..., None, :]
        mean = stored.bfloat16().float()
    if hold_pv in ("e5m2", "e4m3", "int8"):
        v_values = torch.nn.functional.pad(v_values.transpose(-1, -2), (0, -n % spec.kv_tile))
    values = [x.to(DTYPES[h]).contiguous() for x, h in ((q_values, hold_qk), (k_values, hold_qk), (v_values, hold_pv))]
    assert all(bool((x.float() == y).all()) for x, y in zip(values, (q_values, k_values, v_values), strict=True))
    return Held(
        *values,
        q_scale=None if bool((q_rows == 1).all()) else q_rows.contiguous(),
        k_scale=None if bool((k_rows == 1).all()) else k_rows.contiguous(),
        v_scale=None if bool((v_columns == 1).all()) else v_columns.contiguous(),
        mean=mean,
        owed=owed,
        owed_rows=ready.owed_rows,
        hold_qk=hold_qk,
        hold_pv=hold_pv,
    ), prepare(q, k, v, spec)


def falling(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q, K and V of two key tiles: the maximum of the second is 2^127 times that of the first, whose V make up for it.

    MXFP4 holds Q and K as they are.
    """
    g = torch.Generator().manual_seed(0)
    direction = 2.0 * torch.randint(0, 2, (64,), generator=g) - 1
    far = torch.where(torch.rand(1, 2, 128, 64, generator=g) < 0.02, -12.0, -8.0)
    k = torch.cat([far, torch.full((1, 2, 64, 64), 3.0)], -2) * direction
    v = torch.randn(1, 2, 192, 64, generator=g)
    v[:, :, :128] *= 2.0**121
    return direction.expand(1, 2, 96, 64).contiguous().to(device), k.to(device), v.to(device)
