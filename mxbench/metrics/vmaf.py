"""VMAF from the ffmpeg inside imageio-ffmpeg, with libvmaf's built-in model."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from mxbench.metrics.base import Score, unscored
from mxbench.metrics.frames import workers
from mxbench.video import Clip

__all__ = ["missing", "vmaf"]

MODEL = "vmaf_v0.6.1"
# libvmaf filters with up to 17 taps and mirrors at the edge; at 16 pixels it crashes.
SMALLEST_SIDE = 17
_SCALE = (
    "scale=in_range=full:out_color_matrix=bt709:out_range=limited:flags=bicubic+accurate_rnd+full_chroma_int,"
    "format=yuv420p"
)


def _ffmpeg() -> str | None:
    import imageio_ffmpeg

    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError:
        return None


def _output(ffmpeg: str, option: str) -> str:
    try:
        done = subprocess.run([ffmpeg, "-hide_banner", option], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


@functools.cache
def _filters(ffmpeg: str) -> str:
    return _output(ffmpeg, "-filters")


@functools.cache
def _version(ffmpeg: str) -> str:
    words = _output(ffmpeg, "-version").split(maxsplit=3)
    return words[2] if len(words) > 2 else "unknown"


def missing() -> str | None:
    """Why VMAF cannot be computed here (no ffmpeg, or one without libvmaf), or None."""
    ffmpeg = _ffmpeg()
    if ffmpeg is None:
        return "no ffmpeg was found (pip install imageio-ffmpeg brings one)"
    if " libvmaf " not in _filters(ffmpeg):
        return f"{Path(ffmpeg).name} was built without libvmaf"
    return None


def vmaf(clip: Clip, reference: Clip | None) -> Score:
    """Mean over frames of VMAF (Li et al. 2016, model vmaf_v0.6.1) against the reference, 0 to 100.

    Both clips go from RGB to yuv420p in BT.709 limited range. Identical clips read about 97.4 in the first frame,
    which has no motion yet, and up to 100 afterwards.
    """
    assert reference is not None
    reason, (_, height, width, _) = missing(), clip.shape
    ffmpeg = _ffmpeg()
    if reason or ffmpeg is None:
        return unscored(reason or "no ffmpeg was found")
    if min(height, width) < SMALLEST_SIDE:
        return unscored(f"the frame of {width}×{height} is smaller than the {SMALLEST_SIDE} pixels that libvmaf takes")

    # Clip and reference travel as the upper and lower half of one picture: one pipe, frames paired by construction.
    graph = (
        f"[0:v]split[both][also];[both]crop={width}:{height}:0:0:exact=1,{_SCALE}[clip];"
        f"[also]crop={width}:{height}:0:{height}:exact=1,{_SCALE}[reference];"
        # The log's name is relative to the working directory, so no character of a path needs quoting.
        f"[clip][reference]libvmaf=model=version={MODEL}:n_threads={workers()}:log_fmt=json:log_path=vmaf.json"
    )
    command = [ffmpeg, "-hide_banner", "-nostdin", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{2 * height}", "-r", str(clip.fps), "-i", "pipe:0"]
    command += ["-filter_complex", graph, "-f", "null", "-"]
    with tempfile.TemporaryDirectory(prefix="mxbench-vmaf-") as folder:
        code, message = _feed(command, folder, clip, reference)
        log = Path(folder, "vmaf.json")
        if code or not log.is_file():
            return unscored(f"ffmpeg ended with code {code}: {message or 'no message'}")
        report = json.loads(log.read_text())

    values = tuple(float(frame["metrics"]["vmaf"]) for frame in report["frames"])
    if len(values) != len(clip.frames) or not all(map(math.isfinite, values)):
        return unscored(f"libvmaf scored {len(values)} of {len(clip.frames)} frames, or not with finite numbers")
    details = {
        "model": MODEL,
        "conversion": f"rgb24, {_SCALE}",
        "ffmpeg": _version(ffmpeg),
        "libvmaf": str(report.get("version", "unknown")),
    }
    return Score(math.fsum(values) / len(values), values, details=details)


def _feed(command: list[str], folder: str, clip: Clip, reference: Clip) -> tuple[int, str]:
    """Run ffmpeg on the frames; its exit code and last line of complaint."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, cwd=folder)
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # the exit code says why ffmpeg went
                for pair in zip(clip.frames, reference.frames, strict=True):
                    for frame in pair:
                        process.stdin.write(np.ascontiguousarray(frame).data)
            with suppress(BrokenPipeError):
                process.stdin.close()
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    return code, lines[-1] if lines else ""
