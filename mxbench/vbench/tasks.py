"""What a worker is asked, what it answers, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Answer", "Environment", "Task"]


@dataclass(frozen=True, slots=True)
class Task:
    """A video to be scored in a dimension.

    Attributes:
        dimension: a name in DIMENSIONS.
        key: what the caller calls the video.
        path: the file.
    """

    dimension: str
    key: str
    path: Path


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a task.

    Attributes:
        task: the question.
        value: the package's value of the video, over the dimension's divisor; None where ``reason`` says why not.
        raw: the package's value as it gave it.
        frames: of the video.
        reason: why there is no value.
        seconds: that it took; of the first video of a dimension with the loading of its model.
        memory: the most bytes of main memory that the worker had held in this dimension by then.
        device_memory: likewise of the GPU.
    """

    task: Task
    value: float | None
    raw: float | None = None
    frames: int = 0
    reason: str | None = None
    seconds: float = 0.0
    memory: int = 0
    device_memory: int = 0


@dataclass(frozen=True, slots=True)
class Environment:
    """Where scores were taken.

    Attributes:
        versions: of the packages, by name; ``torchvision`` is ``stand-in`` where ours was taken.
        device: the GPU's name, or ``cpu``.
        threads: of torch, on which the last bits of scores depend.
    """

    versions: dict[str, str]
    device: str
    threads: int
