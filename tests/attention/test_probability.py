"""``quantise_tile_``, the fast path of P, equals ``formats.block.quantise`` along keys, value for value."""

from __future__ import annotations

import pytest
import torch

from mxbench.attention.probability import quantise_tile_
from mxbench.formats.block import quantise
from mxbench.formats.element import ELEMENTS, round_to
from mxbench.formats.quantizer import Quantizer

BLOCK = [
    *[Quantizer("mxfp4", scale_rule=rule) for rule in ("ocp", "tfs", "oas", "uos", "4", "6.5", "8")],
    *[Quantizer("nvfp4", prescale=s, divide_by=d) for s in (1.0, 256.0, 2688.0) for d in ("stored", "exact")],
]
UNIT = [
    Quantizer("e4m3", "unit", prescale=256.0),
    Quantizer("e4m3", "unit", prescale=448.0),
    Quantizer("int8", "unit", prescale=127.0),
    Quantizer("int8", "unit", prescale=127.0, rounding="half_away"),
]


def tiles() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    u = -8 * torch.rand(3, 40, 128, generator=g)
    zeros = torch.exp2(u)
    zeros[..., 32:64] = 0
    zeros[..., ::3] = 0
    return {
        "plain": torch.exp2(u),
        "one": torch.exp2(u - u.amax(-1, keepdim=True)),
        "zero blocks": zeros,
        "all zero": torch.zeros(1, 2, 128),
        "powers of two": torch.exp2(u.round()),
        "tiny": torch.exp2(16 * u),
        "subnormal": torch.exp2(u - 130),
        "next to nothing": torch.exp2(u.clamp(min=-5) - 144),
        "largest last": torch.exp2(torch.linspace(-40, 0, 128)).expand(2, 2, 128).contiguous(),
        "beside powers of two": torch.nextafter(torch.exp2(u.round()), torch.tensor(0.0)),
        "beside theta": torch.nextafter(1.8125 * torch.exp2(u.round() - 1), torch.tensor(2.0)),
    }


@pytest.mark.parametrize("quantizer", BLOCK, ids=str)
def test_block_formats(quantizer: Quantizer) -> None:
    for name, p in tiles().items():
        p = p * quantizer.prescale
        expected = quantise(p, quantizer).dequantise()
        got = quantise_tile_(p.clone(), quantizer, torch.full_like(p, float("nan")))
        assert torch.equal(got, expected), name


@pytest.mark.parametrize("quantizer", UNIT, ids=str)
def test_formats_without_a_scale(quantizer: Quantizer) -> None:
    halves = torch.arange(0, 130, 0.5)[None, None, :128]
    below = torch.nextafter(halves[..., 1:], torch.tensor(0.0))
    for p in [*(p * quantizer.prescale for p in tiles().values()), halves, below, 3 * halves]:
        expected = round_to(p, ELEMENTS[quantizer.format], quantizer.rounding)
        got = quantise_tile_(p.clone(), quantizer, torch.full_like(p, float("nan")))
        assert torch.equal(got, expected)


@pytest.mark.parametrize("quantizer", BLOCK, ids=str)
def test_a_nan_spoils_its_block_and_no_other(quantizer: Quantizer) -> None:
    p = tiles()["plain"] * quantizer.prescale
    clean = quantise_tile_(p.clone(), quantizer, torch.empty_like(p))
    p[1, 5, 70] = float("nan")
    got = quantise_tile_(p.clone(), quantizer, torch.empty_like(p))
    size = quantizer.form.block or 0
    sick = torch.zeros_like(p, dtype=torch.bool)
    sick[1, 5, 70 // size * size :][:size] = True
    assert got[1, 5, 70].isnan()
    assert torch.equal(got[~sick], clean[~sick])


def test_the_result_is_the_tile_itself() -> None:
    p = tiles()["plain"]
    assert quantise_tile_(p, BLOCK[0], torch.empty_like(p)) is p
