"""What ``run`` and ``ablate`` share: from fields and options to a finished table."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from mxbench.cli.main import PROCESS_START
from mxbench.cli.options import vbench_choice
from mxbench.cli.progress import Lines, Live, Silent, show_grid
from mxbench.cli.quiet import say_once
from mxbench.errors import UserError
from mxbench.metrics import METRICS
from mxbench.models.hub import NotFetched, not_fetching
from mxbench.report.load import write_reports
from mxbench.runs.files import DiskFull
from mxbench.runs.plan import Plan, expand
from mxbench.runs.recipe import Recipe, parse
from mxbench.runs.runner import Failure, Outcome, run
from mxbench.runs.store import Store
from mxbench.runs.vbench_scores import Setup, dimensions_of, prepare, score_cells
from mxbench.vbench.preflight import lacking, refusal
from mxbench.vbench.worker import Answer

__all__ = ["launch"]


def launch(fields: dict[str, Any], name: str, options: dict[str, Any]) -> int:
    """Run a recipe and print its table.

    Args:
        fields: of the recipe, before the command line's.
        name: of the results folder and of the plan in it.
        options: of the command line.

    Returns:
        The exit code.
    """
    for key in ("model", "weights", "revision", "memory", "prompts", "limit", "seeds", "impl"):
        if options.get(key) is not None:
            fields[key] = options[key]
    if options.get("metrics"):
        fields["metrics"] = list(options["metrics"])
    if options.get("steps") is not None:
        fields["sampling"] = {**fields.get("sampling", {}), "steps": options["steps"]}
    fields.setdefault("title", f"mxbench: {name}")
    say_once()
    plan = _planned(parse(fields), options) if options["dry_run"] else _expanded(parse(fields), options)
    wanted = dimensions_of(plan.recipe.metrics)
    out = Path(options["out"] or Path("results") / name)
    console = Console(stderr=True)
    if options["dry_run"]:
        show_grid(plan, Store(out) if (out / "plans").is_dir() else None, Console(), out)
        _lacks(wanted, options)
        return 0
    setup = prepare(wanted, vbench_choice(options)) if wanted else None
    store = Store(out, create=True)
    store.put_plan(name, plan.to_dict())
    if options["quiet"]:
        outcome = run(plan, store, Silent(), process_start=PROCESS_START)
    else:
        show_grid(plan, store, console, out)
        observer = Live(console, plan, store) if console.is_terminal else Lines(console, plan, store)
        with observer:
            outcome = run(plan, store, observer, process_start=PROCESS_START)
    if setup is not None and outcome.stopped is None:
        _vbench(plan, store, setup, outcome, None if options["quiet"] else console)
    try:
        paths = write_reports(store, name, Console(), brief=True)
    except DiskFull as error:
        paths, outcome.stopped = [], outcome.stopped or str(error)
    times = outcome.times
    if times.cells and not options["quiet"]:
        console.print(
            f"{outcome.rendered} rendered, {outcome.kept} kept; start-up {times.startup_s:.1f} s, then denoising "
            f"{times.denoise_s:.1f} s, decoding {times.decode_s:.1f} s, everything else {times.harness_s:.1f} s "
            f"({times.harness_s / times.cells:.2f} s a cell)",
            highlight=False,
        )
    if paths:
        click.echo("Written: " + ", ".join(str(path) for path in paths), err=True)
    unsupported = [row for row in plan.rows if row.unsupported is not None]
    grouped: dict[tuple[str, str], list[str]] = {}
    for failure in outcome.failed:
        grouped.setdefault((failure.row, failure.reason), []).append(failure.cell)
    for (key, reason), cells in grouped.items():
        more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        click.echo(f"mxbench: {key}: {reason} ({cells[0]}{more})", err=True)
    if outcome.stopped is not None:
        click.echo(f"mxbench: {outcome.stopped}", err=True)
    return 1 if outcome.failed or outcome.stopped or unsupported else 0


def _lacks(wanted: list[str], options: dict[str, Any]) -> None:
    """Say what a run's columns of VBench lack, as far as that shows without starting it."""
    if missing := lacking(wanted):
        refused = refusal(missing)
        fix = "these columns are left unscored" if options["allow_unscored"] else refused.fix
        click.echo(f"VBench: {refused.problem}; {fix}")
    others = (METRICS[name].missing() for name in wanted if name not in missing and not options["vbench_python"])
    for reason in dict.fromkeys(filter(None, others)):
        click.echo(reason)


def _expanded(recipe: Recipe, options: dict[str, Any]) -> Plan:
    return expand(recipe, options["device"], options["gpus"])


def _planned(recipe: Recipe, options: dict[str, Any]) -> Plan:
    """Of a run that is not to be: nothing is fetched for it."""
    try:
        with not_fetching():
            return _expanded(recipe, options)
    except NotFetched as error:
        plan = _expanded(recipe.model_copy(update={"weights": "random", "revision": None}), options)
        note = f"{error.problem}; below is what its published architecture takes"
        known = replace(plan.facts, weights="weights not here")
        return replace(plan, facts=known, notes=(*plan.notes, note))


def _vbench(plan: Plan, store: Store, setup: Setup, outcome: Outcome, console: Console | None) -> None:
    """Score what was rendered, with a line an answer."""
    names = {unit.cell.id: f"{unit.row.key}, {unit.said}" for unit in plan.units()}

    def tell(number: int, count: int, answer: Answer) -> None:
        if console is not None:
            said = f"unscored: {answer.reason}" if answer.value is None else f"{answer.seconds:.1f} s"
            line = f"[{number}/{count}] {answer.task.dimension}  {said}  {names[answer.task.key]}"
            console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)

    gc.collect()  # the model has gone, and its memory with it
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        answers = score_cells(plan, store, setup, tell)
    except UserError as error:  # costs nothing that was rendered or scored
        outcome.stopped = str(error)
        return
    for answer in answers:
        if answer.value is None:
            outcome.failed.append(Failure(answer.task.dimension, names[answer.task.key], f"unscored: {answer.reason}"))
