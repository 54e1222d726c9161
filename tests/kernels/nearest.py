"""How far an output is from the reference's, apart from codes of P that stand beside a tie."""

from __future__ import annotations

from dataclasses import replace

import torch

from mxbench.attention.reference import Operands, walk
from mxbench.attention.spec import AttentionSpec

STEPS = (2.0**-16, 2.0**-13)


def off(out: torch.Tensor, true: torch.Tensor) -> float:
    """Relative L2."""
    return float((out.double() - true.double()).norm() / true.double().norm().clamp(min=1e-30))


def nearest(out: torch.Tensor, operands: Operands, spec: AttentionSpec) -> float:
    """Relative L2 from the reference's walk, each row at its scores or at scores a little closer or further apart.

    Two roundings of FP32 scores put a P that stands beside a tie on either side of it. In a row of a few large P one
    such code is a tenth of the row: P changed by 4e-6, as FP32 leaves a score of 64, changed whole outputs by up to
    8e-3. What a moved score does beyond a code counts as an error.

    Args:
        out: ``[B,H,Nq,Dv]``.
        operands: what it was computed from.
        spec: the method.
    """
    true = walk(operands, spec).double()
    least = (out.double() - true).square().sum(-1)
    for step in (*STEPS, *(-s for s in STEPS)):
        moved = walk(replace(operands, q=operands.q * (1 + step)), spec)
        least = torch.minimum(least, (out.double() - moved.double()).square().sum(-1))
    return float(least.sum().sqrt() / true.norm().clamp(min=1e-30))
