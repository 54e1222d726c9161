"""How attention is computed fast. One file a kernel family; ``exact`` holds the kernels that quantise nothing."""

from __future__ import annotations

import torch

from mxbench.attention.spec import AttentionSpec
from mxbench.kernels.exact import EXACT

__all__ = ["EXACT", "supports"]


def supports(spec: AttentionSpec, impl: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a kernel cannot compute ``spec`` on ``device``, in a clause; None where it can.

    Args:
        spec: the method.
        impl: a name in ``EXACT``.
        device: where q, k and v lie.
        dtype: of q, k and v.
    """
    if spec.canonical().quantised:
        return f"{impl} is an exact kernel and the method quantises"
    return EXACT[impl].missing(device, dtype)
