"""``mxbench doctor``."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from mxbench.cli.options import echo_json, json_option
from mxbench.models.tested import DIFFUSERS, is_tested

__all__ = ["command"]

_EPILOG = """\b
Examples:
  mxbench doctor
  mxbench doctor --json"""


Check = tuple[str, bool | None, str, str]  # what, fine (None: optional), found, what to do


@click.command("doctor", epilog=_EPILOG)
@json_option
def command(as_json: bool) -> int:
    """Say what this machine can run, and what to install for the rest.

    Exits with 1 if something that every run needs is missing.
    """
    checks = [*_packages(), *_devices(), *_video(), *_metrics(), *_impls(), _disk()]
    if as_json:
        echo_json([{"check": c, "ok": ok, "found": found, "fix": fix} for c, ok, found, fix in checks])
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("", "check", "found", "what to do"):
            table.add_column(column, overflow="fold")
        for what, ok, found, fix in checks:
            table.add_row({True: "[green]ok[/]", False: "[red]missing[/]", None: "[yellow]–[/]"}[ok], what, found, fix)
        Console().print(table)
    return 1 if any(ok is False for _, ok, _, _ in checks) else 0


def _packages() -> list[Check]:
    found: list[Check] = [("Python", True, platform.python_version(), "")]
    for name in ("torch", "diffusers", "transformers", "av", "scikit-image", "pandas"):
        try:
            installed = version(name)
        except PackageNotFoundError:
            found.append((name, False, "not installed", "pip install mxbench"))
            continue
        ok = name != "diffusers" or is_tested(installed)
        fix = "" if ok else f'pip install "diffusers=={DIFFUSERS}.*": the seam was tested with that'
        found.append((name, ok, installed, fix))
    return found


def _devices() -> list[Check]:
    import torch

    from mxbench.models.device import resolve
    from mxbench.runs.environment import device_name

    cpu = f"{device_name('cpu')}, {os.cpu_count()} cores, {torch.get_num_threads()} threads for torch"
    found: list[Check] = [("CPU", True, cpu, "")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            memory = torch.cuda.get_device_properties(index).total_memory / 2**30
            found.append((f"GPU {index}", True, f"{torch.cuda.get_device_name(index)}, {memory:.0f} GiB", ""))
    else:
        found.append(("GPU", None, "none", "not needed for the nano model"))
    taken = resolve("auto")
    found.append(("--device auto", True, f"takes {taken}, {device_name(taken)}", ""))
    return found


def _video() -> list[Check]:
    import av

    found: list[Check] = []
    for codec, purpose in (("ffv1", "lossless store"), ("libx264", "previews")):
        present = codec in av.codecs_available
        found.append(
            (
                f"{codec} ({purpose})",
                present,
                f"PyAV {av.__version__}",
                "" if present else "pip install --force-reinstall av",
            )
        )
    return found


def _metrics() -> list[Check]:
    from mxbench.metrics import METRICS

    return [
        (f"metric {n}", True if r is None else None, "yes" if r is None else "unscored", r or "")
        for n, m in METRICS.items()
        for r in [m.missing()]
    ]


def _impls() -> list[Check]:
    import torch

    from mxbench.attention.methods import METHODS
    from mxbench.dispatch import IMPLS, unsupported
    from mxbench.kernels import FAMILY
    from mxbench.models.device import resolve

    device = torch.device(resolve("auto"))
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    found: list[Check] = []
    for name, about in IMPLS.items():
        here = [each for each, entry in METHODS.items() if unsupported(entry.spec, name, device, dtype) is None]
        if here:
            found.append((f"impl {name}", True, f"{about}: {', '.join(here)}" if name in FAMILY else about, ""))
        else:
            one = METHODS["mxattn" if name in FAMILY else "fp16"].spec
            found.append((f"impl {name}", None, "not here", unsupported(one, name, device, dtype) or ""))
    present = importlib.util.find_spec("vbench") is not None
    found.append(
        (
            "vbench",
            True if present else None,
            "installed" if present else "not installed here",
            "`mxbench vbench check` says what works" if present else "`mxbench vbench setup`",
        )
    )
    triton = importlib.util.find_spec("triton") is not None
    found.append(
        (
            "triton",
            True if triton else None,
            version("triton") if triton else "not installed",
            "" if triton else "for kernels on a GPU",
        )
    )
    return found


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    return ("disk", free > 1, f"{free:.1f} GiB free here", "" if free > 1 else "free some space")
