"""Quantise a tile of softmax exponentials in place: the inner loop of every method.

Same values as ``mxbench.formats.block.quantise`` along keys, in fewer passes over the tile: the reference spends most
of its time here, and a pass over a tile costs as much as the arithmetic in it.
"""

from __future__ import annotations

import torch

from mxbench.formats.block import NVFP4_RANGE, divided, largest
from mxbench.formats.element import E2M1, E4M3, E8M0, round_to
from mxbench.formats.quantizer import Quantizer
from mxbench.formats.scale import mx_exponent, power_of_two

__all__ = ["quantise_tile_"]

_EXPONENT_BITS = 0x7F800000
_TO_INTEGER = 1.5 * 2.0**23


def quantise_tile_(p: torch.Tensor, quantizer: Quantizer, scratch: torch.Tensor) -> torch.Tensor:
    """Replace exponentials by their quantised values.

    Args:
        p: FP32 ``[..., keys]``, contiguous, nonnegative, already multiplied by ``quantizer.prescale``; keys a multiple
            of the format's block.
        quantizer: of P.
        scratch: FP32 like ``p``; overwritten.

    Returns:
        ``p``.
    """
    form = quantizer.form
    if form.block is None:
        return _round_(p, quantizer, scratch)
    block = p.unflatten(-1, (-1, form.block))
    spare = scratch.unflatten(-1, (-1, form.block))
    amax = largest(block, (-1,))
    if form.scale is E8M0:
        # Rounded where it stands: the spacing of E2M1·2^e at p is half of max(the power of two under p, 2^e).
        scale = power_of_two(mx_exponent(amax, quantizer.scale_rule))
        torch.bitwise_and(p.view(torch.int32), _EXPONENT_BITS, out=scratch.view(torch.int32))
        torch.maximum(spare, scale, out=spare)
        alpha = _TO_INTEGER * 0.5
        p.add_(scratch, alpha=alpha).sub_(scratch, alpha=alpha)
        torch.minimum(block, scale * E2M1.max, out=block)
        return p
    exact = divided(amax, E2M1.max).clamp_(max=E4M3.max)
    stored = round_to(exact, E4M3)
    divisor = stored if quantizer.divide_by == "stored" else exact
    block.div_(torch.where(divisor == 0, torch.ones_like(divisor), divisor))
    # Divided by the exact scale nothing exceeds 6 by more than a rounding, and rounds to 6 at most.
    _round_(p, quantizer, scratch, saturate=quantizer.divide_by == "stored" or quantizer.prescale > NVFP4_RANGE)
    block.mul_(stored)
    return p


def _round_(p: torch.Tensor, quantizer: Quantizer, scratch: torch.Tensor, *, saturate: bool = True) -> torch.Tensor:
    """``round_to`` for nonnegative values, in place."""
    element = quantizer.form.element
    if element.mantissa is None:
        return p.copy_(round_to(p, element, quantizer.rounding))
    torch.clamp(p, min=2.0**element.min_exponent, out=scratch)
    scratch.view(torch.int32).bitwise_and_(_EXPONENT_BITS)
    alpha = _TO_INTEGER * 2.0**-element.mantissa
    p.add_(scratch, alpha=alpha).sub_(scratch, alpha=alpha)
    return p.clamp_(max=element.max) if saturate else p
