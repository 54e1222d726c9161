"""Scores videos with the vbench package: ``python worker.py JOB.json``, in whatever environment holds that package.

Imports nothing of mxbench. Its answers are JSON lines on the standard output; what the packages print goes to the
standard error. The job::

    {"device": "cpu" | "cuda", "cache": FOLDER, "scratch": FOLDER, "version": "0.1.5",
     "frames": {DIMENSION: LEAST}, "tasks": [[DIMENSION, KEY, PATH], ...]}

The answers, in the order in which they come: ``ready`` with the environment; for every task ``begin``, then ``score``
or ``failed``; ``end``. A task is one call of the package's ``evaluate`` on one video. Models stay loaded between calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import math
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("vbench", "torch", "torchvision", "numpy", "decord", "openai-clip", "pyiqa", "opencv-python")


def _end_with_the_parent() -> None:
    """The standard input closes when whoever asked is gone."""
    sys.stdin.buffer.read()
    os._exit(1)


class Closed(RuntimeError):
    """The packages reached for the network."""


def main(job: dict[str, Any], say: Callable[..., None]) -> None:
    """Do a job.

    Args:
        job: see above.
        say: takes the fields of an answer.
    """
    scratch = Path(job["scratch"])
    os.environ["VBENCH_CACHE_DIR"] = job["cache"]
    os.environ["TORCH_HOME"] = str(scratch / "torch")
    os.environ["HF_HUB_OFFLINE"] = "1"
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    import shims

    stood_in = shims.fit()
    import torch

    _close_the_network()
    versions = {name: version for name in PACKAGES if (version := _version(name)) is not None}
    versions["torchvision"] = stood_in["torchvision"]
    versions["python"] = ".".join(map(str, sys.version_info[:3]))
    from vbench import VBench

    if versions.get("vbench") != job["version"]:
        say("wrong", reason=f"vbench {versions.get('vbench')} is installed, and scores are those of {job['version']}")
        return
    device = job["device"]
    if device == "cuda" and not torch.cuda.is_available():
        say("wrong", reason="there is no CUDA device for the interpreter of vbench")
        return
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    say("ready", versions=versions, device=name, threads=torch.get_num_threads())
    _keep_models(scratch, Path(job["cache"]))
    out, staged = scratch / "out", scratch / "videos"
    staged.mkdir(parents=True, exist_ok=True)
    package = VBench(device, "", str(out))
    before = None
    for number, (dimension, key, path) in enumerate(job["tasks"]):
        if dimension != before:  # whose models are others
            before = dimension
            _MODELS.clear()
            _forget_peaks(device)
        say("begin", dimension=dimension, key=key)
        begun = time.perf_counter()
        try:
            link = staged / f"{number:05d}.mp4"  # a name that every package takes
            link.symlink_to(Path(path).absolute())
            frames = _length(str(link), dimension, job["frames"][dimension])
            value = _score(package, dimension, link)
        except Exception as error:  # noqa: BLE001 - one video must not cost the others
            say("failed", dimension=dimension, key=key, reason=_reason(error, scratch))
            continue
        say(
            "score", dimension=dimension, key=key, value=value, frames=frames,
            seconds=time.perf_counter() - begun, memory=_peak(),
            device_memory=torch.cuda.max_memory_allocated() if device == "cuda" else 0,
        )  # fmt: skip
    say("end")


def _forget_peaks(device: str) -> None:
    """So that a peak is a dimension's own, without what the models of an earlier one left in the allocator."""
    import torch

    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int:
    """The most bytes that this process has held since ``_forget_peaks``; where Linux does not say, ever."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Broken(RuntimeError):
    """A model that does not load; says so in whole words."""


class _Unfit(ValueError):
    """A video that a dimension has no value for; says why in whole words."""


def _length(video: str, dimension: str, least: int) -> int:
    import decord

    try:
        frames = len(decord.VideoReader(video, num_threads=1))
    except Exception as error:
        raise _Unfit("it cannot be read as a video") from error
    if frames < least:
        raise _Unfit(f"it has {frames} frame{'s' * (frames != 1)}, and {dimension} compares at least {least}")
    return frames


def _score(package: Any, dimension: str, link: Path) -> float:
    """The package's value of a video."""
    name = link.stem
    results = Path(package.output_path) / f"{name}_eval_results.json"
    results.unlink(missing_ok=True)
    with warnings.catch_warnings():  # gradients as the package has them: without, torch takes other kernels
        warnings.simplefilter("ignore")
        package.evaluate(
            videos_path=str(link), name=name, dimension_list=[dimension], local=True, read_frame=False,
            mode="custom_input",
        )  # fmt: skip
    _, each = json.loads(results.read_text())[dimension]
    if not each:
        raise _Unfit("the package could not read it")
    value = float(each[0]["video_results"])
    if not math.isfinite(value):
        raise _Unfit(f"the package returned {value}")
    return value


