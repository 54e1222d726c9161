"""VBench's columns: what they need is looked at before a run, videos are scored after it, and every score is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mxbench.errors import UserError
from mxbench.metrics import METRICS, Score
from mxbench.metrics.base import unscored
from mxbench.runs.plan import Plan
from mxbench.runs.provenance import now
from mxbench.runs.store import Store
from mxbench.runs.vbench_kept import KeptScores, digest
from mxbench.vbench import worker
from mxbench.vbench.dimensions import DIMENSIONS
from mxbench.vbench.home import cache, interpreter
from mxbench.vbench.notes import notes_of
from mxbench.vbench.preflight import lacking, reason, refusal
from mxbench.vbench.verify import Weights, look
from mxbench.vbench.worker import Answer, Environment, Task

__all__ = ["Choice", "OfFiles", "Setup", "dimensions_of", "of_answer", "prepare", "score_cells", "score_files"]


@dataclass(frozen=True, slots=True)
class Choice:
    """How VBench is to run.

    Attributes:
        python: the interpreter that holds the package; None for ``mxbench.vbench.home.interpreter``'s.
        device: ``cpu``, ``cuda`` or ``cuda:N``. Scores of CLIP are FP16's on CUDA.
        workers: processes.
        limit_s: seconds that one video may take in one dimension.
        allow_unscored: go on without what cannot be scored.
    """

    python: str | None = None
    device: str = "cpu"
    workers: int = 1
    limit_s: float = 1800.0
    allow_unscored: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """Where scores are taken, and what they depend on.

    Attributes:
        choice: what was asked for.
        python: the interpreter.
        folder: of the weights.
        environment: versions, device and threads; None where no dimension can be scored.
        files: the weights of each dimension that can be.
        reasons: why the others cannot.
    """

    choice: Choice
    python: str
    folder: Path
    environment: Environment | None
    files: Mapping[str, Weights]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def id(self, dimension: str) -> str:
        """What a score of a dimension depends on, in a word."""
        where = self.environment
        assert where is not None
        known = [where.versions, where.device, where.threads, self.files[dimension].sha256]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]

    def of(self, dimension: str) -> dict[str, Any]:
        """What ``id`` stands for, and what is to be said of it."""
        where, weights = self.environment, self.files[dimension]
        assert where is not None
        return {
            "versions": where.versions,
            "device": where.device,
            "threads": where.threads,
            "sha256": weights.sha256,
            "unpublished": list(weights.unpublished),
            "unverified": list(weights.unverified),
        }

    def notes(self) -> list[str]:
        """What must be said beside scores of all its dimensions."""
        return notes_of(self.of(dimension) for dimension in self.files)

    def to_dict(self) -> dict[str, Any]:
        """For provenance."""
        environment = self.environment
        return {
            "versions": environment.versions if environment else {},
            "device": environment.device if environment else None,
            "threads": environment.threads if environment else None,
            "sha256": {name: weights.sha256 for name, weights in self.files.items()},
            "unpublished": {name: list(each.unpublished) for name, each in self.files.items() if each.unpublished},
            "unverified": {name: list(each.unverified) for name, each in self.files.items() if each.unverified},
            "unscored": dict(self.reasons),
        }


def dimensions_of(metrics: Iterable[str]) -> list[str]:
    """The metrics that VBench's worker scores, in VBench's order."""
    asked = {name for name in metrics if METRICS[name].worker}
    return [name for name in DIMENSIONS if name in asked]


def prepare(dimensions: Sequence[str], choice: Choice) -> Setup:
    """See what can be scored, before anything is rendered.

    Raises:
        UserError: files are missing or the package does not start, and ``allow_unscored`` is not set.
    """
    folder = cache()
    missing = lacking(dimensions, folder)
    if missing and not choice.allow_unscored:
        raise refusal(missing, folder)
    reasons = {name: reason(name, folder) or "" for name in missing}
    able = [name for name in dimensions if name not in missing]
    environment, python = None, ""
    try:
        python = interpreter(choice.python)
        if able:
            environment = worker.check(python, folder, choice.device)
    except UserError as error:
        if choice.python is not None and not python:  # what was named is not there
            raise
        if not choice.allow_unscored:
            raise UserError(error.problem, f"{error.fix}; or pass --allow-unscored") from error
        reasons |= dict.fromkeys(able, error.problem)
        able = []
    return Setup(choice, python, folder, environment, {name: look(name, folder) for name in able}, reasons)


def of_answer(answer: Answer, setup: Setup) -> Score:
    """An answer of a worker as a score."""
    if answer.value is None:
        return unscored(f"VBench: {answer.reason}")
    details = {"raw": answer.raw, "frames": answer.frames, "setup": setup.id(answer.task.dimension)}
    return Score(answer.value, details=details)


def score_cells(
    plan: Plan, store: Store, setup: Setup, tell: Callable[[int, int, Answer], None] = lambda _i, _n, _answer: None
) -> list[Answer]:
    """Score the finished cells of a plan that have no score of this setup yet, and keep every score as it comes.

    Args:
        plan: whose cells.
        store: that holds them.
        setup: from ``prepare``.
        tell: told of each answer, with its number and how many there will be.

    Returns:
        The answers of this call.

    Raises:
        UserError: no room for a score (``DiskFull``), or no worker works any more; the scores before it are kept.
    """
    dimensions = dimensions_of(plan.recipe.metrics)
    cells = list(_finished(plan, store))
    for name in dimensions:
        for cell in cells if name in setup.reasons else ():
            if (kept := _kept(store, cell, name)) is None or kept.value is None:
                store.put_score(cell, name, METRICS[name].version, None, unscored(setup.reasons[name]))
    tasks = [
        Task(name, cell, store.frames_file(cell))
        for name in dimensions
        if name not in setup.reasons
        for cell in cells
        if (kept := _kept(store, cell, name)) is None or kept.details.get("setup") != setup.id(name)
    ]
    if not tasks:
        return []
    for name in dict.fromkeys(task.dimension for task in tasks):
        store.put_setup(setup.id(name), setup.of(name))
    done: list[Answer] = []
    full: list[BaseException] = []

    def keep(answer: Answer) -> None:
        done.append(answer)
        name = answer.task.dimension
        try:
            store.put_score(answer.task.key, name, METRICS[name].version, None, of_answer(answer, setup))
        except UserError as error:  # said once, by the caller's thread
            full.append(error)
        tell(len(done), len(tasks), answer)

    choice = setup.choice
    worker.score(
        tasks, python=setup.python, folder=setup.folder, device=choice.device, workers=choice.workers,
        limit_s=choice.limit_s, came_up=True, tell=keep,
    )  # fmt: skip
    if full:
        raise full[0]
    store.append_provenance({"finished": now(), "vbench": setup.to_dict()})
    return done


def _finished(plan: Plan, store: Store) -> Iterator[str]:
    seen = set()
    for unit in plan.units():
        status = store.status(unit.cell.id) if unit.row.unsupported is None else None
        if status is not None and status.state == "done" and unit.cell.id not in seen:
            seen.add(unit.cell.id)
            yield unit.cell.id


def _kept(store: Store, cell: str, name: str) -> Score | None:
    return store.score(cell, name, METRICS[name].version, None)


@dataclass(slots=True)
class OfFiles:
    """What came of videos of any engine.

    Attributes:
        scores: by video and dimension; of what was reached.
        stopped: why it ended before all was, or None.
    """

    scores: dict[str, dict[str, Score]]
    stopped: UserError | None = None


def score_files(
    files: Mapping[str, Path],
    dimensions: Sequence[str],
    setup: Setup,
    kept: KeptScores | None = None,
    tell: Callable[[int, int, Answer], None] = lambda _i, _n, _answer: None,
) -> OfFiles:
    """Score videos of any engine. What ends it costs nothing of what was scored before.

    Args:
        files: the videos, by what they are called.
        dimensions: names in DIMENSIONS.
        setup: from ``prepare``.
        kept: where scores are kept; None keeps none.
        tell: told of each new answer, with its number and how many there will be.
    """
    digests = {name: digest(path) for name, path in files.items()} if kept is not None else {}
    found = OfFiles({name: {} for name in files})
    tasks = []
    for dimension in dimensions:
        for name, path in files.items():
            if dimension in setup.reasons:
                found.scores[name][dimension] = unscored(setup.reasons[dimension])
            elif kept and (old := kept.known.get((digests[name], dimension, setup.id(dimension)))) is not None:
                found.scores[name][dimension] = old
            else:
                tasks.append(Task(dimension, name, path))
    done = 0

    def keep(answer: Answer) -> None:
        nonlocal done
        done += 1
        task, score = answer.task, of_answer(answer, setup)
        found.scores[task.key][task.dimension] = score
        tell(done, len(tasks), answer)
        if kept is not None and score.value is not None and digests[task.key]:
            kept.add(digests[task.key], task.dimension, score)

    if tasks:
        choice = setup.choice
        try:
            worker.score(
                tasks, python=setup.python, folder=setup.folder, device=choice.device, workers=choice.workers,
                limit_s=choice.limit_s, came_up=True, tell=keep,
            )  # fmt: skip
        except UserError as error:
            found.stopped = error
    return found
