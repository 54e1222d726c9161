"""Score videos of any engine against reference videos, paired by name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mxbench.errors import UserError
from mxbench.metrics import METRICS, Score, align, check_pair, metric, score
from mxbench.video import VIDEO_SUFFIXES, find_clips, read_clip

__all__ = ["Comparison", "alone", "column_of", "compare", "digits_of", "label_of", "named", "paired"]

_FLICKERING = "temporal_flickering_vbench"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of each pair, and what could not be compared.

    Attributes:
        metrics: in the order asked for.
        scores: by the pair's name, then by metric.
        notes: what ``align`` did, by name.
        problems: why a clip has no scores, by name.
    """

    metrics: tuple[str, ...]
    scores: dict[str, dict[str, Score]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def mean(self, name: str) -> float | None:
        """Mean of a metric over the clips that have it."""
        found = (each[name].value for each in self.scores.values() if name in each)
        values = [value for value in found if value is not None]
        return math.fsum(values) / len(values) if values else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        return {
            "scores": {clip: {n: s.to_json() for n, s in each.items()} for clip, each in self.scores.items()},
            "means": {name: self.mean(name) for name in self.metrics},
            "notes": self.notes,
            "problems": self.problems,
        }


def column_of(dimension: str) -> str:
    """What the column of one of VBench's dimensions is called: METRICS has a flickering of its own."""
    return _FLICKERING if dimension == "temporal_flickering" else dimension


def label_of(column: str) -> str:
    """The head of a column."""
    return "Flicker (VBench)" if column == _FLICKERING else METRICS[column].label


def digits_of(column: str) -> int:
    """Decimals of a column."""
    return METRICS["temporal_flickering" if column == _FLICKERING else column].digits


def alone(videos: str) -> tuple[Comparison, dict[str, Path]]:
    """Videos without references: an empty comparison, and the files by name.

    Raises:
        UserError: a path that does not exist, or a folder without videos.
    """
    path = Path(videos)
    if not path.exists():
        raise UserError(f"there is no video or folder {path}", "check the path")
    found = {path.name: path}
    if path.is_dir():
        found = {
            each.name: each
            for each in sorted(path.iterdir())
            if each.suffix.lower() in VIDEO_SUFFIXES and each.is_file() and not each.name.startswith(".")
        }
    if not found:
        raise UserError(f"there are no videos in {path}", "name a folder that has some")
    result = Comparison(())
    result.scores.update({name: {} for name in found})
    return result, found


def named(videos: str) -> dict[str, Path]:
    """The files by the names that ``compare`` gives them."""
    path = Path(videos)
    return find_clips(path) if path.is_dir() else {path.name: path}


def paired(videos: str, reference: str) -> tuple[Comparison, dict[str, tuple[Path, Path]]]:
    """Pair videos by name: a comparison that holds what has no partner, and the pairs.

    Args:
        videos: a file or a folder.
        reference: likewise; a folder where ``videos`` is one.

    Raises:
        UserError: a path that does not exist, a file against a folder, or no pair at all.
    """
    result = Comparison(())
    one, other = Path(videos), Path(reference)
    for path in (one, other):
        if not path.exists():
            raise UserError(f"there is no video or folder {path}", "check the path")
    if one.is_dir() != other.is_dir():
        raise UserError(f"{one} and {other} are a folder and a file", "pass two files, or two folders")
    if not one.is_dir():
        return result, {one.name: (one, other)}
    mine, theirs = find_clips(one), find_clips(other)
    if not mine.keys() & theirs.keys():
        raise UserError(f"no video in {one} has the name of one in {other}", "name the files of a pair alike")
    result.problems.update({n: f"there is no {n} in {other}" for n in mine if n not in theirs})
    result.problems.update({n: f"there is no {n} in {one}" for n in theirs if n not in mine})
    return result, {name: (path, theirs[name]) for name, path in mine.items() if name in theirs}


def compare(videos: str, reference: str, metrics: list[str], *, align: bool = False) -> Comparison:
    """Score a video against another, or a folder against a folder.

    Args:
        videos: a file or a folder.
        reference: likewise; a folder where ``videos`` is one.
        metrics: names in METRICS.
        align: cut the longer of a pair to the shorter one.

    Raises:
        UserError: as ``paired``, or an unknown metric.
    """
    names = tuple(metric(name).name for name in metrics)
    alone_, pairs = paired(videos, reference)
    result = Comparison(names, problems=alone_.problems)
    for name, (path, against) in pairs.items():
        try:
            result.scores[name] = _pair(result, name, path, against, cut=align)
        except UserError as error:
            result.problems[name] = str(error)
    return result


def _pair(result: Comparison, name: str, path: Path, against: Path, *, cut: bool) -> dict[str, Score]:
    clip, reference = read_clip(path), read_clip(against)
    names = (str(path), str(against))
    if cut:
        clip, reference, note = align(clip, reference, names)
        if note is not None:
            result.notes[name] = note
    check_pair(clip, reference, names)
    return score(result.metrics, clip, reference)
