"""``mxbench show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxbench.cli.options import echo_json, json_option
from mxbench.errors import unknown_name

if TYPE_CHECKING:
    from mxbench.attention.spec import AttentionSpec

__all__ = ["command"]

_EPILOG = """\b
Examples:
  mxbench show mxattn
  mxbench show demo
  mxbench show recipes/demo.yaml --json
  mxbench show results/demo/cells/0123456789abcdef"""


_OWN = "the model's own, not looked up"


@click.command("show", epilog=_EPILOG)
@click.argument("what", metavar="NAME_OR_FILE")
@json_option
def command(what: str, as_json: bool) -> None:
    """Show the full expansion of a method, a recipe or a cell.

    A method: every field of its spec, as it is and in canonical form. A recipe: its rows, what computes which layer and
    step, prompts and cells. A cell (a folder of results/…/cells): all that makes its identity, and its scores.
    """
    data = _expand(what)
    if as_json:
        echo_json(data)
        return
    import yaml

    click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110).rstrip())


def _expand(what: str) -> dict[str, Any]:
    from mxbench.attention.methods import METHODS
    from mxbench.models import MODELS
    from mxbench.runs import recipe

    path = Path(what)
    if what in METHODS:
        return _method(what)
    if what in MODELS:
        return _model(what)
    if (path / "cell.json").is_file():
        return _cell(path)
    files = recipe.recipe_files()
    if path.is_file() or what in files:
        return _recipe(path if path.is_file() else files[what])
    raise unknown_name("method, model, recipe or cell", what, [*METHODS, *MODELS, *files], hint="mxbench list methods")


def _fields(spec: AttentionSpec) -> dict[str, Any]:
    """What of a spec can be swept, by the names that recipes have for it."""
    from mxbench.attention.axes import AXES

    return {axis: value for axis, a in AXES.items() if (value := a.get(spec)) is not None}


def _method(name: str) -> dict[str, Any]:
    from mxbench.attention.methods import METHODS

    entry = METHODS[name]
    return {
        "method": name,
        "label": entry.label,
        "source": entry.source,
        "id": entry.spec.id,
        "bits": entry.spec.bits,
        "fields": _fields(entry.spec),
        "spec": _plain(entry.spec.to_dict()),
    }


def _model(name: str) -> dict[str, Any]:
    from dataclasses import asdict

    from mxbench.models import MODELS, chooses, facts

    # The shape of a model is known without its weights, which may be far away.
    known = asdict(facts(name, "random" if chooses(name) else None))
    for name_of_function in ("need", "work", "experts_at"):
        known.pop(name_of_function)
    if chooses(name):
        known["weights"] = _OWN
        del known["identity"]
    return {"model": name, "label": MODELS[name].label, "about": MODELS[name].about, **_plain(known)}


def _recipe(path: Path) -> dict[str, Any]:
    from mxbench.models import chooses
    from mxbench.policy import resolved
    from mxbench.runs.plan import RANDOM, expand
    from mxbench.runs.recipe import load

    recipe = load(path)
    unknown = recipe.weights is None and chooses(recipe.model)
    plan = expand(recipe.model_copy(update={"weights": "random"}) if unknown else recipe)
    data = plan.to_dict()
    if unknown:
        data["weights"] = _OWN
        for row in data["rows"]:
            row["label"] = row["label"].removesuffix(RANDOM)
            del row["cells"]  # whose names the weights are part of
    for row, planned in zip(data["rows"], plan.rows, strict=True):
        schedule = planned.entry.schedule
        said = [
            f"layers {rule.layers}, steps {rule.steps}, experts {rule.experts}, {rule.kind}-attention: {rule.use.name}"
            for rule in schedule.rules
        ]
        row["where"] = [said[0], *(f"else {each}" for each in said[1:])]
        experts = plan.facts.experts(plan.sampling.steps)
        row["comes_to"] = resolved(schedule, plan.facts.n_layers, experts, plan.facts.n_experts)
        if schedule.main.spec is not None:
            row["fields"] = _fields(schedule.main.spec)
        row["schedule_id"] = schedule.id
    prompts = data.pop("prompts")
    return {"recipe": str(path), **_plain(data), "prompts": prompts}  # which may be many


def _cell(path: Path) -> dict[str, Any]:
    from mxbench.runs.files import read_json

    scores = {}
    for file in sorted((path / "scores").glob("*.json")):
        score = read_json(file) or {}
        scores[file.stem] = (
            score.get("value") if score.get("value") is not None else f"unscored: {score.get('unscored')}"
        )
    return {
        "cell": path.name,
        "status": read_json(path / "status.json"),
        "provenance": read_json(path / "provenance.json"),
        "scores": scores,
        **(read_json(path / "cell.json") or {}),
    }


def _plain(data: Any) -> Any:
    """Tuples as lists, so that YAML and JSON print them alike."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return data
