"""Exact attention kernels, the reference renders and the noise floor: no fallback from one to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["EXACT", "ExactKernel"]

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ExactKernel:
    """An exact kernel: ``run(q, k, v, key_mask)`` on ``[B,H,N,D]``, and why it cannot run somewhere."""

    label: str
    run: Kernel
    missing: Callable[[torch.device, torch.dtype], str | None]


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None) -> torch.Tensor:
    if key_mask is None:
        return scaled_dot_product_attention(q, k, v)
    # What lies in the padding may be anything, and 0 · NaN is NaN. A row without any key has no softmax: it gets all of
    # them, which are zeros.
    padding = ~key_mask[:, None, :, None]
    k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
    mask = key_mask | ~key_mask.any(-1, keepdim=True)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])


def _cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return _sdpa(q, k, v, key_mask)


def _cudnn_missing(device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cuda":
        return "cuDNN attention needs a CUDA device"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"cuDNN attention takes float16 or bfloat16, and the operands are {str(dtype).removeprefix('torch.')}"
    return None


EXACT: dict[str, ExactKernel] = {
    "sdpa": ExactKernel("torch SDPA", _sdpa, lambda _device, _dtype: None),
    "cudnn": ExactKernel("cuDNN through torch SDPA", _cudnn, _cudnn_missing),
}
