"""Frames into files: the lossless store and the preview."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from mxbench.video.clip import BT709, CHECKSUM, FULL, LIMITED, Frames, check_frames, digest, scaler

if TYPE_CHECKING:
    from av.video.stream import VideoStream

__all__ = ["write_lossless", "write_preview"]


@dataclass(frozen=True, slots=True)
class _Target:
    container: str
    codec: str
    pixel_format: str
    options: dict[str, str]
    muxer: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    threads: int = 0  # 0: as many as the machine has

    @property
    def is_yuv(self) -> bool:
        return self.pixel_format.startswith("yuv")


def write_lossless(path: str | Path, frames: Frames, fps: Fraction) -> None:
    """Write frames exactly: FFV1 level 3 with slice checksums, bgr0, Matroska.

    Equal frames give byte-identical files, whatever the process and the number of threads. A SHA-256 of the frames
    is kept in the file's metadata, and ``read_clip`` verifies it.

    Args:
        path: the file to write, overwritten if it exists; by custom ``*.mkv``.
        frames: uint8 RGB [F, H, W, 3], each side at least 2.
        fps: frames a second.

    Raises:
        ValueError: frames or fps are not of that kind.
    """
    check_frames(frames, fps)
    height, width = frames.shape[1:3]
    if min(height, width) < 2:
        raise ValueError(f"FFV1 needs at least 2×2 pixels; got {width}×{height}")
    # Sixteen slices let as many threads decode; a slice must not be empty.
    slices = "16" if min(height, width) >= 16 else "4"
    options = {"level": "3", "slicecrc": "1", "g": "1", "slices": slices}
    _encode(path, frames, fps, _Target("matroska", "ffv1", "bgr0", options, tags={CHECKSUM: digest(frames)}))


def write_preview(path: str | Path, frames: Frames, fps: Fraction) -> None:
    """Write a small browser-playable file for eyes: H.264, yuv420p, crf 18, BT.709 limited range, faststart mp4.

    yuv420p needs even sides: an odd one is padded by repeating its last row or column. Equal frames give equal bytes
    for one build of x264.

    Args:
        path: the file to write, overwritten if it exists; by custom ``*.mp4``.
        frames: uint8 RGB [F, H, W, 3].
        fps: frames a second.

    Raises:
        ValueError: frames or fps are not of that kind.
    """
    check_frames(frames, fps)
    if frames.shape[1] % 2 or frames.shape[2] % 2:
        frames = np.pad(frames, ((0, 0), (0, frames.shape[1] % 2), (0, frames.shape[2] % 2), (0, 0)), mode="edge")
    # x264's output must depend on nothing but the frames: the number of threads is part of it, and its macroblock tree
    # reads memory that it has not written (seen with noise at 50×74 and 480×854: one run in ten differed).
    options = {"crf": "18", "x264-params": "mbtree=0"}
    _encode(path, frames, fps, _Target("mp4", "libx264", "yuv420p", options, {"movflags": "+faststart"}, threads=4))


def _encode(path: str | Path, frames: Frames, fps: Fraction, target: _Target) -> None:
    import av
    from av.codec.context import Flags

    time_base = 1 / Fraction(fps)
    # bitexact: no random identifiers, dates or version strings.
    muxer = target.muxer | {"fflags": "+bitexact"}
    with av.open(f"file:{path}", "w", format=target.container, options=muxer) as container:
        container.metadata.update(target.tags)
        stream = cast("VideoStream", container.add_stream(target.codec, Fraction(fps), target.options))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = target.pixel_format
        context = stream.codec_context
        context.time_base = time_base
        context.thread_count = target.threads
        context.flags |= Flags.bitexact
        if target.is_yuv:
            context.colorspace = context.color_primaries = context.color_trc = BT709
            context.color_range = LIMITED
        for i, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            if target.is_yuv:
                frame = frame.reformat(
                    format=target.pixel_format,
                    dst_colorspace=BT709,
                    src_color_range=FULL,
                    dst_color_range=LIMITED,
                    interpolation=scaler(),
                )
            frame.pts, frame.time_base = i, time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
