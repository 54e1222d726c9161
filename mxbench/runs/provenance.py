"""Provenance: when and where a run happened and how long its parts took. Nothing here enters a report."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from mxbench import __version__

__all__ = ["CellTimes", "RunTimes", "now"]


def now() -> str:
    """The time in UTC, to the second, ISO 8601."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


@dataclass(slots=True)
class CellTimes:
    """Where the seconds of one cell went; ``harness_s`` is everything but denoising and decoding."""

    denoise_s: float = 0.0
    decode_s: float = 0.0
    begun: float = field(default_factory=time.perf_counter)

    def to_dict(self) -> dict[str, Any]:
        """For ``provenance.json`` of the cell."""
        return {"rendered": now(), "denoise_s": round(self.denoise_s, 4), "decode_s": round(self.decode_s, 4)}


@dataclass(slots=True)
class RunTimes:
    """Where the seconds of a run went.

    Attributes:
        started: UTC.
        startup_s: from the start of the process to the first cell, model loading included.
        load_s: loading the model.
        self_test_s: the identity test of the seam.
        cells: rendered in this run.
        denoise_s: of all of them; likewise ``decode_s``.
        harness_s: everything else from the first cell on: storing, scoring, progress.
    """

    started: str = field(default_factory=now)
    startup_s: float = 0.0
    load_s: float = 0.0
    self_test_s: float = 0.0
    cells: int = 0
    denoise_s: float = 0.0
    decode_s: float = 0.0
    harness_s: float = 0.0

    def to_dict(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """For ``provenance.json`` of the results folder."""
        whole = self.denoise_s + self.decode_s + self.harness_s
        return {
            "started": self.started,
            "finished": now(),
            "mxbench": __version__,
            "python": platform.python_version(),
            "versions": {
                name: version(name) for name in ("torch", "diffusers", "transformers", "av", "imageio-ffmpeg")
            },
            "environment": dict(environment),
            "cells_rendered": self.cells,
            "seconds": {
                "startup": round(self.startup_s, 3),
                "load": round(self.load_s, 3),
                "self_test": round(self.self_test_s, 3),
                "denoise": round(self.denoise_s, 3),
                "decode": round(self.decode_s, 3),
                "harness": round(self.harness_s, 3),
                "harness_per_cell": round(self.harness_s / self.cells, 4) if self.cells else 0.0,
                "harness_share": round(self.harness_s / whole, 4) if whole else 0.0,
            },
        }
