"""Read what a clip of the built-in model shows: count, colour, shape, size, texture and motion, and the background.

With OpenCV and numpy alone, and on purpose without the code that draws the training clips: the outlines are polygons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from mxbench.models.nano.outlines import CANVAS, UNIT, templates
from mxbench.models.nano.scene import BACKGROUNDS, COLOURS

__all__ = ["Object", "Reading", "read"]

_FINER = 4
_LEAST_AREA = 60
_SMALL = 16.5
"""Radius in pixels below which an object is small."""
_SEEN = 0.6
"""Share of the frames in which an object must be."""


@dataclass(frozen=True, slots=True)
class Object:
    """One object as it was read; the words are those of ``scene``, ``motion`` may also be ``diagonal``."""

    colour: str
    shape: str
    motion: str
    size: str
    striped: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """What a clip shows."""

    objects: tuple[Object, ...]
    background: str
    pattern: str


@dataclass(slots=True)
class _Blob:
    centre: np.ndarray
    area: float
    colour: str
    striped: float
    mask: np.ndarray


def _likeness(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Shared over joint area of masks in the last axis."""
    shared: np.ndarray = np.minimum(a, b).sum(-1) / np.maximum(a, b).sum(-1)
    return shared


def _light(rgb: np.ndarray) -> np.ndarray:
    lighter: np.ndarray = rgb + 0.55 * (255 - rgb)
    return lighter


