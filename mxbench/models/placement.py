"""Bring a pipeline that was built in memory to a device: FP16 where asked for, and renders that repeat to the byte."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch

__all__ = ["cast", "halve", "placed", "repeatable"]


def placed(pipe: Any, device: str, *, half: bool) -> Any:
    """The pipeline on a device.

    Args:
        pipe: a diffusers pipeline on the CPU in FP32; it is changed.
        device: as torch names it.
        half: compute in FP16, see ``halve``; else in FP32.
    """
    repeatable(device)
    if half:
        halve(pipe)
    return pipe.to(device)


def halve(pipe: Any) -> None:
    """Cast a pipeline to FP16 as ``from_pretrained(dtype=torch.float16)`` would have loaded it, its VAE in FP32."""
    for name, part in pipe.components.items():
        if name != "vae" and isinstance(part, torch.nn.Module):
            cast(part, torch.float16)


def cast(part: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast a network's parameters as loading it in a dtype would have.

    What diffusers and transformers keep in FP32 (``_keep_in_fp32_modules``) stays so, and so do buffers, such as the
    angles of RoPE: ``.half()`` would round them.
    """
    kept: set[str] = set(getattr(part, "_keep_in_fp32_modules", None) or ())
    kept.update(getattr(part, "_keep_in_fp32_modules_strict", None) or ())
    for inner, parameter in part.named_parameters():
        if parameter.is_floating_point() and kept.isdisjoint(inner.split(".")):
            parameter.data = parameter.data.to(dtype)


def repeatable(device: str) -> None:
    """Make the same render give the same bytes on a CUDA device, for the whole process; the CPU needs nothing.

    cuBLAS gets workspaces of a fixed size, cuDNN deterministic algorithms chosen without timing them, and FP32 is
    computed as FP32 and not as TF32. The device becomes torch's current one, where kernels without a device of their
    own are launched. Call it before the first matrix product on the device.
    """
    if not device.startswith("cuda"):
        return
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    with warnings.catch_warnings():
        # torch has newer names for these two; once they are used, torch.backends.cudnn.flags() raises.
        warnings.filterwarnings("ignore", "Please use the new API settings")
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.set_device(device)