def _keep_models(scratch: Path, cache: Path) -> None:
    """A model is loaded once, from the cache: the packages would load it anew for every call."""
    import torch

    checkpoints = scratch / "torch/hub/checkpoints"  # where DINO's code looks, whatever it is told
    checkpoints.mkdir(parents=True, exist_ok=True)
    link = checkpoints / "dino_vitbase16_pretrain.pth"
    link.unlink(missing_ok=True)
    link.symlink_to((cache / "dino_model" / link.name).absolute())

    load: Any = torch.load

    def on_the_cpu(*args: Any, **kwargs: Any) -> Any:
        return load(*args, **{"map_location": "cpu", "weights_only": False} | kwargs)

    torch.load = on_the_cpu
    for module, name in _LOADERS:
        _memoise(importlib.import_module(module), name)


_LOADERS = (
    ("torch.hub", "load"),
    ("clip", "load"),
    ("vbench.aesthetic_quality", "get_aesthetic_model"),
    ("vbench.imaging_quality", "MUSIQ"),
    ("vbench.motion_smoothness", "MotionSmoothness"),
    ("vbench.dynamic_degree", "DynamicDegree"),
)
_MODELS: dict[str, Any] = {}


def _memoise(module: Any, name: str) -> None:
    make = getattr(module, name)

    def kept(*args: Any, **kwargs: Any) -> Any:
        key = f"{module.__name__}.{name} {args!r} {sorted(kwargs.items())!r}"
        if key not in _MODELS:
            try:
                _MODELS[key] = make(*args, **kwargs)
            except Closed:
                raise
            except Exception as error:
                raise _Broken(
                    f"its model cannot be loaded ({_reason(error)}); is a file of `mxbench vbench check` damaged?"
                ) from error
        return _MODELS[key]

    setattr(module, name, kept)


def _version(name: str) -> str | None:
    for installed in (name, f"{name}-headless"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(installed)
    return None


def _close_the_network() -> None:
    """The packages run wget and git, and download by themselves."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise Closed("a file is missing that the package would download")

    socket.socket.connect = refuse  # type: ignore[method-assign]
    socket.getaddrinfo = refuse
    for name in ("run", "Popen", "call", "check_call", "check_output"):
        setattr(subprocess, name, refuse)


def _reason(error: BaseException, scratch: Path | None = None) -> str:
    text = " ".join(str(error).split())[:300]
    if isinstance(error, _Unfit | _Broken | Closed):
        return text
    if scratch is not None and isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename or scratch.parent} is full ({error.strerror})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextlib.contextmanager
def _answers() -> Iterator[Callable[..., None]]:
    """The standard output for answers alone: whatever else writes there writes to the standard error."""
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", buffering=1, encoding="utf-8") as out:

        def say(kind: str, **fields: Any) -> None:
            out.write(json.dumps({"kind": kind, **fields}, allow_nan=False) + "\n")

        yield say


if __name__ == "__main__":
    with _answers() as answer:
        try:
            main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), answer)
        except Exception as error:
            answer("wrong", reason=_reason(error, Path(sys.argv[1]).parent))
            raise
