"""Is what a prompt states in the clip? Hits and totals of each kind of attribute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import permutations

import numpy as np

from mxbench.models.nano.reader import Object, Reading, read
from mxbench.models.nano.scene import Scene, Thing

__all__ = ["KINDS", "Tally", "compare", "judge", "rates", "total"]

KINDS = ("count", "colour", "shape", "motion", "size", "texture", "background", "pattern")
_OPPOSITE = {"left": "right", "right": "left", "up": "down", "down": "up"}

Tally = dict[str, tuple[int, int]]
"""Kind to hits and stated attributes."""


def _stated(thing: Thing, scene: Scene) -> dict[str, object]:
    """What a caption says of an object; under a pan, it moves on the screen against the camera."""
    stated: dict[str, object] = {"colour": thing.colour, "shape": thing.shape}
    stated["motion"] = thing.motion if scene.pan is None else _OPPOSITE[scene.pan]
    if thing.size is not None:
        stated["size"] = thing.size
    if thing.striped:
        stated["texture"] = True
    return stated


def _found(found: Object | None, kind: str) -> object:
    return None if found is None else getattr(found, "striped" if kind == "texture" else kind)


def compare(reading: Reading, scene: Scene) -> Tally:
    """Compare a reading with what a scene's caption states; objects are matched so that most is found."""
    stated = [_stated(thing, scene) for thing in scene.things]
    seen: list[Object | None] = [*reading.objects, *[None] * len(stated)]
    best: list[tuple[str, bool]] = []
    for order in permutations(range(min(len(seen), len(stated) + 3)), len(stated)):
        pairs = zip(stated, order, strict=True)
        hits = [(kind, _found(seen[i], kind) == value) for words, i in pairs for kind, value in words.items()]
        if sum(hit for _, hit in hits) > sum(hit for _, hit in best) or not best:
            best = hits
    best.append(("count", len(reading.objects) == len(stated)))
    best.append(("background", reading.background == scene.background))
    if scene.pattern != "plain":
        best.append(("pattern", reading.pattern == scene.pattern))
    hit, of = Counter(kind for kind, yes in best if yes), Counter(kind for kind, _ in best)
    return {kind: (hit[kind], of[kind]) for kind in KINDS if of[kind]}


def judge(frames: np.ndarray, scene: Scene) -> Tally:
    """Read a clip (uint8 ``[F,H,W,3]``) and compare it with a scene."""
    return compare(read(frames), scene)


def total(tallies: Iterable[Mapping[str, tuple[int, int]]]) -> Tally:
    """The sum of tallies."""
    found: Tally = {}
    for tally in tallies:
        for kind, (hits, of) in tally.items():
            before = found.get(kind, (0, 0))
            found[kind] = (before[0] + hits, before[1] + of)
    return {kind: found[kind] for kind in KINDS if kind in found}


def rates(tally: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Share of hits of each kind, and under ``all`` of all attributes."""
    shares = {kind: hits / of for kind, (hits, of) in tally.items()}
    shares["all"] = sum(h for h, _ in tally.values()) / sum(n for _, n in tally.values())
    return shares
