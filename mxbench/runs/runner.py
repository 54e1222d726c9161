"""The runner: render what is missing, judge what is not judged, and let no failing cell stop the rest."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mxbench.errors import CellFailed, UserError
from mxbench.metrics import METRICS, score, sickness
from mxbench.models.base import VideoModel
from mxbench.models.device import fits
from mxbench.runs.files import DiskFull
from mxbench.runs.plan import Plan, Unit
from mxbench.runs.prompts import slug
from mxbench.runs.provenance import CellTimes, RunTimes
from mxbench.runs.store import Store
from mxbench.video import Clip

__all__ = ["Failure", "Observer", "Outcome", "run"]


class Observer(Protocol):
    """What follows a run; the terminal is one."""

    def loading(self) -> None:
        """The model is being loaded."""

    def begin(self, unit: Unit, steps: int) -> None:
        """A cell starts."""

    def step(self, done: int, total: int) -> None:
        """A denoising step ended."""

    def end(self, unit: Unit, outcome: str, seconds: float) -> None:
        """A cell ended: ``done``, or what went wrong."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell without a usable result.

    Attributes:
        row: key of its row.
        cell: prompt and seed, for people.
        reason: what went wrong, behind ``failed:`` or ``error:``.
    """

    row: str
    cell: str
    reason: str


@dataclass(slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        rendered: cells rendered by this run.
        kept: cells that were finished before.
        failed: the cells that failed or broke.
        stopped: why the run stopped before its end, or None.
        times: where the seconds went.
    """

    rendered: int = 0
    kept: int = 0
    failed: list[Failure] = field(default_factory=list)
    stopped: str | None = None
    times: RunTimes = field(default_factory=RunTimes)


def run(
    plan: Plan,
    store: Store,
    observer: Observer,
    *,
    loader: Callable[[Plan], VideoModel] = Plan.load,
    process_start: float | None = None,
) -> Outcome:
    """Render and judge all cells of a plan that are not there yet.

    A cell that another run holds is left to it and looked at again at the end.

    Args:
        plan: the grid.
        store: where results go.
        observer: told of progress.
        loader: loads the plan's model; called only if something is to be rendered.
        process_start: ``time.perf_counter()`` at the start of the process, for the start-up time.
    """
    outcome = Outcome()
    begun = time.perf_counter() if process_start is None else process_start
    worker = _Worker(plan, store, observer, outcome, loader, begun)
    try:
        later = worker.pass_over(plan.units(), wait=False)
        worker.pass_over(later, wait=True)
    except DiskFull as error:
        outcome.stopped = str(error)
    finally:
        worker.finish()
    return outcome


