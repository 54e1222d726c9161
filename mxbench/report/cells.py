"""The observations of a table, checked and sorted into cells: which videos a row has, and why others are missing."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mxbench.errors import UserError, unknown_name
from mxbench.report.data import Observation, TableData
from mxbench.stats import by_prompt

__all__ = ["Cells", "Video", "collect"]

Video = tuple[str, int]  # prompt id, seed


@dataclass(frozen=True, slots=True)
class Cells:
    """What was observed, by row and metric.

    Attributes:
        values: value of each video.
        reasons: why a video has none; the texts that cells print.
        identical: number of frames identical to the reference.
        expected: number of videos of a full cell, prompts times seeds.
        n_seeds: number of distinct seeds.
    """

    values: Mapping[tuple[str, str], Mapping[Video, float]]
    reasons: Mapping[tuple[str, str], Mapping[Video, str]]
    identical: Mapping[tuple[str, str], int]
    expected: int
    n_seeds: int

    def videos(self, row: str, metric: str) -> Mapping[Video, float]:
        """The values of one cell, by video; empty where there are none."""
        return self.values.get((row, metric), {})

    def prompts(self, row: str, metric: str) -> dict[str, float]:
        """The values of one cell, seeds averaged inside each prompt."""
        return _averaged(self.videos(row, metric), self.videos(row, metric))

    def common(self, metric: str, *rows: str) -> tuple[list[float], ...]:
        """Values of several rows over the videos that all of them have, seeds averaged inside each prompt.

        Returns:
            One list a row, all of the same length and in the same order of prompts.
        """
        cells = [self.videos(row, metric) for row in rows]
        shared = [video for video in cells[0] if all(video in cell for cell in cells[1:])]
        return tuple(list(_averaged(cell, shared).values()) for cell in cells)

    def why(self, row: str, metric: str) -> str | None:
        """Why a cell is not full, such as ``failed 1/4: black frames from step 12``; None where it is."""
        values, reasons = self.videos(row, metric), self.reasons.get((row, metric), {})
        parts = []
        for kind in ("failed", "unscored"):
            texts = Counter(text for text in reasons.values() if text.startswith(kind))
            for text, count in sorted(texts.items(), key=lambda item: (-item[1], item[0])):
                # A missing weight file concerns every video alike: there the count would say nothing.
                share = "" if kind == "unscored" and count == self.expected else f" {count}/{self.expected}"
                parts.append(f"{kind}{share}: {text.removeprefix(kind + ': ')}")
        missing = self.expected - len(values) - len(reasons)
        if missing:
            parts.append("not scored" if missing == self.expected else f"not scored {missing}/{self.expected}")
        return "; ".join(parts) or None


def collect(data: TableData) -> Cells:
    """Sorts observations into cells.

    Raises:
        UserError: an unknown row or metric, two observations of one thing, an observation with no value and no
            reason or with both, a value that is not finite, or more prompts than the table says.
    """
    keys = [row.key for row in data.rows]
    metrics = {column.name for column in data.metrics}
    _refuse_twice(keys, "row")
    _refuse_twice([column.name for column in data.metrics], "column")
    values: dict[tuple[str, str], dict[Video, float]] = defaultdict(dict)
    reasons: dict[tuple[str, str], dict[Video, str]] = defaultdict(dict)
    identical: Counter[tuple[str, str]] = Counter()
    for seen in data.observations:
        if seen.row not in keys:
            raise unknown_name("row", seen.row, keys)
        if seen.metric not in metrics:
            raise unknown_name("metric", seen.metric, metrics)
        cell, video = (seen.row, seen.metric), (seen.prompt, seen.seed)
        value = _value(seen)
        if video in values[cell] or video in reasons[cell]:
            raise UserError(
                f"{_name(seen)} is there twice", "keep one observation for each row, prompt, seed and metric"
            )
        identical[cell] += seen.identical_frames
        if value is not None:
            values[cell][video] = value
        else:
            text = f"failed: {seen.failed}" if seen.failed is not None else f"unscored: {seen.unscored}"
            reasons[cell][video] = _plain(text)
    prompts = {seen.prompt for seen in data.observations}
    n_seeds = len({seen.seed for seen in data.observations})
    if len(prompts) > data.n_prompts:
        raise UserError(
            f"the table speaks of {data.n_prompts} prompts and the observations of {len(prompts)}",
            "make a table from the videos of one prompt set",
        )
    return Cells(values, reasons, identical, data.n_prompts * max(n_seeds, 1), n_seeds)


def _averaged(cell: Mapping[Video, float], videos: Iterable[Video]) -> dict[str, float]:
    # Sorted, so that the order in which a store lists its cells cannot reach the last digit or the bootstrap.
    return by_prompt((video[0], cell[video]) for video in sorted(videos))


def _name(seen: Observation) -> str:
    return f"{seen.metric} of {seen.row}, prompt {seen.prompt!r}, seed {seen.seed}"


def _value(seen: Observation) -> float | None:
    if sum(part is not None for part in (seen.value, seen.unscored, seen.failed)) != 1:
        raise UserError(
            f"{_name(seen)} needs exactly one of a value, a reason for no score, and a reason for no video",
            "score that video again",
        )
    if seen.value is not None and not math.isfinite(seen.value):
        raise UserError(f"{_name(seen)} is {seen.value!r}", "cap infinite values and mark a sick video as failed")
    return seen.value


def _refuse_twice(names: list[str], kind: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"the {kind} {name!r} is there {count} times", f"give every {kind} of a table its own name")


def _plain(text: str) -> str:
    """One line, and of an absolute path only the file's name: a report must not depend on whose machine wrote it."""
    line = " ".join(text.split())
    line = re.sub(r"(?<![\w/.~])(?:~?/[^\s/:;,'\"]+(?=/))+/", "", line)
    return re.sub(r"(?<![\w])[A-Za-z]:\\(?:[^\s\\:;,'\"]+\\)*", "", line)
