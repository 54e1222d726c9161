"""Where a run was made and with what: device, driver, versions, date and command."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version

import torch

from mxbench import __version__
from mxbench.runs.environment import device_name
from mxbench.runs.provenance import now

__all__ = ["provenance"]


def provenance(device: str, command: str) -> dict[str, str]:
    """What the numbers of a run depend on, as words; what a device does not have is left out.

    Args:
        device: ``cpu`` or ``cuda:N``.
        command: that was run.
    """
    kind, _, index = device.partition(":")
    found = {
        "date": now(),
        "command": command,
        "device": f"{kind}: {device_name(device)}",
        "mxbench": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
    }
    if kind == "cuda":
        found["driver"] = _driver(index or "0")
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())
    else:
        found["capability"] = torch.backends.cpu.get_cpu_capability()
        found["threads"] = str(torch.get_num_threads())
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _driver(index: str) -> str:
    """The driver's version, by nvidia-smi."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return "unknown: there is no nvidia-smi"
    asked = [command, f"--id={index}", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown: nvidia-smi does not answer"
    return done.stdout.strip() or "unknown: nvidia-smi names none"
