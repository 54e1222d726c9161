"""What a clip of the built-in model's training data shows: one description, from which caption and pixels are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "BACKGROUNDS",
    "BEHIND",
    "COLOURS",
    "DIRECTIONS",
    "MOTIONS",
    "PAN",
    "PATTERNS",
    "SHAPES",
    "SIZES",
    "Scene",
    "Thing",
    "allowed",
    "caption",
    "held_out",
    "random_scene",
    "spoken",
    "triples",
]

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (230, 38, 38),
    "green": (46, 184, 66),
    "blue": (56, 92, 240),
    "yellow": (248, 224, 40),
    "orange": (246, 136, 26),
    "purple": (158, 60, 206),
    "cyan": (52, 214, 226),
    "white": (246, 246, 246),
}
"""Colours of objects in sRGB: bright, and none of them a background's."""

BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "black": (14, 14, 16),
    "gray": (112, 112, 116),
    "navy": (22, 32, 88),
    "brown": (94, 62, 36),
    "teal": (14, 84, 80),
    "maroon": (94, 18, 36),
}
"""Colours of backgrounds in sRGB: dark."""

SHAPES = ("circle", "square", "triangle", "star", "ring", "cross")
SIZES = ("small", "large")
DIRECTIONS: dict[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""Unit steps on the screen, y downwards."""
MOTIONS = (*DIRECTIONS, "still", "spins", "grows", "shrinks")
PATTERNS = ("plain", "gradient", "striped", "checkered")
_ROUND = ("circle", "ring")
BEHIND, PAN = 2, 3
"""What a piece of a caption is of, where it is of no object."""

_PHRASES: dict[str, tuple[str, ...]] = {
    "left": ("moves left", "slides left", "moves to the left", "drifts left"),
    "right": ("moves right", "slides right", "moves to the right", "drifts right"),
    "up": ("moves up", "slides up", "moves upward", "rises"),
    "down": ("moves down", "slides down", "moves downward", "falls"),
    "still": ("stays still", "does not move", "rests"),
    "spins": ("spins", "rotates", "turns"),
    "grows": ("grows",),
    "shrinks": ("shrinks",),
}


@dataclass(frozen=True, slots=True)
class Thing:
    """One object.

    Attributes:
        colour: of :data:`COLOURS`.
        shape: of :data:`SHAPES`.
        motion: of :data:`MOTIONS`.
        size: of :data:`SIZES`; None for an object that grows or shrinks, and where the caption does not say.
        striped: whether lighter stripes run across it.
    """

    colour: str
    shape: str
    motion: str
    size: str | None = None
    striped: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """What a clip shows.

    Attributes:
        things: one or two objects, of different colours and shapes.
        background: of :data:`BACKGROUNDS`.
        pattern: of :data:`PATTERNS`.
        pan: direction in which the camera pans, or None; everything on the screen then moves the other way.
    """

    things: tuple[Thing, ...]
    background: str
    pattern: str = "plain"
    pan: str | None = None


def allowed(colour: str, shape: str, motion: str) -> bool:
    """Whether an object can be told: a circle that spins cannot."""
    return colour in COLOURS and not (motion == "spins" and shape in _ROUND)


def held_out(colour: str, shape: str, motion: str) -> bool:
    """Whether no training clip has an object like this: one motion in eight for every pair of colour and shape.

    A rule that is a Latin square keeps colours, shapes and motions balanced, and every pair of them is seen.
    """
    index = list(COLOURS).index(colour) + 3 * SHAPES.index(shape) + MOTIONS.index(motion)
    return index % 8 == 0


def triples(*, unseen: bool) -> Iterator[tuple[str, str, str]]:
    """Colour, shape and motion of every object there can be; those held out, or those trained on."""
    for colour in COLOURS:
        for shape in SHAPES:
            for motion in MOTIONS:
                if allowed(colour, shape, motion) and held_out(colour, shape, motion) is unseen:
                    yield colour, shape, motion


_SEEN = tuple(triples(unseen=False))


def _random_thing(rng: np.random.Generator) -> Thing:
    colour, shape, motion = _SEEN[rng.integers(len(_SEEN))]
    chance = rng.random(3)
    size = None if motion in ("grows", "shrinks") or chance[0] < 0.12 else SIZES[int(chance[1] < 0.5)]
    return Thing(colour, shape, motion, size, striped=bool(chance[2] < 0.25) and colour != "white")


def random_scene(rng: np.random.Generator) -> Scene:
    """A scene of the training distribution; no object of it is held out."""
    first = _random_thing(rng)
    chance = rng.random(4)
    pattern = PATTERNS[int(np.searchsorted((0.46, 0.64, 0.82), chance[0]))]
    background = list(BACKGROUNDS)[rng.integers(len(BACKGROUNDS))]
    if chance[1] < 0.5:
        second = _random_thing(rng)
        while second.colour == first.colour or second.shape == first.shape:
            second = _random_thing(rng)
        return Scene((first, second), background, pattern)
    pan = None
    if first.motion == "still" and pattern in ("striped", "checkered") and chance[2] < 0.5:
        pan = list(DIRECTIONS)[2 * (pattern == "checkered" and chance[3] < 0.5) + rng.integers(2)]
    return Scene((first,), background, pattern, pan)


def _article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def spoken(scene: Scene, rng: np.random.Generator | None = None) -> list[tuple[str, int | None]]:
    """The scene in words, in pieces, each with what it is of: an object's index, :data:`BEHIND`, :data:`PAN` or None.

    The first wording of each part without ``rng``, else one at random.
    """

    def pick(wordings: tuple[Any, ...]) -> Any:
        return wordings[0] if rng is None else wordings[rng.integers(len(wordings))]

    def plain_first(wordings: tuple[Any, ...]) -> Any:
        # Half of the captions keep the plain words, so that they are known best.
        return wordings[0] if rng is None or rng.random() < 0.5 else pick(wordings)

    objects: list[tuple[str, int | None]] = []
    for index, t in enumerate(scene.things):
        words = _article(" ".join(filter(None, (t.size, "striped" if t.striped else None, t.colour, t.shape))))
        objects += [(" and ", None)] * (index > 0) + [(f"{words} {plain_first(_PHRASES[t.motion])}", index)]
    wordings = {
        "plain": (scene.background, f"plain {scene.background}"),
        "gradient": (f"{scene.background} gradient",),
        "striped": (f"striped {scene.background}",),
        "checkered": (f"checkered {scene.background}",),
    }
    behind = (f"a {plain_first(wordings[scene.pattern])} background", BEHIND)
    pieces = plain_first(
        ([*objects, (" over ", None), behind], [*objects, (" on ", None), behind], [behind, (", ", None), *objects])
    )
    return [*pieces] if scene.pan is None else [*pieces, (f", the camera pans {scene.pan}", PAN)]


def caption(scene: Scene, rng: np.random.Generator | None = None) -> str:
    """The scene in words; see :func:`spoken`."""
    return "".join(piece for piece, _ in spoken(scene, rng))
