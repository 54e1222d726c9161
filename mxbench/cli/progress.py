"""How a run looks on a terminal: the grid before it starts, a bar with the time left, or plain lines."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from mxbench.cli.expected import expected
from mxbench.runs.plan import Plan, Row, Unit
from mxbench.runs.store import Store

__all__ = ["Lines", "Live", "Silent", "show_grid"]


def _pending(plan: Plan, store: Store | None) -> list[Unit]:
    seen: set[str] = set()
    found = []
    for unit in plan.units():
        if unit.row.unsupported is None and unit.cell.id not in seen:
            seen.add(unit.cell.id)
            if store is None or store.status(unit.cell.id) is None:
                found.append(unit)
    return found


def show_grid(plan: Plan, store: Store | None, console: Console, out: Path) -> None:
    """Print what will run: each row with its cells done and pending, or why it cannot run here."""
    sampling = plan.sampling
    clip = f"{_many(sampling.frames, 'frame')} of {sampling.width}×{sampling.height}, {_many(sampling.steps, 'step')}"
    grid = f"{_many(len(plan.prompts), 'prompt')} × {_many(len(plan.seeds), 'seed')}"
    where = f"{plan.environment['device']}, {plan.environment['dtype']}; into {escape(str(out))}"
    title = f"[bold]{escape(plan.recipe.title)}[/] – {plan.recipe.model} ({plan.facts.weights})"
    console.print(f"{title}, {clip}; {grid}; {where}", highlight=False)
    for note in plan.notes:
        console.print(f"note: {escape(note)}", highlight=False)
    todo = {unit.cell.id for unit in _pending(plan, store)}
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("method", "by", "done", "pending", ""):
        table.add_column(column, justify="right" if column in ("done", "pending") else "left")
    for row in plan.rows:
        ids = [plan.cell(row, prompt, seed).id for prompt in plan.prompts for seed in plan.seeds]
        pending = sum(id_ in todo for id_ in ids)
        counts = ("–", "–") if row.unsupported else (str(len(ids) - pending), str(pending))
        table.add_row(row.key, _by(row), *counts, f"unsupported: {row.unsupported}" if row.unsupported else "")
    console.print(table)
    console.print(f"{_many(len(todo), 'cell')} to render", highlight=False)
    if (estimate := expected(plan, len(todo), out)) is not None:
        console.print(estimate, highlight=False)


def _many(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _by(row: Row) -> str:
    return "+".join(dict.fromkeys(row.impl))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class _Estimate:
    """Time left, from what the cells of each method have taken so far."""

    def __init__(self, pending: list[Unit]) -> None:
        self.left = [unit.row.key for unit in pending]
        self.taken: dict[str, list[float]] = {}

    def ended(self, unit: Unit, seconds: float) -> None:
        if unit.row.key in self.left:
            self.left.remove(unit.row.key)
        self.taken.setdefault(unit.row.key, []).append(seconds)

    def __str__(self) -> str:
        every = [s for each in self.taken.values() for s in each]
        if not every:
            return "time left not known yet"
        usual = statistics.fmean(every)
        left = sum(statistics.fmean(self.taken[key]) if key in self.taken else usual for key in self.left)
        return f"about {_clock(left)} left"


class Silent:
    """An observer that says nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        return None

    def loading(self) -> None:
        """Nothing."""

    def begin(self, unit: Unit, steps: int) -> None:
        """Nothing."""

    def step(self, done: int, total: int) -> None:
        """Nothing."""

    def end(self, unit: Unit, outcome: str, seconds: float) -> None:
        """Nothing."""


class Lines(Silent):
    """A line per cell, for logs."""

    def __init__(self, console: Console, plan: Plan, store: Store) -> None:
        pending = _pending(plan, store)
        self.console, self.total, self.count = console, len(pending), 0
        self.estimate = _Estimate(pending)

    def __enter__(self) -> Lines:
        return self

    def loading(self) -> None:
        """Say so."""
        self.console.print("loading the model", highlight=False)

    def end(self, unit: Unit, outcome: str, seconds: float) -> None:
        """A line for the cell."""
        self.count += 1
        self.estimate.ended(unit, seconds)
        self.console.print(
            f"[{self.count}/{self.total}] {unit.row.key}  {outcome}  {seconds:.1f} s  {self.estimate}  {unit.said}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


class Live(Silent):
    """Bars for the whole run and for the steps of the running cell."""

    def __init__(self, console: Console, plan: Plan, store: Store) -> None:
        pending = _pending(plan, store)
        self.estimate = _Estimate(pending)
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"),
            console=console, transient=True,
        )  # fmt: skip
        self.cells = self.progress.add_task("cells", total=len(pending), left="")
        self.steps = self.progress.add_task("steps", total=plan.sampling.steps, left="")

    def __enter__(self) -> Live:
        self.progress.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.progress.__exit__(kind, error, trace)

    def loading(self) -> None:
        """Say so in place of the time left."""
        self.progress.update(self.cells, left="loading the model")

    def begin(self, unit: Unit, steps: int) -> None:
        """Name the cell."""
        self.progress.reset(self.steps, total=steps, left=f"{unit.row.key}: {escape(unit.prompt.text[:40])}")
        self.progress.update(self.cells, left=str(self.estimate))

    def step(self, done: int, total: int) -> None:
        """Advance."""
        self.progress.update(self.steps, completed=done, total=total)

    def end(self, unit: Unit, outcome: str, seconds: float) -> None:
        """Advance, and say what went wrong."""
        self.estimate.ended(unit, seconds)
        self.progress.update(self.cells, advance=1, left=str(self.estimate))
        if outcome != "done":
            self.progress.console.print(f"{unit.row.key}: {escape(outcome)} ({escape(unit.said)})", highlight=False)
