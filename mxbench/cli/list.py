"""``mxbench list``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from mxbench.cli.options import echo_json, json_option

__all__ = ["command"]

_EPILOG = """\b
Examples:
  mxbench list methods
  mxbench list fields --json"""


def _models() -> list[dict[str, Any]]:
    from mxbench.models import MODELS

    return [{"name": n, "label": m.label, "about": m.about, "prompts": m.prompts} for n, m in MODELS.items()]


def _methods() -> list[dict[str, Any]]:
    from mxbench.attention.methods import METHODS

    return [
        {
            "name": name,
            "label": entry.label,
            "bits": "/".join(f"{bits:g}" for bits in entry.spec.bits.values()),
            "source": entry.source,
        }
        for name, entry in METHODS.items()
    ]


def _metrics() -> list[dict[str, Any]]:
    from mxbench.metrics import METRICS

    return [
        {"name": n, "version": m.version, "definition": m.source, "here": m.missing() or "yes"}
        for n, m in METRICS.items()
    ]


def _recipes() -> list[dict[str, Any]]:
    from mxbench.runs import recipe

    found = []
    for name, path in recipe.recipe_files().items():
        loaded = recipe.load(path)
        about = {"title": loaded.title, "model": loaded.model, "methods": len(loaded.methods)}
        found.append({"name": name, **about, "file": str(path)})
    return found


def _fields() -> list[dict[str, Any]]:
    from mxbench.attention.axes import AXES

    return [
        {"name": name, "about": axis.help, "values": ", ".join("none" if v is None else str(v) for v in axis.values)}
        for name, axis in AXES.items()
    ]


_KINDS = {"models": _models, "methods": _methods, "metrics": _metrics, "recipes": _recipes, "fields": _fields}


@click.command("list", epilog=_EPILOG)
@click.argument("kind", type=click.Choice(list(_KINDS)))
@json_option
def command(kind: str, as_json: bool) -> None:
    """List models, methods, metrics, recipes, or the fields that --sweep and recipes speak of.

    The bits of a method are those of Q/K/V/P per element, block scales included.
    """
    rows = _KINDS[kind]()
    if as_json:
        echo_json(rows)
        return
    columns = [name for name in (rows[0] if rows else ("nothing found",)) if name != "file"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for row in rows:
        table.add_row(*(str(row[name]) for name in columns))
    console = Console()
    console.print(table)
    for folder in dict.fromkeys(Path(row["file"]).parent for row in rows if "file" in row):
        console.print(f"in {folder}", highlight=False, soft_wrap=True)
