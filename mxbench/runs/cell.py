"""``Cell``: one unit of work, one clip, and its identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SEMANTICS_VERSION", "Cell"]

SEMANTICS_VERSION = 3
"""Raised whenever the code comes to compute something else from the same description."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A clip to render. Two cells with equal descriptions are one.

    Attributes:
        model: everything about the model that changes pixels.
        schedule: which method where, in canonical form.
        impl: what computes each of the schedule's rules.
        prompt: its text.
        seed: of the initial latents, on a CPU generator.
        sampling: size, length, steps, guidance.
        environment: whatever else changes pixels (``mxbench.runs.environment``).
    """

    model: Mapping[str, Any]
    schedule: Mapping[str, Any]
    impl: tuple[str, ...]
    prompt: str
    seed: int
    sampling: Mapping[str, Any]
    environment: Mapping[str, str]
    id: str = field(init=False)

    def __post_init__(self) -> None:
        text = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        object.__setattr__(self, "id", hashlib.sha256(text.encode()).hexdigest()[:16])

    def describe(self) -> dict[str, Any]:
        """The canonical description, whose hash is the id."""
        return {
            "semantics": SEMANTICS_VERSION,
            "model": dict(self.model),
            "schedule": dict(self.schedule),
            "impl": list(self.impl),
            "prompt": self.prompt,
            "seed": self.seed,
            "sampling": dict(self.sampling),
            "environment": dict(self.environment),
        }
