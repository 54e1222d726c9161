"""Whether two clips may be compared frame by frame."""

from __future__ import annotations

from mxbench.errors import UserError
from mxbench.video import Clip

__all__ = ["align", "check_pair"]


def check_pair(clip: Clip, reference: Clip, names: tuple[str, str] = ("the clip", "the reference")) -> None:
    """Hold that both have the same frame size, frame rate and number of frames.

    Args:
        clip: the clip to judge.
        reference: what it is compared with.
        names: what the message calls the two, such as their paths.

    Raises:
        UserError: they differ; says both values.
    """
    _check_kind(clip, reference, names)
    one, other = len(clip.frames), len(reference.frames)
    if one != other:
        problem = f"{names[0]} has {_frames(one)} and {names[1]} has {_frames(other)}"
        fix = f"render both with the same number, or pass --align to compare the first {min(one, other)}"
        raise UserError(problem, fix)


def align(
    clip: Clip, reference: Clip, names: tuple[str, str] = ("the clip", "the reference")
) -> tuple[Clip, Clip, str | None]:
    """Cut the longer of the two to the length of the shorter; for an explicit ``--align`` only.

    Nothing is ever resized or resampled in time.

    Returns:
        The pair, and a note to record with the scores, such as ``"the reference cut from 81 to 77 frames"``; None
        where nothing was cut.

    Raises:
        UserError: frame size or frame rate differ.
    """
    _check_kind(clip, reference, names)
    count = min(len(clip.frames), len(reference.frames))
    note = None
    for name, one in zip(names, (clip, reference), strict=True):
        if len(one.frames) > count:
            note = f"{name} cut from {len(one.frames)} to {_frames(count)}"
    return Clip(clip.frames[:count], clip.fps), Clip(reference.frames[:count], reference.fps), note


def _check_kind(clip: Clip, reference: Clip, names: tuple[str, str]) -> None:
    (_, h1, w1, _), (_, h2, w2, _) = clip.shape, reference.shape
    if (h1, w1) != (h2, w2):
        problem = f"{names[0]} is {w1}×{h1} and {names[1]} is {w2}×{h2}"
        raise UserError(problem, "render both at one size; mxbench never resizes")
    if clip.fps != reference.fps:
        problem = f"{names[0]} runs at {clip.fps} frames a second and {names[1]} at {reference.fps}"
        raise UserError(problem, "write both at one frame rate")


def _frames(count: int) -> str:
    return f"{count} frame" + "s" * (count != 1)
