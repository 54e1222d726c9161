"""Codes and scales as bytes: back and forth exactly, against ml_dtypes, and how many there are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from mxbench.formats.block import pack_nibbles, quantise, unpack, unpack_nibbles
from mxbench.formats.quantizer import Quantizer

QUANTIZERS = [
    Quantizer("mxfp4", scale_rule="uos"),
    Quantizer("nvfp4"),
    Quantizer("nvfp4", tensor_scale=True),
    Quantizer("e4m3", "tensor"),
    Quantizer("e4m3", "channel"),
    Quantizer("e4m3", "rows"),
    Quantizer("int8", "rows"),
    Quantizer("int8", "sage_threads", rounding="half_away", eps=1e-7),
]


def tensor(*shape: int) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(2))
    x[..., : shape[-1] // 3] = 0
    return x


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda z: f"{z.format}-{z.granularity}")
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("shape", [(2, 2, 77, 80), (1, 1, 1, 32), (1, 3, 129, 112)])
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_packing_loses_nothing(
    quantizer: Quantizer, axis: int, shape: tuple[int, int, int, int], bad: float | None
) -> None:
    x = tensor(*shape)
    if bad is not None:
        x[0, 0, 0, 5] = bad
    out = quantise(x, quantizer, axis=axis, role="k")
    packed = out.pack()
    assert packed.codes.dtype == torch.uint8
    assert torch.equal(unpack(packed).dequantise().nan_to_num(nan=1e30), out.dequantise().nan_to_num(nan=1e30))


def test_nibbles() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(3, 2)
    assert pack_nibbles(codes)[0, :2].tolist() == [0x10, 0x32]
    assert torch.equal(unpack_nibbles(pack_nibbles(codes)), codes)


def test_mxfp4_bytes_mean_what_the_specification_says() -> None:
    x = tensor(1, 1, 5, 64)
    packed = quantise(x, Quantizer("mxfp4")).pack()
    codes = unpack_nibbles(packed.codes).numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    scale = packed.scale.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal((codes * scale).reshape(x.shape), quantise(x, Quantizer("mxfp4")).dequantise().numpy())
    assert packed.nbytes == 5 * 64 // 2 + 5 * 2


def test_nvfp4_bytes_mean_what_the_specification_says() -> None:
    x = tensor(2, 1, 5, 64)
    out = quantise(x, Quantizer("nvfp4", tensor_scale=True))
    packed = out.pack()
    codes = unpack_nibbles(packed.codes).numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    scale = packed.scale.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert packed.tensor_scale is not None
    got = (codes * scale) * packed.tensor_scale.numpy()
    assert np.array_equal(got.reshape(x.shape), out.dequantise().numpy())
    assert packed.nbytes == 2 * (5 * 64 // 2 + 5 * 4) + 2 * 4


@pytest.mark.parametrize(
    ("quantizer", "nbytes"),
    [
        (Quantizer("mxfp4"), 6 * (77 * 96 // 2 + 77 * 3)),  # 80 channels are padded to 96
        (Quantizer("nvfp4"), 6 * (77 * 80 // 2 + 77 * 5)),
        (Quantizer("e4m3", "channel"), 6 * (77 * 80 + 80 * 4)),
        (Quantizer("int8", "tensor"), 6 * (77 * 80 + 4)),
        (Quantizer("int8", "rows"), 6 * (128 * 80 + 4)),
    ],
    ids=lambda z: z.format if isinstance(z, Quantizer) else "",
)
def test_byte_counts(quantizer: Quantizer, nbytes: int) -> None:
    assert quantise(tensor(2, 3, 77, 80), quantizer).pack().nbytes == nbytes


def test_mxfp4_along_tokens_packs_what_shares_a_scale_together() -> None:
    x = tensor(1, 1, 64, 48)
    packed = quantise(x, Quantizer("mxfp4"), axis=-2).pack()
    assert packed.codes.shape == (1, 1, 48, 2, 16)
    assert packed.scale.shape == (1, 1, 48, 2, 1)
