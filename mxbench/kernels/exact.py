"""Exact attention kernels, the reference renders and the noise floor: no fallback from one to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from mxbench.errors import UserError

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


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None) -> torch.Tensor:
    if key_mask is not None:
        raise UserError("FlashAttention-2 takes no key mask", "use impl 'sdpa' or 'cudnn', or slice the real keys")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v)


def _missing(label: str) -> Callable[[torch.device, torch.dtype], str | None]:
    def missing(device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type != "cuda":
            return f"{label} needs a CUDA device"
        if dtype not in (torch.float16, torch.bfloat16):
            return f"{label} takes float16 or bfloat16, and the operands are {str(dtype).removeprefix('torch.')}"
        return None

    return missing


EXACT: dict[str, ExactKernel] = {
    "sdpa": ExactKernel("torch SDPA", _sdpa, lambda _device, _dtype: None),
    "cudnn": ExactKernel("cuDNN through torch SDPA", _cudnn, _missing("cuDNN attention")),
    "flash": ExactKernel("FlashAttention-2 through torch SDPA", _flash, _missing("FlashAttention-2")),
}
