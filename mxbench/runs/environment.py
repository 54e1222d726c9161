"""The render environment: whatever changes pixels beside the description of a cell."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

__all__ = ["device_name", "environment"]


@cache
def device_name(device: str) -> str:
    """What the device calls itself, such as ``AMD EPYC`` or ``NVIDIA H200``."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def environment(
    device: str, dtype: str, memory: str | None = None, *, tiles: bool = False, gpus: int = 1
) -> dict[str, str]:
    """Device model, dtype, versions and threads; equal environments render equal bytes.

    Which of several equal devices it is changes no pixel, and so is left out.

    Args:
        device: ``cpu`` or ``cuda:N``.
        dtype: of the model's activations.
        memory: how the model is placed, see ``mxbench.models.memory``; None for whole.
        tiles: whether its VAE decodes in tiles however it is placed.
        gpus: how many share a render: products of a piece of the sequence are rounded otherwise than of the whole.
    """
    import torch

    memory = memory or "whole"

    kind = device.partition(":")[0]
    found = {
        "device": f"{kind}: {device_name(device)}",
        "dtype": dtype,
        "torch": version("torch"),
        "diffusers": version("diffusers"),
        "transformers": version("transformers"),
        "vae_tiling": "on" if tiles or memory != "whole" else "off",
        "offload": memory if memory in ("model", "group") else "none",
    }
    if gpus > 1:
        found["context_parallel"] = f"ulysses, {gpus} GPUs"
    if kind == "cuda":
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())
    if kind == "cpu":
        found["capability"] = torch.backends.cpu.get_cpu_capability()
        found["threads"] = str(torch.get_num_threads())
    return found
