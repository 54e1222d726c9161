"""Where the objects of a scene are: position, radius and angle at both ends, sampled so that nothing is hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from mxbench.models.nano.scene import BACKGROUNDS, COLOURS, DIRECTIONS, PATTERNS, SHAPES, Scene, caption, random_scene

__all__ = ["EDGE", "EXTENT", "FRAMES", "PAN", "Clips", "lay_out", "sample"]

EDGE, FRAMES = 128, 17
EXTENT = 1.12
"""The farthest any shape reaches from its centre, in its radius."""
PAN = 32.0
"""Pixels that a pan moves the picture over the clip."""

_TRAVEL = (42.0, 64.0)
_RADII = {
    # of the only object, of one of two
    "small": ((12.0, 14.0), (11.5, 13.0)),
    "large": ((23.0, 26.0), (19.0, 22.0)),
}
_GROWTH = ((11.0, 25.0), (10.0, 21.0))
_CANDIDATES = 48


@dataclass(frozen=True, slots=True)
class Clips:
    """Geometry and colours of a batch of clips, as arrays; two objects each, of which the second may be absent.

    Attributes:
        present: 0 or 1 ``[B,2]``.
        shape: index into ``SHAPES`` ``[B,2]``.
        rgb: colour in [0,1] ``[B,2,3]``.
        striped: 0 or 1 ``[B,2]``.
        position: centre in pixels (x, y) at the first and the last frame ``[B,2,2,2]``: object, end, axis.
        radius: in pixels at both ends ``[B,2,2]``.
        angle: in radians at both ends ``[B,2,2]``.
        pattern: index into ``PATTERNS`` ``[B]``.
        ground: background colour in [0,1] ``[B,3]``.
        pan: shift of the background over the clip in pixels (x, y) ``[B,2]``.
    """

    present: np.ndarray
    shape: np.ndarray
    rgb: np.ndarray
    striped: np.ndarray
    position: np.ndarray
    radius: np.ndarray
    angle: np.ndarray
    pattern: np.ndarray
    ground: np.ndarray
    pan: np.ndarray

    def take(self, rows: np.ndarray | slice) -> Self:
        """Some of the clips."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def _paths(rng: np.random.Generator, step: np.ndarray, reach: np.ndarray, tries: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of objects that go along ``step`` ``[B,2]`` and reach ``reach`` ``[B]`` from their centre."""
    n = len(reach)
    room = EDGE - 2 * reach
    travel = rng.uniform(_TRAVEL[0], np.minimum(_TRAVEL[1], room), (tries, n))
    move = step * travel[..., None]
    low = reach[None, :, None] + np.maximum(0, -move)
    high = EDGE - reach[None, :, None] - np.maximum(0, move)
    start = rng.uniform(low, high)
    return start, start + move


def _nearest(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Least distance of two points that move on straight lines at the same time."""
    start, end = a[0] - b[0], a[1] - b[1]
    move = end - start
    at = -(start * move).sum(-1) / np.maximum((move * move).sum(-1), 1e-9)
    distance: np.ndarray = np.linalg.norm(start + move * np.clip(at, 0, 1)[..., None], axis=-1)
    return distance


def _radii(rng: np.random.Generator, scenes: Sequence[Scene], which: int) -> np.ndarray:
    radius = np.full((len(scenes), 2), 12.0)
    for i, scene in enumerate(scenes):
        if which >= len(scene.things):
            continue
        thing, pair = scene.things[which], len(scene.things) - 1
        if thing.motion in ("grows", "shrinks"):
            radius[i] = _GROWTH[pair] if thing.motion == "grows" else _GROWTH[pair][::-1]
            radius[i] *= rng.uniform(0.94, 1.04)
        else:
            size = thing.size or ("small", "large")[rng.integers(2)]
            radius[i] = rng.uniform(*_RADII[size][pair])
    return radius


def lay_out(scenes: Sequence[Scene], rng: np.random.Generator) -> tuple[Clips, np.ndarray]:
    """Positions for every scene, and whether each is fit to be drawn ``[B]`` (two objects found room)."""
    n = len(scenes)
    present = np.array([[1, len(s.things) > 1] for s in scenes], np.float32)
    things = [[s.things[min(k, len(s.things) - 1)] for s in scenes] for k in (0, 1)]
    radius = np.stack([_radii(rng, scenes, k) for k in (0, 1)], 1)
    reach = radius.max(-1) * EXTENT + 1.5
    pan = np.array([DIRECTIONS[s.pan] if s.pan else (0, 0) for s in scenes], np.float64) * -PAN
    steps = np.array([[DIRECTIONS.get(t.motion, (0, 0)) for t in row] for row in things], np.float64)
    paths = [_paths(rng, steps[k], reach[:, k], _CANDIDATES) for k in (0, 1)]
    far = _nearest(*paths) - reach.sum(1)
    panned = np.any(pan != 0, axis=1, keepdims=True)
    if panned.any():  # A still object under a moving camera moves on the screen, and stays in view.
        start = rng.uniform(
            reach[:, :1] + np.maximum(0, -pan), EDGE - reach[:, :1] - np.maximum(0, pan), (_CANDIDATES, n, 2)
        )
        paths[0] = (
            np.where(panned, start, paths[0][0]),
            np.where(panned, start + pan, paths[0][1]),
        )
    fits = (far > 0) | (present[:, 1] == 0)
    chosen = np.argmax(fits, 0), np.arange(n)
    position = np.stack([np.stack([ends[chosen] for ends in path], 1) for path in paths], 1)
    spins = np.array([[t.motion == "spins" for t in row] for row in things]).T
    upright = rng.uniform(-0.12, 0.12, (n, 2))
    turn = rng.uniform(2.4, 3.2, (n, 2)) * rng.choice((-1.0, 1.0), (n, 2))
    clips = Clips(
        present=present,
        shape=np.array([[SHAPES.index(t.shape) for t in row] for row in things]).T.astype(np.int64),
        rgb=np.array([[COLOURS[t.colour] for t in row] for row in things], np.float32).transpose(1, 0, 2) / 255,
        striped=np.array([[t.striped for t in row] for row in things], np.float32).T,
        position=position.astype(np.float32),
        radius=radius.astype(np.float32),
        angle=np.stack([upright, upright + turn * spins], -1).astype(np.float32),
        pattern=np.array([PATTERNS.index(s.pattern) for s in scenes], np.int64),
        ground=np.array([BACKGROUNDS[s.background] for s in scenes], np.float32) / 255,
        pan=pan.astype(np.float32),
    )
    return clips, fits.any(0)


def sample(rng: np.random.Generator, n: int) -> tuple[list[str], Clips]:
    """Captions and clips of the training distribution."""
    scenes: list[Scene] = []
    parts: list[Clips] = []
    while len(scenes) < n:
        drawn = [random_scene(rng) for _ in range(n + n // 8 + 4 - len(scenes))]
        clips, fit = lay_out(drawn, rng)
        rows = np.flatnonzero(fit)[: n - len(scenes)]
        scenes += [drawn[i] for i in rows]
        parts.append(clips.take(rows))
    joined = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Clips)}
    return [caption(s, rng) for s in scenes], Clips(**joined)
