"""``Plan``: a recipe expanded into rows and cells, before anything is loaded or rendered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from mxbench.dispatch import IMPLS, default_impl, unsupported
from mxbench.errors import UserError, unknown_name
from mxbench.kernels import FAMILY
from mxbench.metrics import metric
from mxbench.models import chooses, facts, load, model_entry
from mxbench.models.base import ModelFacts, Sampling, VideoModel
from mxbench.models.device import resolve
from mxbench.models.memory import check, choose
from mxbench.models.parallel import check as check_gpus
from mxbench.models.tested import check_diffusers
from mxbench.policy import Schedule, idle
from mxbench.policy.selector import ALL
from mxbench.runs import prompts as prompt_sets
from mxbench.runs.cell import Cell
from mxbench.runs.entries import Entry, parse_entry
from mxbench.runs.environment import environment
from mxbench.runs.prompts import Prompt
from mxbench.runs.recipe import Recipe

__all__ = ["RANDOM", "Plan", "Row", "Unit", "expand"]

REFERENCE = "fp16"
FLOOR = "fp16-floor"
RANDOM = " (random weights)"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table to come.

    Attributes:
        entry: the method.
        role: ``reference``, ``noise_floor`` or ``method``.
        impl: what computes each rule of the schedule.
        unsupported: why this machine cannot compute it, or None.
    """

    entry: Entry
    role: str
    impl: tuple[str, ...]
    unsupported: str | None

    @property
    def key(self) -> str:
        """The entry's key."""
        return self.entry.key


