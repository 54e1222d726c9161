"""ExpCast-FP8: E4M3 codes of 256·2^u from one fused multiply-add. VC-Attention, arXiv:2609.15810, section 3."""

from __future__ import annotations

import torch

__all__ = ["EXPCAST_OFFSET", "expcast_codes_", "expcast_values_"]

EXPCAST_OFFSET = 119.65  # 8·(8 + 7) - 0.35: E4M3's bias and the 2^8 prescale in units of codes, less the minimax shift


def expcast_codes_(u: torch.Tensor) -> torch.Tensor:
    """``clip(RNE(fma(8, u, 119.65)), 0, 120)`` in place.

    8·u is exact in FP32, so the sum is rounded once, as the FMA rounds. -inf gives code 0; NaN stays NaN.

    Args:
        u: FP32 scores in the log2 domain minus the running row maximum, at most 0.
    """
    return u.mul_(8.0).add_(EXPCAST_OFFSET).clamp_(0.0, 120.0).round_()


def expcast_values_(u: torch.Tensor) -> torch.Tensor:
    """The E4M3 values (256·P̂) of those codes, in place."""
    codes = expcast_codes_(u).to(torch.int32)
    # An E4M3 code moved to FP32's fields is its value times 2^-120: exponent biases 7 and 127, subnormals included.
    return torch.mul(codes.bitwise_left_shift_(20).view(torch.float32), 2.0**120, out=u)
