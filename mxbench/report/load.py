"""From a results folder to tables: fill ``TableData`` from the store, print it, write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from mxbench.errors import UserError, unknown_name
from mxbench.metrics import METRICS
from mxbench.report.beside import beside_grid
from mxbench.report.columns import columns_for
from mxbench.report.csv import to_csv
from mxbench.report.data import MethodRow, Observation, TableData
from mxbench.report.jsonout import to_json
from mxbench.report.layout import page
from mxbench.report.markdown import render
from mxbench.report.published import load_published
from mxbench.report.tables import Table, build
from mxbench.report.terminal import print_page
from mxbench.runs.store import Store
from mxbench.vbench.notes import notes_of

__all__ = ["KERNELS", "print_report", "table_data", "write_reports"]

KERNELS = ("conformance", "fast", "native")
"""The keys of ``mxbench.kernels.FAMILY``, whose import would wait for torch."""


def table_data(store: Store, name: str) -> TableData:
    """What the table of a plan is made from.

    Args:
        store: the results folder.
        name: of the plan in it.

    Raises:
        UserError: no such plan, or one that another version of mxbench wrote.
    """
    plans = store.plans()
    if name not in plans:
        raise UserError(f"{store.root} has no plan {name!r}", "run the recipe again")
    plan = plans[name]
    try:
        return _table_data(store, plan)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"the plan {name!r} of {store.root} cannot be read ({error})", "run the recipe again") from None


def _table_data(store: Store, plan: Mapping[str, Any]) -> TableData:
    sampling, environment = plan["sampling"], plan["environment"]
    reference = plan["rows"][0]
    device = environment["device"].split(":")[0]
    settings = {
        "Clip": f"{sampling['frames']} frames of {sampling['width']}×{sampling['height']} at {sampling['fps']} fps",
        "Steps": str(sampling["steps"]),
        "Guidance": ", ".join(f"{scale:g}" for scale in sampling["guidance"]),
        "Device": environment["device"],
        "Dtype": environment["dtype"],
        "Software": ", ".join(f"{n} {environment[n]}" for n in ("torch", "diffusers", "transformers")),
    }
    if "context_parallel" in environment:
        settings["Context parallelism"] = environment["context_parallel"]
    if "threads" in environment:
        settings["Threads"] = f"{environment['threads']} ({environment['capability']})"
    notes = [f"Reproduces {plan['source']}."] if plan["source"] else []
    if plan["weights"].startswith("random"):
        notes.append(
            "The model's weights are random: the table shows how far each method moves a render, and says nothing "
            "about the quality of a trained model's videos."
        )
    damaged = sum(store.damaged(cell) for seeds in reference["cells"].values() for cell in seeds.values())
    if damaged:
        notes.append(f"Damaged FP16 renders: {damaged}. Run the recipe again.")
    notes += _calls(store, plan)
    notes += _vbench(store, plan)
    return TableData(
        title=plan["title"],
        model=plan["model"],
        weights=plan["weights"],
        environment=settings,
        reference=f"FP16 by the {'+'.join(reference['impl'])} kernel, {device} {environment['dtype']}",
        rows=tuple(_row(row) for row in plan["rows"]),
        metrics=columns_for(plan["metrics"]),
        observations=tuple(_observations(store, plan)),
        n_prompts=len(plan["prompts"]),
        kind=plan["kind"],
        notes=tuple(notes),
    )


def _row(row: Mapping[str, Any]) -> MethodRow:
    bits = None
    if row["bits"] is not None:
        values = [f"{value:g}" for value in row["bits"].values()]
        bits = values[0] if len(set(values)) == 1 else "/".join(values)
        if (share := row.get("share", 1.0)) < 1:
            bits += f" in {share:.0%}"
    return MethodRow(
        key=row["key"],
        label=row["label"],
        role=row["role"],
        bits=bits,
        unverified=row["unverified"],
        flags=row["flags"],
        axis=row["axis"],
    )


def _cells(plan: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, int, str]]:
    for row in plan["rows"]:
        for prompt, seeds in row["cells"].items():
            for seed, cell in seeds.items():
                yield row, prompt, int(seed), cell


def _calls(store: Store, plan: Mapping[str, Any]) -> list[str]:
    """What is to be said of the attention calls: which kernels computed them, and what befell them."""
    by: dict[str, list[str]] = {}
    for row in plan["rows"]:
        for impl in dict.fromkeys(row["impl"]):
            if impl in KERNELS and not row["unsupported"]:
                by.setdefault(impl, []).append(row["label"])
    notes = []
    if by:
        listed = "; ".join(f"{impl}: {', '.join(labels)}" for impl, labels in by.items())
        notes.append(f"Computed by kernels, not by the reference: {listed}.")
    sick, widened = 0, Counter[str]()
    for row, _, _, cell in _cells(plan):
        if (status := store.status(cell)) is not None:
            sick += status.nonfinite_calls
            widened[row["label"]] += status.widened_calls
    if sick:
        notes.append(f"{sick} attention calls were handed a NaN or an infinity.")
    if widened.total():
        counts = ", ".join(f"{label} {count}" for label, count in widened.items() if count)
        notes.append(
            f"Attention calls of fast whose operands span more than E5M2 holds, computed by conformance: {counts}."
        )
    return notes


def _vbench(store: Store, plan: Mapping[str, Any]) -> list[str]:
    """By which VBench, on what, with whose weights; and whether a column mixes them."""
    setups, used = store.setups(), dict[str, dict[str, None]]()
    for name in plan["metrics"]:
        if METRICS[name].worker:
            scores = (store.score(cell, name, METRICS[name].version, None) for _, _, _, cell in _cells(plan))
            used[name] = dict.fromkeys(
                str(s.details.get("setup")) for s in scores if s is not None and s.value is not None
            )
    known = [setups[one] for found in used.values() for one in found if one in setups]
    notes = notes_of(known)
    mixed = [METRICS[name].label for name, found in used.items() if len(found) > 1]
    if mixed:
        notes.append(f"Scores of several VBench setups stand in one column: {', '.join(mixed)}. Run the recipe again.")
    return notes


def _observations(store: Store, plan: Mapping[str, Any]) -> Iterator[Observation]:
    reference = plan["rows"][0]["cells"]
    for row, prompt, seed, cell in _cells(plan):
        status = store.status(cell)
        against = reference[prompt][str(seed)]
        for name in plan["metrics"]:
            metric = METRICS[name]
            if metric.needs_reference and row["role"] == "reference":
                continue
            value, unscored, failed, identical = None, None, None, 0
            if row["unsupported"]:
                unscored = f"unsupported here, {row['unsupported']}"
            elif status is None:
                failed = store.error(cell)
                pending = (
                    "its stored files are damaged, run the recipe again" if store.damaged(cell) else "not rendered yet"
                )
                unscored = None if failed else pending
            elif status.state == "failed":
                failed = status.reason
            else:
                score = store.score(cell, name, metric.version, against if metric.needs_reference else None)
                if score is None:
                    known = store.status(against)
                    alone = metric.needs_reference and (known is None or known.state != "done")
                    unscored = "its FP16 reference is missing" if alone else "not scored yet, run the recipe again"
                else:
                    value, unscored = score.value, score.unscored
                    # Only the mean over frames counts an identical frame as 100 dB.
                    identical = int(score.details.get("identical_frames", 0)) if name == "psnr" else 0
            yield Observation(row["key"], prompt, seed, name, value, unscored, failed, identical)


def _build(store: Store, name: str, baseline: str | None) -> Table:
    plan, data = store.plans().get(name, {}), table_data(store, name)
    rows = [row.key for row in data.rows]
    if baseline is not None and baseline not in rows:
        raise unknown_name("row", baseline, rows)
    return build(data, baseline or plan.get("baseline", "mxfp4"))


def print_report(
    store: Store, name: str, form: str, console: Console, *, baseline: str | None = None, published: str | None = None
) -> None:
    """Print the report of a plan.

    Args:
        store: the results folder.
        name: of the plan.
        form: ``terminal``, ``md``, ``csv`` or ``json``.
        console: where the terminal's table goes; the other forms go to standard output.
        baseline: row that paired differences are taken against; None keeps the recipe's.
        published: put a paper's figures for this model beside the measured ones (``same``: for the model that was
            run); not in CSV and JSON.
    """
    table = _build(store, name, baseline)
    if published is not None and form in ("csv", "json"):
        raise UserError(
            f"--published has no {form} form", "use --format terminal or md; the figures are in results/published"
        )
    as_model = None if published == "same" else published
    extra = [beside_grid(table, load_published(), as_model)] if published is not None else []
    if form == "csv":
        click.echo(to_csv(table), nl=False)
    elif form == "json":
        click.echo(to_json(table), nl=False)
    elif form == "md":
        click.echo(render(page(table, *extra)), nl=False)
    else:
        print_page(page(table, *extra), console)


def write_reports(
    store: Store, name: str, console: Console | None, *, baseline: str | None = None, brief: bool = False
) -> list[Path]:
    """Write ``report.md`` and ``report.csv`` into the results folder, and print the table if there is a console.

    A folder that holds several plans gets one pair of files a plan, named after it.

    Args:
        store: the results folder.
        name: of the plan.
        console: where to print, if anywhere.
        baseline: row that paired differences are taken against; None keeps the recipe's.
        brief: print the table of means alone; the files hold everything.
    """
    table = _build(store, name, baseline)
    made = page(table)
    if console is not None:
        print_page(replace(made, grids=made.grids[:1]) if brief else made, console)
    stem = "report" if len(store.plans()) == 1 else f"report-{name}"
    return [store.write(f"{stem}.md", render(made)), store.write(f"{stem}.csv", to_csv(table))]