@dataclass(frozen=True, slots=True)
class Unit:
    """One cell of the grid: a row, a prompt and a seed."""

    row: Row
    prompt: Prompt
    seed: int
    cell: Cell
    reference: Cell

    @property
    def said(self) -> str:
        """Prompt and seed, short enough for a line."""
        text = self.prompt.text if len(self.prompt.text) <= 50 else self.prompt.text[:49] + "…"
        return f"“{text}”, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run will do.

    Attributes:
        recipe: what was asked for.
        facts: of the model.
        sampling: the model's own, with the recipe's changes.
        prompts: each once.
        seeds: of each prompt.
        rows: the reference first, then the noise floor, then the methods in the recipe's order.
        device: where cells are rendered, ``cpu`` or ``cuda:N``.
        environment: what else changes pixels.
        memory: how the model is placed on the device, see ``mxbench.models.memory``; None where that is no choice.
        gpus: how many share a render.
        notes: what a reader of the prompt file, or of the methods' rules, should be told.
    """

    recipe: Recipe
    facts: ModelFacts
    sampling: Sampling
    prompts: tuple[Prompt, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    device: str
    environment: dict[str, str]
    notes: tuple[str, ...]
    memory: str | None = None
    gpus: int = 1

    def load(self) -> VideoModel:
        """The model, on the device, or on as many as share a render."""
        recipe = self.recipe
        if self.gpus == 1:
            return load(recipe.model, self.device, recipe.weights, recipe.revision, self.memory)
        from mxbench.models.parallel import ParallelModel

        one = partial(load, recipe.model, weights=recipe.weights, revision=recipe.revision, memory=self.memory)
        return ParallelModel(one, tuple(f"cuda:{index}" for index in range(self.gpus)), uneven=self.facts.uneven)

    def cell(self, row: Row, prompt: Prompt, seed: int) -> Cell:
        """The cell of a row, a prompt and a seed."""
        return Cell(
            model=self.facts.identity,
            schedule=row.entry.schedule.to_dict(),
            impl=row.impl,
            prompt=prompt.text,
            seed=seed,
            sampling=asdict(self.sampling),
            environment=self.environment,
        )

    def units(self) -> Iterator[Unit]:
        """The whole grid, prompt by prompt, so that every prompt's reference comes before what is compared with it."""
        for prompt in self.prompts:
            for seed in self.seeds:
                reference = self.cell(self.rows[0], prompt, seed)
                for row in self.rows:
                    yield Unit(row, prompt, seed, self.cell(row, prompt, seed), reference)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the store: all that a report needs beside the cells. No paths, no dates."""
        return {
            "title": self.recipe.title,
            "source": self.recipe.source,
            "model": self.recipe.model,
            "weights": self.facts.weights,
            "sampling": asdict(self.sampling),
            "environment": self.environment,
            "metrics": list(self.recipe.metrics),
            "baseline": self.recipe.baseline,
            "kind": self.recipe.kind,
            "seeds": list(self.seeds),
            "prompts": [{"id": prompt.id, "text": prompt.text} for prompt in self.prompts],
            "rows": [self._row_dict(row) for row in self.rows],
        }

    def _row_dict(self, row: Row) -> dict[str, Any]:
        schedule, known = row.entry.schedule, self.facts
        spec = schedule.main.spec
        return {
            "key": row.key,
            "label": row.entry.label,
            "role": row.role,
            "impl": list(row.impl),
            "unsupported": row.unsupported,
            "unverified": schedule.unverified,
            "bits": None if spec is None else spec.bits,
            "share": schedule.share(known.n_layers, _experts(known, schedule, self.sampling), known.n_experts),
            "flags": dict(row.entry.flags),
            "axis": dict(row.entry.axis),
            "cells": {
                prompt.id: {str(seed): self.cell(row, prompt, seed).id for seed in self.seeds}
                for prompt in self.prompts
            },
        }


def expand(recipe: Recipe, device: str = "auto", gpus: int = 1) -> Plan:
    """Expand a recipe.

    Args:
        recipe: what to render; it names no device, which is a property of the machine.
        device: see ``mxbench.models.device.resolve``.
        gpus: how many share a render, see ``mxbench.models.parallel``.

    Raises:
        UserError: whatever in it names something that does not exist or cannot work, before any time is spent.
    """
    check_diffusers()
    known = facts(recipe.model, recipe.weights, recipe.revision)
    device = resolve(device, known.dtypes)
    sampling = _sampling(recipe, known)
    memory = _memory(recipe, known, device, sampling)
    check_gpus(recipe.model, known, sampling, device, memory, gpus)
    loaded = _prompts(recipe)
    for name in recipe.metrics:
        metric(name)
    if not recipe.metrics:
        raise UserError("the recipe has no metrics", "name at least one, such as psnr")
    for impl in (recipe.impl, recipe.reference_impl, recipe.noise_floor or "auto"):
        if impl not in (*IMPLS, "auto"):
            raise unknown_name("impl", impl, [*IMPLS, "auto"])
    entries = [parse_entry(item) for item in recipe.methods]
    rows = _rows(recipe, entries, device, known.dtype_on(device))
    for row in rows:
        row.entry.schedule.check(known.n_layers, sampling.steps, known.n_experts, known.kinds)
    if known.weights.startswith("random"):  # said in every row: a row may leave its table
        rows = tuple(
            replace(row, entry=replace(row.entry, label=f"{row.entry.label} (random weights)")) for row in rows
        )
    return Plan(
        recipe=recipe,
        facts=known,
        sampling=sampling,
        prompts=loaded.prompts,
        seeds=_seeds(recipe),
        rows=rows,
        device=device,
        environment=environment(device, known.dtype_on(device), memory, tiles=known.tiles, gpus=gpus),
        notes=(*loaded.notes, *_idle(rows, known, sampling)),
        memory=memory,
        gpus=gpus,
    )


def _experts(known: ModelFacts, schedule: Schedule, sampling: Sampling) -> Sequence[int]:
    """The transformer of each step, where it matters to a schedule: to know it takes diffusers' scheduler."""
    matters = any(rule.experts != ALL for rule in schedule.rules)
    return known.experts(sampling.steps) if matters else (0,) * sampling.steps


def _idle(rows: Sequence[Row], known: ModelFacts, sampling: Sampling) -> list[str]:
    return [
        f"{row.key}: {said}: those before it do, or its expert has no step"
        for row in rows
        for schedule in (row.entry.schedule,)
        for said in idle(schedule, known.n_layers, _experts(known, schedule, sampling), known.n_experts)
    ]


def _memory(recipe: Recipe, known: ModelFacts, device: str, sampling: Sampling) -> str | None:
    """By what the device has in all, not by what is free: the choice is part of a cell's identity."""
    if known.need is None:
        if recipe.memory is not None:
            raise UserError(f"{recipe.model} is placed whole, and --memory says {recipe.memory}", "leave --memory out")
        return None
    if recipe.memory is not None:
        check(recipe.memory, device)
        return recipe.memory
    total = 0 if device == "cpu" else torch.cuda.get_device_properties(device).total_memory
    return choose(known.need(sampling), total, device=device)


def _prompts(recipe: Recipe) -> prompt_sets.LoadedPrompts:
    source = recipe.prompts if recipe.prompts is not None else model_entry(recipe.model).prompts
    if isinstance(source, str):
        loaded = prompt_sets.load_with_notes(source)
    else:
        if not source:
            raise UserError("the recipe's list of prompts is empty", "write at least one prompt, or name a set")
        loaded = prompt_sets.LoadedPrompts(tuple(dict.fromkeys(Prompt(text) for text in source)))
    if recipe.limit is not None:
        loaded = replace(loaded, prompts=prompt_sets.limit(loaded.prompts, recipe.limit))
    return loaded