def _tones(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The darkest and the lightest tone of a background."""
    base = np.array(BACKGROUNDS[name], np.float32)
    amplitude = 0.3 * base + 9
    return base - amplitude, base + amplitude


def _along(pixels: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where on the segment from ``a`` to ``b`` each pixel is nearest, 0 to 1 unclamped, and how far from it."""
    way = b - a
    at = (pixels - a) @ way / max(float(way @ way), 1e-6)
    nearest = a + np.clip(at, 0, 1)[..., None] * way
    return at, np.linalg.norm(pixels - nearest, axis=-1)


def _background(frames: np.ndarray) -> str:
    """The background that most pixels are near, stripes and gradients taken along."""
    pixels = frames[:: max(1, len(frames) // 4), ::2, ::2].reshape(-1, 3).astype(np.float32)
    distances = np.stack([_along(pixels, *_tones(name))[1] for name in BACKGROUNDS])
    objects = np.stack([np.linalg.norm(pixels - np.array(c, np.float32), axis=-1) for c in COLOURS.values()]).min(0)
    votes = distances.argmin(0)[distances.min(0) < objects]
    return list(BACKGROUNDS)[int(np.bincount(votes, minlength=len(BACKGROUNDS)).argmax())]


def _colour(pixels: np.ndarray) -> tuple[str, float]:
    """The colour whose plain and lighter tones the pixels are nearest to, and how they vary between the two."""
    scores, spreads = {}, {}
    for name, rgb in COLOURS.items():
        base = np.array(rgb, np.float32)
        at, far = _along(pixels, base, _light(base))
        scores[name], spreads[name] = float(np.median(far)) + 0.1 * float(np.clip(at, 0, 1).mean()), float(at.std())
    best = min(scores, key=scores.__getitem__)
    return best, 0.0 if best == "white" else spreads[best]


def _blobs(frame: np.ndarray, background: str) -> Iterator[_Blob]:
    """The objects of one frame."""
    pixels = frame.astype(np.float32)
    dark, light = _tones(background)
    _, far = _along(pixels, dark, light)
    rough = cv2.medianBlur((far > 44).astype(np.uint8), 3)
    # What noise or stripes cut apart by a pixel is one object.
    _, labels, stats, _ = cv2.connectedComponentsWithStats(cv2.dilate(rough, np.ones((3, 3), np.uint8)), connectivity=8)
    for label in range(1, len(stats)):
        mine = (labels == label) & (rough > 0)
        if mine.sum() < _LEAST_AREA:
            continue
        core = cv2.erode(mine.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
        core = core if core.sum() > 20 else mine
        colour, spread = _colour(pixels[core])
        # The outline is where a pixel is half object and half background.
        base, ground = np.array(COLOURS[colour], np.float32), (dark + light) / 2
        share = ((pixels - ground) @ (base - ground)) / float((base - ground) @ (base - ground))
        x, y, w, h = stats[label][:4]
        box = slice(max(y - 3, 0), y + h + 3), slice(max(x - 3, 0), x + w + 3)
        near = cv2.dilate(mine.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
        fine = cv2.resize(np.where(near, share, 0)[box], None, fx=_FINER, fy=_FINER, interpolation=cv2.INTER_CUBIC)
        mask = (fine > 0.5).astype(np.float32)
        area = float(mask.sum())
        if area < _LEAST_AREA * _FINER**2 / 2:
            continue
        rows, columns = np.nonzero(mask)
        inner = np.array([columns.mean(), rows.mean()])
        scale = UNIT / math.sqrt(area)
        move = CANVAS / 2 - 0.5 - scale * inner
        shift = np.array([[scale, 0, move[0]], [0, scale, move[1]]], np.float32)
        canvas = cv2.warpAffine(mask, shift, (CANVAS, CANVAS), flags=cv2.INTER_AREA)
        centre = (inner + 0.5) / _FINER + (box[1].start, box[0].start)
        yield _Blob(centre, area / _FINER**2, colour, spread, canvas.ravel())


def _tracks(frames: np.ndarray, background: str) -> list[list[_Blob]]:
    """Blobs of the frames linked to objects: the nearest of the same colour, else the nearest."""
    tracks: list[tuple[int, list[_Blob]]] = []
    reach = 12 + 64 / max(1, len(frames) - 1) * 1.5
    for number, frame in enumerate(frames):
        free = list(_blobs(frame, background))
        links = sorted(
            (float(np.linalg.norm(blob.centre - track[-1].centre)) + 20 * (blob.colour != track[-1].colour), i, j)
            for i, (_, track) in enumerate(tracks)
            for j, blob in enumerate(free)
        )
        taken: set[int] = set()
        linked: set[int] = set()
        for far, i, j in links:
            if far < reach and i not in linked and j not in taken:
                tracks[i][1].append(free[j])
                linked.add(i)
                taken.add(j)
        tracks += [(number, [blob]) for j, blob in enumerate(free) if j not in taken]
    return [track for _, track in tracks if len(track) >= _SEEN * len(frames)]


def _motion(track: list[_Blob], shape: str) -> str:
    ends = max(1, len(track) // 8)
    first, last = track[:ends], track[-ends:]
    dx, dy = np.mean([b.centre for b in last], 0) - np.mean([b.centre for b in first], 0)
    if math.hypot(dx, dy) > 16:
        major, minor = max(abs(dx), abs(dy)), min(abs(dx), abs(dy))
        if minor > 0.5 * major:
            return "diagonal"
        return ("left" if dx < 0 else "right") if abs(dx) > abs(dy) else ("up" if dy < 0 else "down")
    growth = sum(b.area for b in last) / sum(b.area for b in first)
    if not 0.6 < growth < 1.65:
        return "grows" if growth > 1 else "shrinks"
    if shape in ("circle", "ring"):
        return "still"
    alike = _likeness(np.stack([b.mask for b in track[1:]]), track[0].mask)
    return "spins" if np.quantile(alike, 0.25) < 0.8 else "still"


def _object(track: list[_Blob]) -> Object:
    names, masks, areas = templates()
    chosen = [track[round(i)] for i in np.linspace(0, len(track) - 1, min(len(track), 7))]
    alike = np.stack([_likeness(masks, b.mask) for b in chosen])
    best = {name: alike[:, [n == name for n in names]].max(1).mean() for name in areas}
    shape = max(best, key=best.__getitem__)
    colours = [b.colour for b in track]
    radius = float(np.median([math.sqrt(b.area / areas[shape]) for b in track]))
    return Object(
        colour=max(sorted(set(colours)), key=colours.count),
        shape=shape,
        motion=_motion(track, shape),
        size="small" if radius < _SMALL else "large",
        striped=float(np.median([b.striped for b in track])) > 0.17,
    )


def _pattern(frames: np.ndarray, background: str) -> str:
    dark, light = _tones(background)
    votes = []
    for frame in frames[:: max(1, len(frames) // 4)]:
        at, far = _along(frame.astype(np.float32), dark, light)
        objects = cv2.dilate((far > 40).astype(np.uint8), np.ones((9, 9), np.uint8)) > 0
        tone = np.ma.masked_array(2 * at - 1, objects)
        if objects.mean() > 0.9:
            continue
        spread = float(tone.std())
        rows, columns = tone.mean(1).std(), tone.mean(0).std()
        if spread < 0.3:
            votes.append("plain")
        elif rows > 0.75 * spread:
            votes.append("gradient")
        else:
            votes.append("striped" if columns > 0.6 * spread else "checkered")
    return max(sorted(set(votes)), key=votes.count) if votes else "plain"


def read(frames: np.ndarray) -> Reading:
    """Read a clip.

    Args:
        frames: uint8 RGB ``[F,H,W,3]``, two frames or more of about 128×128.
    """
    background = _background(frames)
    objects = tuple(_object(track) for track in _tracks(frames, background))
    return Reading(objects, background, _pattern(frames, background))
