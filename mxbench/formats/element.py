"""Element formats: which values exist, how FP32 is rounded to them, and their bit codes.

Sources: OCP Microscaling Formats (MX) Specification v1.0 for E2M1, E4M3, E5M2, E8M0 and INT8; OCP 8-bit Floating
Point Specification (OFP8) for the FP8 pair. INT8 here is the plain signed integer of the 8-bit attention methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

__all__ = [
    "E2M1",
    "E4M3",
    "E5M2",
    "E8M0",
    "ELEMENTS",
    "INT8",
    "Element",
    "decode",
    "encode",
    "exponent_floor",
    "round_to",
    "round_to_",
]

Rounding = Literal["rne", "half_away"]

_EXPONENT_BITS = 0x7F800000  # of an FP32
_TO_INTEGER = 1.5 * 2.0**23  # adding it leaves an FP32 no fraction bits, so the sum is rounded to an integer


@dataclass(frozen=True, slots=True)
class Element:
    """One element format, as data.

    Attributes:
        name: the name that the specification gives.
        bits: the width of a code.
        mantissa: stored mantissa bits; None for a format that is no float.
        min_exponent: exponent of the smallest normal value; below it the spacing stays the same.
        max: largest finite magnitude, where rounding saturates.
    """

    name: str
    bits: int
    mantissa: int | None
    min_exponent: int
    max: float


E2M1 = Element("e2m1", 4, 1, 0, 6.0)
E4M3 = Element("e4m3", 8, 3, -6, 448.0)
E5M2 = Element("e5m2", 8, 2, -14, 57344.0)
INT8 = Element("int8", 8, None, 0, 127.0)
E8M0 = Element("e8m0", 8, 0, -127, 2.0**127)

ELEMENTS: dict[str, Element] = {e.name: e for e in (E2M1, E4M3, E5M2, INT8, E8M0)}


def exponent_floor(x: torch.Tensor, min_exponent: int) -> torch.Tensor:
    """Largest power of two that does not exceed ``max(|x|, 2^min_exponent)``, as FP32 of the same shape.

    Read off the FP32 bits, so it is exact: a float log2 is wrong one ulp beside most powers of two.
    """
    return torch.bitwise_and(x.view(torch.int32), _EXPONENT_BITS).view(torch.float32).clamp_(min=2.0**min_exponent)


def round_to(x: torch.Tensor, element: Element, rounding: Rounding = "rne") -> torch.Tensor:
    """Round FP32 values to the nearest value of ``element``, saturating at its largest magnitude.

    Args:
        x: FP32 tensor of any shape; not changed.
        element: any format but E8M0, whose rounding is a scale rule (see ``mxbench.formats.scale``).
        rounding: ``rne`` is nearest, ties to even; ``half_away`` is nearest, ties away from zero (INT8 only).

    Returns:
        FP32 tensor of the same shape with values of ``element``. NaN stays NaN. Zeros may lose their sign.
    """
    return round_to_(x.clone(), element, rounding)


def round_to_(x: torch.Tensor, element: Element, rounding: Rounding = "rne") -> torch.Tensor:
    """``round_to`` in place; returns ``x``."""
    if element is E8M0:
        raise ValueError("E8M0 values are chosen by a scale rule, not by rounding")
    x.clamp_(-element.max, element.max)
    if element.mantissa is None:
        if rounding == "half_away":
            part = x.frac()
            return x.sub_(part).add_(part.mul_(2.0).trunc_())  # each step is exact
        return x.round_()
    if rounding != "rne":
        raise ValueError(f"rounding {rounding!r} is defined for int8 alone")
    # The spacing at x is 2^(E - mantissa); adding 1.5·2^23 spacings rounds there, ties to even, and both the sum and
    # the difference are exact FP32 operations.
    alpha = _TO_INTEGER * 2.0**-element.mantissa
    power = exponent_floor(x, element.min_exponent)
    return x.add_(power, alpha=alpha).sub_(power, alpha=alpha)


@cache
def _float_table(element: Element) -> torch.Tensor:
    """Values of all codes of a float element, FP32 of length 2^bits; NaN where the format has it."""
    assert element.mantissa is not None
    m, half = element.mantissa, 1 << (element.bits - 1)
    bias = 1 - element.min_exponent
    code = torch.arange(half)
    exponent, fraction = code >> m, (code & ((1 << m) - 1)).double() / (1 << m)
    normal = (1.0 + fraction) * torch.pow(2.0, (exponent - bias).double())
    subnormal = fraction * 2.0**element.min_exponent
    positive = torch.where(exponent > 0, normal, subnormal)
    if element is E4M3:
        positive[-1] = float("nan")  # S.1111.111
    elif element is E5M2:
        positive[-4] = float("inf")
        positive[-3:] = float("nan")
    return torch.cat([positive, -positive]).float()


def decode(codes: torch.Tensor, element: Element) -> torch.Tensor:
    """Values of codes.

    Args:
        codes: uint8 tensor; E2M1 codes stand in the low four bits, INT8 codes are two's complement.
        element: the format.

    Returns:
        FP32 tensor of the same shape. E8M0 code 255 is NaN and code 0 is 2^-127.
    """
    if element is INT8:
        return codes.view(torch.int8).float()
    if element is E8M0:
        bits = codes.to(torch.int32) << 23
        bits = torch.where(codes == 0, torch.full_like(bits, 1 << 22), bits)  # 2^-127 is an FP32 subnormal
        return bits.view(torch.float32).masked_fill(codes == 255, float("nan"))
    return _float_table(element).to(codes.device)[codes.long()]


def encode(values: torch.Tensor, element: Element) -> torch.Tensor:
    """Codes of values that ``element`` holds (round first).

    Args:
        values: FP32 tensor of values of the format; NaN where it has a NaN.
        element: the format.

    Returns:
        uint8 tensor of the same shape.

    Raises:
        ValueError: a value is not one of the format's.
    """
    if element is INT8:
        codes = values.to(torch.int8).view(torch.uint8)
    elif element is E8M0:
        codes = ((values.view(torch.int32) >> 23) & 0xFF).to(torch.uint8).masked_fill(values.isnan(), 255)
    else:
        table = _float_table(element)[: 1 << (element.bits - 1)]
        finite = table[table.isfinite()].to(values.device)
        codes = torch.searchsorted(finite, values.abs().contiguous()).clamp_(max=len(finite) - 1).to(torch.uint8)
        codes += torch.signbit(values).to(torch.uint8) << (element.bits - 1)
        if len(finite) < len(table):
            codes.masked_fill_(values.isnan(), (1 << (element.bits - 1)) - 1)
            codes.masked_fill_(values == float("inf"), len(finite))
            codes.masked_fill_(values == float("-inf"), len(finite) + (1 << (element.bits - 1)))
    back = decode(codes, element)
    if not bool(((back == values) | (back.isnan() & values.isnan())).all()):
        raise ValueError(f"a value is not one of {element.name}'s; round it first")
    return codes
