"""``mxbench run``."""

from __future__ import annotations

from typing import Any

import click

from mxbench.cli.options import method_option, recipe_of, run_options

__all__ = ["command"]

_EPILOG = """\b
Examples:
  mxbench run --recipe demo
  mxbench run --model nano --method mxattn --method nvfp4-sage --limit 4
  mxbench run -a mxfp4 -a mxattn -p my_prompts.txt -s 2 -o results/mine --dry-run

A run goes on where it was stopped: finished cells are never rendered again."""


@click.command("run", epilog=_EPILOG)
@run_options
@method_option
def command(methods: tuple[str, ...], recipe_file: str | None, **options: Any) -> int:
    """Render prompts with several methods and compare them.

    Every method renders the same prompts from the same seeds; the FP16 render is the reference, and a second exact
    kernel gives the noise floor. Ends with the table, and leaves report.md, report.csv and previews in the results
    folder.
    """
    from mxbench.cli.launch import launch

    fields, name = recipe_of(recipe_file)
    if methods:
        fields["methods"] = list(methods)
    elif not fields:
        fields["methods"] = ["mxfp4", "nvfp4", "nvfp4-sage", "mxattn", "vc8", "vc4"]
    if not recipe_file:
        weights = options["weights"] or ""
        random = f"-{weights.replace(':', '-')}" if weights.startswith("random") else ""
        name = f"{options['model'] or 'nano'}{random}"
    return launch(fields, name, options)