@dataclass(slots=True)
class _Worker:
    plan: Plan
    store: Store
    observer: Observer
    outcome: Outcome
    loader: Callable[[Plan], VideoModel]
    begun: float
    model: VideoModel | None = None
    first_cell: float | None = None
    counted: set[str] = field(default_factory=set)
    reference: tuple[str, Clip] | None = None

    def pass_over(self, units: Iterable[Unit], *, wait: bool) -> Sequence[Unit]:
        """Take each unit in turn; returns those that another run holds."""
        held_elsewhere: list[Unit] = []
        for unit in units:
            if unit.row.unsupported is not None:
                continue
            if self.store.status(unit.cell.id) is None:
                with self.store.claim(unit.cell.id, wait=wait) as held:
                    if not held:
                        held_elsewhere.append(unit)
                        continue
                    if self.store.status(unit.cell.id) is None:
                        self._render(unit)
                        continue
            if unit.cell.id not in self.counted:
                self.counted.add(unit.cell.id)
                self.outcome.kept += 1
            self._judge(unit, None)
        return held_elsewhere

    def _load(self) -> VideoModel:
        if self.model is None:
            self.observer.loading()
            at = time.perf_counter()
            self.model = self.loader(self.plan)
            loaded = time.perf_counter()
            with fits(self.plan.device, self.plan.memory):
                self.model.self_test()
            self.outcome.times.load_s = loaded - at
            self.outcome.times.self_test_s = time.perf_counter() - loaded
        return self.model

    def _render(self, unit: Unit) -> None:
        model = self._load()
        if self.first_cell is None:
            self.first_cell = time.perf_counter()
            self.outcome.times.startup_s = self.first_cell - self.begun
        self.counted.add(unit.cell.id)
        sampling, times = self.plan.sampling, CellTimes()
        self.observer.begin(unit, sampling.steps)
        impls = set(unit.row.impl) - {"function"}
        impl = impls.pop() if len(impls) == 1 else "auto"  # several are what auto chose, rule by rule
        clip, result = None, "done"
        try:
            with fits(self.plan.device, self.plan.memory):
                render = model.render(
                    unit.prompt.text, unit.seed, sampling, unit.row.entry.schedule, impl, self.observer.step
                )
            times.denoise_s, times.decode_s = render.denoise_s, render.decode_s
            sick = sickness(render.frames, sampling.frames, render.latents)
            self.store.put(unit.cell, render, times.to_dict(), sick)
            clip = Clip(render.frames, render.fps) if sick is None else None
            result = "done" if sick is None else f"failed: {sick}"
        except CellFailed as failure:
            result = f"failed: {failure}"
            self.store.put_failed(unit.cell, str(failure), times.to_dict())
        except DiskFull:
            raise
        except Exception as error:  # noqa: BLE001 - one broken cell must not cost the others
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            result = f"error: {' '.join(reason.split())[:300]}"
            self.store.put_error(unit.cell.id, result.removeprefix("error: "), traceback.format_exc())
        if result == "done":
            self.outcome.rendered += 1
            self._judge(unit, clip)
        else:
            self._failed(unit, result)
        total = self.outcome.times
        total.cells += 1
        total.denoise_s += times.denoise_s
        total.decode_s += times.decode_s
        self.observer.end(unit, result, time.perf_counter() - times.begun)

    def _failed(self, unit: Unit, reason: str) -> None:
        self.outcome.failed.append(Failure(unit.row.key, unit.said, reason))

    def _judge(self, unit: Unit, clip: Clip | None) -> None:
        """Score a finished cell by whatever metrics it has not been scored by."""
        status = self.store.status(unit.cell.id)
        if status is None or status.state != "done":
            if status is not None:
                self._failed(unit, f"failed: {status.reason}")
            return
        folder = f"{slug(unit.prompt)}-s{unit.seed}"
        self.store.publish_preview(unit.cell.id, folder, unit.row.key.replace("/", "-"))
        reference_id = unit.reference.id
        if unit.cell.id == reference_id and clip is not None:
            self.reference = (reference_id, clip)
        missing = [name for name in self.plan.recipe.metrics if self._wanted(unit, name)]
        if not missing:
            return
        clip = clip if clip is not None else self.store.clip(unit.cell.id)
        for name, value in score(missing, clip, self._reference(reference_id)).items():
            known = METRICS[name]
            self.store.put_score(
                unit.cell.id, name, known.version, reference_id if known.needs_reference else None, value
            )

    def _wanted(self, unit: Unit, name: str) -> bool:
        known = METRICS[name]
        if known.worker:
            return False  # of all cells at once, when they are rendered: mxbench.runs.vbench_scores
        if known.needs_reference and unit.row.role == "reference":
            return False
        if known.needs_reference and not self._done(unit.reference.id):
            return False  # without its reference a cell has nothing to be compared with, yet
        kept = self.store.score(unit.cell.id, name, known.version, unit.reference.id if known.needs_reference else None)
        # A score that this machine could not take before may be possible now.
        return kept is None or (kept.value is None and known.missing() is None)

    def _done(self, cell_id: str) -> bool:
        status = self.store.status(cell_id)
        return status is not None and status.state == "done"

    def _reference(self, cell_id: str) -> Clip | None:
        if not self._done(cell_id):
            return None
        if self.reference is None or self.reference[0] != cell_id:
            self.reference = (cell_id, self.store.clip(cell_id))
        return self.reference[1]

    def finish(self) -> None:
        """Account for the run."""
        times = self.outcome.times
        if self.first_cell is not None:
            whole = time.perf_counter() - self.first_cell
            times.harness_s = max(0.0, whole - times.denoise_s - times.decode_s)
        if times.cells:
            try:
                self.store.append_provenance(times.to_dict(self.plan.environment))
            except DiskFull as error:
                self.outcome.stopped = self.outcome.stopped or str(error)
