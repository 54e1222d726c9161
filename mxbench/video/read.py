"""Frames out of files, our own and those of other engines: all of them or none."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from mxbench.errors import UserError
from mxbench.video.clip import CHECKSUM, FULL, LIMITED, Clip, Frames, digest, scaler

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

__all__ = ["VIDEO_SUFFIXES", "find_clips", "read_clip", "read_lossless"]

VIDEO_SUFFIXES = frozenset({".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm"})

# Only real video containers: FFmpeg would also read pictures, subtitles and playlists as a "video".
_OPEN = {"format_whitelist": "mov,matroska,webm,avi,mpegts,yuv4mpegpipe", "protocol_whitelist": "file"}
# AVColorSpace -> the matrix of swscale; 2 is "unspecified", which FFmpeg, imageio and OpenCV write as BT.601.
_MATRIX = {1: 1, 2: 5, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9}


def read_clip(path: str | Path) -> Clip:
    """Decode a video file of any engine to RGB, all of it or nothing.

    The stream's own matrix and range are used; an untagged YUV stream is taken as BT.601 limited range, which is what
    FFmpeg, imageio and OpenCV write when told nothing.

    Args:
        path: mkv, webm, mp4, mov, avi, ts or y4m; the name does not matter.

    Returns:
        All frames, and the constant frame rate.

    Raises:
        UserError: the file is missing, not a video, empty, cut short, damaged, rotated by metadata, not of one frame
            size or one frame rate; or frames of our own lossless store do not match their checksum.
    """
    return _open(path)[0]


def read_lossless(path: str | Path) -> Clip:
    """Read what ``write_lossless`` wrote; as ``read_clip``, but a file without our checksum is refused.

    Raises:
        UserError: as ``read_clip``, and when the file was not written by ``write_lossless``.
    """
    clip, verified = _open(path)
    if not verified:
        raise UserError(f"{path} was not written by mxbench's lossless store", "render it again")
    return clip


def _open(path: str | Path) -> tuple[Clip, bool]:
    """The clip, and whether it carried a checksum that held."""
    import av

    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is not a file", "check the path of the video")
    try:
        with av.open(f"file:{path}", options=_OPEN) as container:
            return _decode(path, container)
    except (av.FFmpegError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{path} cannot be decoded as a video ({reason})", "check that it is a whole video file, or write it again"
        ) from error


def _decode(path: Path, container: InputContainer) -> tuple[Clip, bool]:
    from av.stream import Disposition

    streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    if len(streams) != 1:
        raise UserError(f"{path} holds {len(streams)} video streams", "give a file with exactly one")
    stream = streams[0]
    context = cast("VideoCodecContext | None", stream.codec_context)
    if context is None:
        raise UserError(f"{path} has a damaged header or a codec without a decoder here", "write it again as H.264")
    stream.thread_type = "AUTO"
    context.options = {"err_detect": "crccheck+explode"}

    pictures: list[Frames] = []
    times: list[Fraction | None] = []
    packets = discarded = 0
    for packet in container.demux(stream):
        packets += bool(packet.size)
        discarded += packet.is_discard  # hidden by an edit list
        damaged = packet.is_corrupt
        for frame in packet.decode():
            damaged |= frame.is_corrupt
            pictures.append(_to_rgb(path, frame, pictures))
            times.append(None if frame.pts is None else frame.pts * (frame.time_base or Fraction(1)))
        if damaged:
            raise _cut(path, f"is damaged near frame {len(pictures)}")
    if not pictures:
        raise UserError(f"{path} holds no frames", "write it again with at least one frame")
    expected = max(packets, stream.frames) - discarded
    if len(pictures) < expected:
        raise _cut(path, f"is cut short: {len(pictures)} of {expected} frames can be read")
    fps = _constant_rate(path, stream, times)
    declared, end = _declared_end(container, stream), times[-1]
    if declared is not None and end is not None and (declared - end) * fps > Fraction(3, 2):
        raise _cut(path, f"is cut short: frames end at {float(end):.3f} s of {float(declared):.3f} s")

    frames = np.stack(pictures)
    checksum = container.metadata.get(CHECKSUM)
    if checksum not in (None, digest(frames)):
        raise _cut(path, "does not hold the frames that were written (their checksum differs)")
    return Clip(frames, fps), checksum is not None


def _cut(path: Path, problem: str) -> UserError:
    return UserError(f"{path} {problem}", "copy or render the file again")


def _to_rgb(path: Path, frame: VideoFrame, before: list[Frames]) -> Frames:
    """One frame as uint8 RGB [H, W, 3]."""
    if frame.rotation:
        raise UserError(f"{path} is rotated by its metadata ({frame.rotation}°)", "write it unrotated")
    if before and before[0].shape != (frame.height, frame.width, 3):
        height, width = before[0].shape[:2]
        problem = f"{path} changes from {width}×{height} to {frame.width}×{frame.height} at frame {len(before)}"
        raise UserError(problem, "write it with one frame size")
    if frame.format.is_rgb:
        return frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
    if frame.colorspace not in _MATRIX:
        raise UserError(f"{path} has colour matrix number {frame.colorspace}", "convert it to BT.709 or RGB")
    matrix = _MATRIX[frame.colorspace]
    rgb = frame.reformat(
        format="rgb24", src_colorspace=matrix, dst_colorspace=matrix, dst_color_range=FULL,
        src_color_range=FULL if frame.color_range == FULL else LIMITED, interpolation=scaler(),
    )  # fmt: skip
    return rgb.to_ndarray().astype(np.uint8, copy=False)


def _constant_rate(path: Path, stream: VideoStream, times: list[Fraction | None]) -> Fraction:
    """The frame rate that all timestamps agree with; containers' own averages are not always it."""
    rates = [rate for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate) if rate]
    known = [time for time in times if time is not None]
    if rates and len(known) < len(times):
        return rates[0]
    for rate in rates:
        # Matroska rounds to milliseconds, so half a frame of slack.
        if all(abs((time - known[0]) * rate - i) < Fraction(1, 2) for i, time in enumerate(known)):
            return rate
    raise UserError(f"{path} has no constant frame rate", "write it with one, or look for missing frames")


def _declared_end(container: InputContainer, stream: VideoStream) -> Fraction | None:
    """When the video should end, in seconds, for containers (Matroska) that do not count their frames."""
    tag = re.fullmatch(r"(\d+):(\d+):(\d+(?:\.\d+)?)", stream.metadata.get("DURATION", ""))
    if tag:
        hours, minutes, seconds = map(Fraction, tag.groups())
        return hours * 3600 + minutes * 60 + seconds
    alone = len(container.streams) == 1 and not stream.frames
    return Fraction(container.duration, 1_000_000) if alone and container.duration else None


def find_clips(folder: str | Path) -> dict[str, Path]:
    """The videos directly inside a folder, by stem (the name without its suffix), in order of name.

    Hidden files and other suffixes than ``VIDEO_SUFFIXES`` (case does not matter) are left out.

    Raises:
        UserError: no such folder, or two files with one stem.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", "check the path of the folder with the videos")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in VIDEO_SUFFIXES or not path.is_file():
            continue
        if path.stem in found:
            problem = f"{found[path.stem].name} and {path.name} in {path.parent} have one name"
            raise UserError(problem, "rename or remove one of them")
        found[path.stem] = path
    return found
