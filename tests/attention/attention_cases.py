"""What the attention tests share: inputs of exact arithmetic, the oracle on tensors, and one measure of distance."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle_methods
import torch

from mxbench import METHODS, attend

HADAMARD = ("mxattn", "vc8", "vc4")
SMOOTH = ("vc8", "vc4")


def grid(*shape: int, seed: int = 0, step: float = 2.0**-6) -> torch.Tensor:
    """Gaussian values rounded to multiples of ``step`` inside ±4, FP32.

    Sums of a few hundred of them are exact in FP32 in any order, and so are means over 2^n rows: what is quantised then
    has the same bits on every machine.
    """
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return ((x / step).round() * step).clamp(-4, 4)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Gaussian values that BF16 holds, FP32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def reference(name: str, *operands: torch.Tensor, **options: Any) -> torch.Tensor:
    return attend(*operands, METHODS[name], impl="reference", **options)


def oracle(name: str, *operands: torch.Tensor, **options: Any) -> np.ndarray:
    return oracle_methods.attention(name, *(x.float().numpy() for x in operands), **options)


def exact(*operands: torch.Tensor, **options: Any) -> np.ndarray:
    return oracle_methods.softmax_float64(*(x.float().numpy() for x in operands), **options)


def distance(got: torch.Tensor | np.ndarray, expected: np.ndarray) -> float:
    """Relative L2."""
    got = got.double().numpy() if isinstance(got, torch.Tensor) else got
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def grouped(name: str, v: torch.Tensor) -> dict[str, Any]:
    """The order of the tokens that the package chooses without a site, for the oracle; nothing for other methods.

    Handed over where V is no clear clusters: FP32 and FP64 may then part on a near-tie and both be right.
    """
    if name not in SMOOTH:
        return {}
    from mxbench.attention.value import lloyd

    labels, _ = lloyd(v.float(), 64, 4)
    return {"permutation": labels.argsort(dim=-1, stable=True).numpy()}
