"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from mxbench.errors import UserError

__all__ = ["device_option", "echo_json", "json_option", "out_option", "recipe_of", "run_options", "weights_options"]


def _complete(names: Callable[[], list[str]]) -> Callable[[Any, Any, str], list[CompletionItem]]:
    def complete(_ctx: Any, _param: Any, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names() if name.startswith(incomplete)]

    return complete


def _methods() -> list[str]:
    from mxbench.attention.methods import METHODS

    return list(METHODS)


def _models() -> list[str]:
    from mxbench.models import MODELS

    return list(MODELS)


def _metrics() -> list[str]:
    from mxbench.metrics import METRICS

    return list(METRICS)


device_option = click.option(
    "-d", "--device", default="auto", show_default=True, metavar="NAME",
    help="Where the model runs: cpu, cuda, cuda:N, or auto, which takes the first CUDA device where there is one. nano "
    "computes in float32 on a CPU and in float16 on CUDA, and a table holds one of them alone.",
)  # fmt: skip

_WEIGHTS_OPTIONS = [
    click.option(
        "--weights", metavar="WHAT", help="A folder, a hub id, random or random:tiny (default: the model's own)."
    ),
    click.option("--revision", metavar="NAME", help="Branch, tag or commit of a hub id."),
    click.option(
        "--memory",
        metavar="NAME",
        help="How the model is placed on a GPU: whole, whole-tiled, model or group (default: by what the GPU has).",
    ),
]

_VBENCH_OPTIONS = [
    click.option("--vbench-python", metavar="FILE", help="Interpreter that holds vbench (default: what setup made)."),
    click.option("--vbench-device", default="cpu", show_default=True, metavar="NAME", help="cpu, cuda or cuda:N."),
    click.option("--vbench-workers", type=int, default=1, show_default=True, metavar="N", help="VBench processes."),
    click.option(
        "--vbench-limit", type=float, default=1800.0, show_default=True, metavar="SECONDS",
        help="The most that one video may take in one dimension, or inf; a worker has 300 to start.",
    ),
    click.option("--allow-unscored", is_flag=True, help="Go on where VBench lacks something; it is left unscored."),
]  # fmt: skip

_RUN_OPTIONS = [
    click.option("-r", "--recipe", "recipe_file", metavar="FILE", help="A YAML file, or a name in recipes/."),
    click.option("-m", "--model", metavar="NAME", shell_complete=_complete(_models), help="Video model."),
    *_WEIGHTS_OPTIONS,
    click.option("-p", "--prompts", metavar="FILE", help="Prompt set: smoke, nano, general, vbench, or a file."),
    click.option("-n", "--limit", type=int, metavar="N", help="Only the first N prompts."),
    click.option("-s", "--seeds", type=int, metavar="N", help="Seeds per prompt, counted from 0 (default: 1)."),
    click.option("--steps", type=int, metavar="N", help="Denoising steps (default: the model's)."),
    click.option(
        "-M", "--metric", "metrics", multiple=True, metavar="NAME", shell_complete=_complete(_metrics),
        help="A metric; may be repeated (default: the recipe's).",
    ),
    click.option(
        "-i", "--impl", metavar="NAME",
        help="What computes the methods: reference, conformance, fast, native, sdpa, cudnn, flash, or auto (the "
        "default): on CUDA the first of fast and conformance that can, elsewhere the reference; sdpa for what "
        "quantises nothing.",
    ),
    device_option,
    click.option(
        "--gpus", type=int, default=1, metavar="N",
        help="CUDA devices that share every render: each holds the model and computes attention for some of the heads "
        "(Ulysses). For models of Wan's and MiniMax-H3's classes.",
    ),
    click.option(
        "-o", "--out", metavar="DIR",
        help="Results folder (default: in results/, after the recipe or the model; random weights have their own).",
    ),
    *_VBENCH_OPTIONS,
    click.option("--dry-run", is_flag=True, help="Print the grid and what it takes, and stop."),
    click.option("-q", "--quiet", is_flag=True, help="No progress, only the table."),
]  # fmt: skip


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of ``run`` and ``ablate``."""
    for option in reversed(_RUN_OPTIONS):
        function = option(function)
    return function


def vbench_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """How VBench runs."""
    for option in reversed(_VBENCH_OPTIONS):
        function = option(function)
    return function


def known_device(name: str) -> None:
    """See that VBench can be told so.

    Raises:
        UserError: neither ``cpu`` nor ``cuda`` nor ``cuda:N``.
    """
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (":" in name and not (kind == "cuda" and index.isdecimal())):
        raise UserError(f"VBench knows no device {name}", "use cpu, cuda or cuda:N")


def vbench_choice(options: dict[str, Any]) -> Any:
    """A ``Choice`` of the options of ``vbench_options``.

    Raises:
        UserError: no workers, or no time.
    """
    from mxbench.runs.vbench_scores import Choice

    known_device(options["vbench_device"])
    if options["vbench_workers"] < 1:
        raise UserError(f"--vbench-workers {options['vbench_workers']} scores nothing", "give 1 or more")
    if not options["vbench_limit"] > 0:
        raise UserError(f"--vbench-limit {options['vbench_limit']:g} leaves no time", "give seconds above 0")
    return Choice(
        options["vbench_python"], options["vbench_device"], options["vbench_workers"], options["vbench_limit"],
        options["allow_unscored"],
    )  # fmt: skip


def weights_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Which weights a model has, and how it is placed."""
    for option in reversed(_WEIGHTS_OPTIONS):
        function = option(function)
    return function


method_option = click.option(
    "-a", "--method", "methods", multiple=True, metavar="NAME", shell_complete=_complete(_methods),
    help="An attention method; may be repeated.",
)  # fmt: skip

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
out_option = click.option("-o", "--out", metavar="FILE", help="Write to a file instead.")


def echo_json(data: Any) -> None:
    """Print data as JSON, legal and readable."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def recipe_of(recipe_file: str | None) -> tuple[dict[str, Any], str]:
    """The fields of a recipe file (or of a recipe in recipes/ by name), and what its results are called."""
    from mxbench.runs import recipe

    if recipe_file is None:
        return {}, "run"
    path = Path(recipe_file)
    if not path.is_file():
        known = recipe.recipe_files()
        if recipe_file not in known:
            from mxbench.errors import unknown_name

            if path.suffix or "/" in recipe_file:
                raise UserError(f"there is no recipe {recipe_file}", "see `mxbench list recipes`, or pass a path")
            raise unknown_name("recipe", recipe_file, known, hint="mxbench list recipes")
        path = known[recipe_file]
    return recipe.load(path).model_dump(exclude_unset=True), path.stem
