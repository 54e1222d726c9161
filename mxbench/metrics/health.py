"""Is a render sick? Asked before any score: a sick video is a result of its own, never a row with a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BLACK", "FADE", "FLAT", "FROZEN", "sickness"]

BLACK = 8  # a frame is black when no value exceeds this: invisible on a screen
FLAT = 2  # a frame is constant when no channel varies by more; decoders of real latents always vary by more
FADE = 64  # a frame next to a black or constant one belongs to a fade when no channel varies by more
FROZEN = 1  # a clip is frozen when no value ever leaves the first frame's by more

Frames = npt.NDArray[np.uint8]


def sickness(frames: Frames, expected_frames: int, latents: npt.NDArray[Any] | None = None) -> str | None:
    """What is wrong with a render, as a clause to print behind ``failed:``, or None when nothing is.

    Found, in this order: NaN or Inf in the latents, fewer frames than asked for, black frames, constant frames, a
    frozen clip. A fade from or to black (or to a plain colour) is healthy: its neighbouring frames are nearly plain
    too. A sudden black or constant frame is not, and neither is a clip of nothing else. Noise is not sick: how far it
    is from the reference is what the metrics say.

    Args:
        frames: uint8 RGB [F, H, W, 3]; F may be 0.
        expected_frames: how many were asked for.
        latents: the final latents before decoding, [..., frames, height, width] as diffusers' video models have
            them; any other shape is checked too, without naming a frame.
    """
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
        raise ValueError(f"frames must be uint8 [F, H, W, 3]; got {frames.dtype} {frames.shape}")
    return (
        (None if latents is None else _not_finite(latents))
        or _too_few(len(frames), expected_frames)
        or _plain(frames)
        or _frozen(frames)
    )


def _not_finite(latents: npt.NDArray[Any]) -> str | None:
    bad = ~np.isfinite(latents)
    if not bad.any():
        return None
    kind = "NaN" if np.isnan(latents).any() else "Inf"
    if latents.ndim < 4:
        return f"{kind} in the latents"
    per_frame = np.moveaxis(bad, -3, 0).reshape(bad.shape[-3], -1).any(axis=1)
    return f"{kind} in the latents from latent frame {int(per_frame.argmax())} of {len(per_frame)}"


def _too_few(count: int, expected: int) -> str | None:
    return f"{count} of {expected} frames" if count < max(expected, 1) else None


def _plain(frames: Frames) -> str | None:
    levels = [_levels(frame) for frame in frames]
    plain = [high <= BLACK or spread <= FLAT for spread, high in levels]
    start = 0
    while start < len(frames):
        end = start + 1
        if plain[start]:
            while end < len(frames) and plain[end]:
                end += 1
            beside = [levels[i][0] for i in (start - 1, end) if 0 <= i < len(frames)]
            if not beside or max(beside) > FADE:
                kind = "black" if levels[start][1] <= BLACK else "constant"
                return f"{kind} frames from frame {start}"
        start = end
    return None


def _levels(frame: Frames) -> tuple[int, int]:
    """The largest range within a channel, and the largest value; lower bounds where both clear every threshold."""
    for pixels in (frame[::8, ::8].reshape(-1, 3), frame.reshape(-1, 3)):
        low, high = pixels.min(axis=0).astype(int), pixels.max(axis=0).astype(int)
        spread, top = int((high - low).max()), int(high.max())
        if spread > FADE:
            break
    return spread, top


def _frozen(frames: Frames) -> str | None:
    if len(frames) < 2:
        return None
    first = frames[0].astype(np.int16)
    if any(np.abs(frame - first).max() > FROZEN for frame in frames[1:]):
        return None
    return f"frozen: all {len(frames)} frames are the same"
