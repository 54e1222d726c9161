"""A worker's lines, read strictly: what cannot be understood is said to be so and never guessed at."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mxbench.vbench.dimensions import DIMENSIONS
from mxbench.vbench.tasks import Answer, Environment, Task

__all__ = ["Unreadable", "answer_of", "asked_for", "environment_of", "parse", "reason_of"]


class Unreadable(ValueError):
    """A worker said what cannot be understood."""


def parse(line: str) -> dict[str, Any] | None:
    """A line of a worker; None for whatever else its packages print."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) and "kind" in said else None


def environment_of(said: Mapping[str, Any]) -> Environment:
    """Of ``ready``.

    Raises:
        Unreadable: a field is missing or something else.
    """
    versions = {str(name): str(version) for name, version in _field(said, "versions", dict).items()}
    return Environment(versions, _field(said, "device", str), _field(said, "threads", int))


def asked_for(said: Mapping[str, Any], tasks: Sequence[Task]) -> Task:
    """The task that a line is about.

    Raises:
        Unreadable: it is none of these.
    """
    asked = (said.get("dimension"), said.get("key"))
    for task in tasks:
        if (task.dimension, task.key) == asked:
            return task
    raise Unreadable(f"a task that nobody asked for, {asked!r}")


def answer_of(said: Mapping[str, Any], task: Task) -> Answer:
    """Of ``score`` or ``failed``.

    Raises:
        Unreadable: a field is missing or something else.
    """
    if said["kind"] == "failed":
        return Answer(task, None, reason=_field(said, "reason", str))
    value = float(_field(said, "value", int, float))
    if not math.isfinite(value):
        return Answer(task, None, reason=f"the package returned {value}")
    return Answer(
        task,
        value / DIMENSIONS[task.dimension].divisor,
        value,
        frames=_field(said, "frames", int),
        seconds=float(_field(said, "seconds", int, float)),
        memory=_field(said, "memory", int),
        device_memory=_field(said, "device_memory", int),
    )


def reason_of(said: Mapping[str, Any]) -> str:
    """Of ``wrong``.

    Raises:
        Unreadable: there is none.
    """
    return str(_field(said, "reason", str))


def _field(said: Mapping[str, Any], name: str, *kinds: type) -> Any:
    value = said.get(name)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise Unreadable(f"{said['kind']} with {name} {value!r}")
    return value
