"""A decoded video in memory, and what reading and writing share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from mxbench.errors import CellFailed

__all__ = ["BT709", "CHECKSUM", "FULL", "LIMITED", "Clip", "Frames", "check_frames", "digest", "scaler", "to_uint8"]

Frames = npt.NDArray[np.uint8]

CHECKSUM = "MXBENCH_SHA256"
BT709 = 1  # the same number in AVColorSpace, AVColorPrimaries and AVColorTransferCharacteristic
LIMITED, FULL = 1, 2  # AVColorRange


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """A decoded video.

    Attributes:
        frames: uint8 RGB of shape [F, H, W, 3].
        fps: frames a second.
    """

    frames: Frames
    fps: Fraction

    def __post_init__(self) -> None:
        check_frames(self.frames, self.fps)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(F, H, W, 3)."""
        f, h, w, c = self.frames.shape
        return f, h, w, c


def check_frames(frames: Frames, fps: Fraction) -> None:
    """Raise ValueError unless frames are uint8 [F, H, W, 3], F, H, W at least 1, and fps a positive Fraction."""
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or 0 in frames.shape:
        raise ValueError(f"frames must be uint8 [F, H, W, 3] and not empty; got {frames.dtype} {frames.shape}")
    if not isinstance(fps, (Fraction, int)) or fps <= 0:
        raise ValueError(f"fps must be a positive Fraction; got {fps!r}")


def to_uint8(frames: npt.NDArray[np.floating[Any]]) -> Frames:
    """Turn a pipeline's float frames in [0, 1] into the stored uint8: round(255·x), ties to even.

    Args:
        frames: floats of shape [F, H, W, 3], as ``output_type="np"`` gives them for one video.

    Returns:
        uint8 of the same shape.

    Raises:
        CellFailed: a value is NaN or infinite (names the first such frame): that render is a failed cell.
        ValueError: not floats, or values further outside of [0, 1] than rounding explains.
    """
    if not np.issubdtype(frames.dtype, np.floating) or frames.ndim != 4:
        raise ValueError(f"frames must be floats of shape [F, H, W, 3]; got {frames.dtype} {frames.shape}")
    out = np.empty(frames.shape, np.uint8)
    for i, frame in enumerate(frames):
        scaled = frame.astype(np.float32) * np.float32(255)
        if not np.isfinite(scaled).all():
            kind = "NaN" if np.isnan(scaled).any() else "infinite"
            raise CellFailed(f"{kind} pixels from frame {i}")
        low, high = float(scaled.min(initial=0)), float(scaled.max(initial=0))
        if low < -0.5 or high > 255.5:
            raise ValueError(f"frame {i} reaches from {low / 255:.3g} to {high / 255:.3g}; frames must lie in [0, 1]")
        out[i] = np.clip(np.rint(scaled), 0, 255)
    return out


def digest(frames: Frames) -> str:
    """SHA-256 of the frames' bytes, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(frames).data).hexdigest()


def scaler() -> int:
    """The flags of swscale for both directions: the careful ones, said aloud so that no default decides a pixel."""
    from av.video.reformatter import Interpolation as Flag

    return int(Flag.BICUBIC | Flag.ACCURATE_RND | Flag.FULL_CHR_H_INT | Flag.FULL_CHR_H_INP)