def _seeds(recipe: Recipe) -> tuple[int, ...]:
    seeds = tuple(range(recipe.seeds)) if isinstance(recipe.seeds, int) else tuple(dict.fromkeys(recipe.seeds))
    if not seeds or any(not 0 <= seed < 2**63 for seed in seeds):
        raise UserError(f"seeds: {recipe.seeds} gives no seeds", "use a positive count, or a list of nonnegative seeds")
    return seeds


def _sampling(recipe: Recipe, known: ModelFacts) -> Sampling:
    changes = {k: v for k, v in recipe.sampling.model_dump().items() if v is not None}
    if "guidance" in changes:
        scales = changes["guidance"] if isinstance(changes["guidance"], list) else [changes["guidance"]]
        if len(scales) not in (1, known.n_experts):
            many = f", or {known.n_experts}, one an expert" if known.n_experts > 1 else ""
            raise UserError(f"guidance has {len(scales)} scales", f"write one{many}")
        if not all(0 <= scale < math.inf for scale in scales):
            raise UserError(f"guidance {changes['guidance']} is no scale", "write 1 for none, or more")
        changes["guidance"] = tuple(float(s) for s in (scales * known.n_experts)[: known.n_experts])
    sampling = replace(known.sampling, **changes)
    for name in known.ignores:
        if getattr(sampling, name) != getattr(known.sampling, name):
            raise UserError(
                f"{recipe.model} takes no {name.replace('_', ' ')}", f"leave {name} out of the recipe's sampling"
            )
    if sampling.frames not in known.frames:
        rule, near = known.frames, known.frames.near(sampling.frames)
        bounds = f" from {rule.least}" if rule.least > 1 else ""
        bounds += f" to {rule.most}" if rule.most is not None else ""
        raise UserError(
            f"{sampling.frames} frames cannot be decoded",
            f"the VAE takes {rule.step}k + {rule.first}{bounds}, such as {near}",
        )
    for name in ("height", "width"):
        size, multiple = getattr(sampling, name), known.multiple
        if size % multiple:
            raise UserError(
                f"{name} {size} is no multiple of {multiple}", f"use {max(multiple, size // multiple * multiple)}"
            )
    return sampling


def _rows(recipe: Recipe, entries: list[Entry], device: str, dtype: str) -> tuple[Row, ...]:
    keys = [entry.key for entry in entries]
    for key in keys:
        if keys.count(key) > 1 or key == FLOOR:
            raise UserError(f"two methods are called {key!r}", "give one of them another name")
    reference = next((e for e in entries if e.key == REFERENCE), None) or parse_entry(REFERENCE)
    if reference.schedule.id != parse_entry(REFERENCE).schedule.id:
        raise UserError("fp16 is redefined, and every row is compared with it", "give that method another name")
    rows = [_row(reference, "reference", recipe.reference_impl, device, dtype)]
    if rows[0].unsupported is not None:
        raise UserError(f"the reference cannot be rendered: {rows[0].unsupported}", "change reference_impl")
    if recipe.noise_floor is not False:
        impl = recipe.noise_floor
        if impl == "auto":
            impl = "flash" if chooses(recipe.model) and device.startswith("cuda") else "reference"
        floor = replace(reference, key=FLOOR, label=f"FP16 by the {impl} kernel")
        rows.append(_row(floor, "noise_floor", impl, device, dtype))
        if rows[1].impl == rows[0].impl:
            raise UserError(
                f"reference and noise floor are both rendered by {impl}",
                f"set noise_floor to another of {', '.join(n for n in IMPLS if n not in FAMILY)}, or to false",
            )
    rows += [_row(entry, "method", recipe.impl, device, dtype) for entry in entries if entry.key != REFERENCE]
    return tuple(rows)


def _row(entry: Entry, role: str, impl: str, device: str, dtype: str) -> Row:
    names, reasons = [], []
    where, kind = torch.device(device), getattr(torch, dtype)
    for use in entry.schedule.uses:
        if use.spec is None:
            names.append("function")
            continue
        names.append(default_impl(use.spec, where, kind) if impl == "auto" else impl)
        if (reason := unsupported(use.spec, names[-1], where, kind)) is not None:
            reasons.append(reason)
    return Row(entry, role, tuple(names), "; ".join(dict.fromkeys(reasons)) or None)
