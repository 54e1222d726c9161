"""Workers: processes of the interpreter that holds vbench, which share videos among them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mxbench.vbench.line import Job, Line, unusable
from mxbench.vbench.tasks import Answer, Environment, Task

__all__ = ["Answer", "Environment", "Outcome", "Task", "check", "score"]


@dataclass(slots=True)
class Outcome:
    """What came of a job.

    Attributes:
        answers: one for every task, in the order of the tasks.
        environment: None where no worker came up.
    """

    answers: list[Answer] = field(default_factory=list)
    environment: Environment | None = None


def check(python: str, folder: Path, device: str = "cpu") -> Environment:
    """Start a worker without tasks, to see whether the package imports there.

    Raises:
        UserError: it does not; with its own words.
    """
    job = Job(python, folder, device)
    line = Line([], job, lambda _answer: None)
    line.run()
    if line.error is not None:
        raise line.error
    if line.environment is None:
        raise unusable(python, line.death or "it said nothing", ended=True)
    return line.environment


def score(
    tasks: Sequence[Task],
    *,
    python: str,
    folder: Path,
    device: str = "cpu",
    workers: int = 1,
    limit_s: float = 1800.0,
    came_up: bool = False,
    tell: Callable[[Answer], None] = lambda _answer: None,
) -> Outcome:
    """Score videos. A video, a model or a worker that fails costs its own tasks alone.

    Args:
        tasks: what to score; dimension by dimension is fastest.
        python: the interpreter that holds vbench.
        folder: of the weights.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        workers: processes; never more than there are videos.
        limit_s: seconds that one task may take before its worker is killed.
        came_up: a worker is known to start there, so that one that does not is no proof of a package that is missing.
        tell: told of every answer as it comes, one at a time; what it raises ends all workers.

    Returns:
        The answers, the same whatever the number of workers.

    Raises:
        UserError: a worker could do nothing: the package is missing, or another version, or cannot be imported. The
            others have done their tasks by then, and ``tell`` has been told.
    """
    videos = list(dict.fromkeys(task.key for task in tasks))
    count = max(1, min(workers, len(videos)))
    place = {key: index % count for index, key in enumerate(videos)}
    shares: list[list[Task]] = [[] for _ in range(count)]
    for task in tasks:
        shares[place[task.key]].append(task)
    found: dict[tuple[str, str], Answer] = {}
    lock = threading.Lock()
    job = Job(python, folder, device, limit_s)
    if came_up:
        job.came_up.set()

    def answered(answer: Answer) -> None:
        with lock:
            if job.stop.is_set():
                return
            found[answer.task.dimension, answer.task.key] = answer
            try:
                tell(answer)
            except BaseException:
                job.stop.set()
                raise

    lines = [Line(share, job, answered) for share in shares]
    threads = [threading.Thread(target=line.run, daemon=True) for line in lines]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not job.stop.is_set():
                thread.join(0.5)  # so that an interruption is heard
    finally:
        job.stop.set()
        for line in lines:
            line.kill()
        for thread in threads:
            if thread.ident is not None:  # it was started
                thread.join()
    if (error := next((line.error for line in lines if line.error is not None), None)) is not None:
        raise error
    environment = next((line.environment for line in lines if line.environment is not None), None)
    return Outcome([found[task.dimension, task.key] for task in tasks], environment)
