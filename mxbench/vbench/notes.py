"""What must be said beside VBench's scores, of a run and of files alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["notes_of"]


def notes_of(setups: Iterable[Mapping[str, Any]]) -> list[str]:
    """By which VBench, on what, and with whose weights; of the setups of the dimensions, as they are kept."""
    known = list(setups)
    notes = list(dict.fromkeys(_where(each) for each in known))
    if other := _paths(known, "unpublished"):
        notes.append(f"VBench's weights are not the published ones: {other}. These scores are no VBench scores.")
    if unknown := _paths(known, "unverified"):
        notes.append(f"VBench's weights not verified, no checksum is published: {unknown}.")
    return notes


def _where(setup: Mapping[str, Any]) -> str:
    versions, threads = setup["versions"], setup.get("threads")
    many = f", {threads} thread{'s' * (threads != 1)}" if threads is not None else ""
    return (
        f"VBench {versions.get('vbench')} on {setup['device']}, torch {versions.get('torch')}, "
        f"torchvision {versions.get('torchvision')}{many}: means over videos, which VBench's own totals are too where "
        "clips have one length."
    )


def _paths(setups: Iterable[Mapping[str, Any]], kind: str) -> str:
    return ", ".join(dict.fromkeys(path for each in setups for path in each.get(kind, [])))
