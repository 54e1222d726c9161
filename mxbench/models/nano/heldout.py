"""The prompts of ``prompts/nano.txt``: scenes whose objects no training clip shows, and what each prompt states."""

from __future__ import annotations

import csv
import io
from itertools import cycle

import numpy as np

from mxbench.models.nano.scene import (
    BACKGROUNDS,
    DIRECTIONS,
    PATTERNS,
    SIZES,
    Scene,
    Thing,
    caption,
    triples,
)

__all__ = ["COLUMNS", "attributes_csv", "prompts", "read_scenes", "scenes"]

_SINGLES, _PAIRS, _PANS = 48, 16, 2
_SEED = 20
_FIRST = (20, 25, 6, 7)
"""The prompts that stand first: what ``make demo`` shows."""
COLUMNS = (
    "prompt",
    "count",
    "background",
    "pattern",
    "camera",
    *(f"{what}_{k}" for k in (1, 2) for what in ("colour", "shape", "motion", "size", "texture")),
)
"""Of ``prompts/nano.attributes.csv``; an empty cell is not stated. ``camera`` names the direction of a pan."""


def _thing(triple: tuple[str, str, str], size: str, *, striped: bool) -> Thing:
    colour, shape, motion = triple
    return Thing(colour, shape, motion, None if motion in ("grows", "shrinks") else size, striped and colour != "white")


def scenes() -> tuple[Scene, ...]:
    """All 64, every fourth with two objects; the same at every call."""
    rng = np.random.default_rng(_SEED)
    unseen = list(triples(unseen=True))
    singles = [unseen[i] for i in rng.permutation(len(unseen))]
    singles += [unseen[i] for i in rng.choice(len(unseen), _SINGLES - len(singles), replace=False)]
    pairs: list[tuple[tuple[str, str, str], tuple[str, str, str]]] = []
    rest: list[tuple[str, str, str]] = []
    while len(pairs) < _PAIRS:
        rest = rest or [unseen[i] for i in rng.permutation(len(unseen))]
        first = rest.pop(0)
        second = next((t for t in rest if t[0] != first[0] and t[1] != first[1]), None)
        if second is not None:
            rest.remove(second)
            pairs.append((first, second))
    grounds, sizes = cycle(BACKGROUNDS), cycle(SIZES)
    patterns = cycle(("plain", PATTERNS[1], "plain", PATTERNS[2], "plain", PATTERNS[3], "plain"))
    found: list[Scene] = []
    pans = 0
    for number in range(_SINGLES + _PAIRS):
        ground, pattern = next(grounds), next(patterns)
        if number % 4 == 3:
            things = tuple(_thing(t, next(sizes), striped=False) for t in pairs.pop(0))
            found.append(Scene(things, ground, pattern))
            continue
        triple = singles.pop(0)
        thing = _thing(triple, next(sizes), striped=number % 8 == 5)
        pan = None
        if triple[2] == "still" and number > 8 and pans < _PANS:
            pattern, pan = "striped", list(DIRECTIONS)[pans]
            pans += 1
        found.append(Scene((thing,), ground, pattern, pan))
    return tuple(found[i] for i in (*_FIRST, *(i for i in range(len(found)) if i not in _FIRST)))


def prompts() -> str:
    """The text of ``prompts/nano.txt``."""
    return "".join(f"{caption(scene)}\n" for scene in scenes())


def attributes_csv() -> str:
    """The text of ``prompts/nano.attributes.csv``."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for scene in scenes():
        row = {
            "prompt": caption(scene),
            "count": len(scene.things),
            "background": scene.background,
            "pattern": scene.pattern,
            "camera": scene.pan or "",
        }
        for k, thing in enumerate(scene.things, 1):
            row |= {f"colour_{k}": thing.colour, f"shape_{k}": thing.shape, f"motion_{k}": thing.motion}
            row |= {f"size_{k}": thing.size or "", f"texture_{k}": "striped" if thing.striped else ""}
        writer.writerow(row)
    return out.getvalue()


def read_scenes(text: str) -> dict[str, Scene]:
    """Prompts and their scenes from the text of an attributes file."""
    found: dict[str, Scene] = {}
    for row in csv.DictReader(io.StringIO(text)):
        things = tuple(
            Thing(
                row[f"colour_{k}"],
                row[f"shape_{k}"],
                row[f"motion_{k}"],
                row[f"size_{k}"] or None,
                row[f"texture_{k}"] == "striped",
            )
            for k in range(1, int(row["count"]) + 1)
        )
        found[row["prompt"]] = Scene(things, row["background"], row["pattern"], row["camera"] or None)
    return found
