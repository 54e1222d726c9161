"""Shared scales: which power of two an MX block gets, computed from bits and never from a float log2.

Sources: OCP MX v1.0 section 6.3 (``ocp``), TetraJet (``tfs``), OAS, and the MXAttention paper, equations 12, 13 and 19
(``uos``, and every boundary q of the ceiling family).
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from mxbench.errors import UserError

__all__ = ["MAX_EXPONENT", "MIN_EXPONENT", "RULES", "boundary", "canonical_rule", "mx_exponent", "power_of_two"]

MIN_EXPONENT = -127
MAX_EXPONENT = 125  # 4·2^126 would already decode to infinity

# The boundary q = Q_max of each named rule; None is the floor rule of the OCP specification.
RULES: dict[str, Fraction | None] = {
    "ocp": None,
    "tfs": Fraction(6),
    "oas": Fraction(7),
    "uos": Fraction(29, 4),
}


def boundary(rule: str | float) -> Fraction | None:
    """The boundary q of a scale rule, exactly; None for the OCP floor rule.

    Args:
        rule: a name in ``RULES``, or a number q with 4 <= q <= 8 (a float, or its text such as ``"6.25"``).

    Raises:
        UserError: an unknown name, or q outside [4, 8].
    """
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]
    try:
        q = Fraction(str(rule))
    except (ValueError, ZeroDivisionError):
        raise UserError(
            f"unknown scale rule {str(rule)!r}", f"use one of {', '.join(RULES)}, or a number q from 4 to 8"
        ) from None
    if not 4 <= q <= 8:
        raise UserError(f"scale rule q = {rule} is out of range", "use a boundary q from 4 to 8")
    return q


def canonical_rule(rule: str | float) -> str:
    """The one spelling of a rule: its name where it has one, otherwise q as the shortest decimal of that FP64."""
    q = boundary(rule)
    for name, value in RULES.items():
        if q == value:
            return name
    assert q is not None
    return str(float(q)).removesuffix(".0")


def mx_exponent(amax: torch.Tensor, rule: str | float) -> torch.Tensor:
    """Exponent e of the shared scale 2^e of blocks with maximum magnitude ``amax``.

    With amax = m·2^E and m in [1, 2), e = E - 2 + [m > q/4], which is ceil(log2(amax/q)); at q = 8 an exact power of
    two gives E - 3. The OCP rule is floor(log2(amax)) - 2. Clamped to [-127, 125]; 0 (scale 1) for an all-zero block.

    Args:
        amax: FP32 tensor, nonnegative.
        rule: see ``boundary``.

    Returns:
        int32 tensor of the same shape. What a non-finite amax gives means nothing: ``power_of_two`` callers mask it.
    """
    bits = amax.contiguous().view(torch.int32)
    e = (bits >> 23) - 129
    q = boundary(rule)
    if q is not None:
        mantissa = bits & 0x7FFFFF
        if q == 8:
            e -= (mantissa == 0).int()
        else:
            # m > q/4 on the integer mantissa: exact for every q, since an integer exceeds t where it exceeds floor(t).
            e += (mantissa > math.floor((q / 4 - 1) * 2**23)).int()
    return e.clamp_(MIN_EXPONENT, MAX_EXPONENT).masked_fill_(amax == 0, 0)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent as FP32, exactly, for int32 exponents in [-127, 127] (2^-127 is an FP32 subnormal)."""
    bits = (exponent + 127) << 23
    return torch.where(exponent > -127, bits, torch.full_like(bits, 1 << 22)).view(torch.float32)
