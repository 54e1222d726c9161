"""What the user asked for as a model's weights, and where they were found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Located", "Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """What the user asked for.

    Attributes:
        kind: of the source.
        name: the folder, or the hub id; of random weights ``""`` (full size) or ``"tiny"``.
        revision: branch, tag or commit on the hub; None is its main branch.
    """

    kind: Literal["folder", "hub", "random"]
    name: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Located:
    """Weights on this machine.

    Attributes:
        path: a local folder, absolute, ready for ``from_pretrained``.
        revision: the commit hash, if they are from the hub.
    """

    path: Path
    revision: str | None
