"""``mxbench ablate``."""

from __future__ import annotations

from typing import Any

import click

from mxbench.cli.options import recipe_of, run_options
from mxbench.errors import UserError

__all__ = ["command"]

_EPILOG = """\b
Examples:
  mxbench ablate                           MXAttention's sequential ablation
  mxbench ablate --method vc8 --limit 8
  mxbench ablate --sweep q_max=6:8:0.25    one field over a range
  mxbench ablate -a vc8 -S v_smooth.layout=cluster,cube,sequence
  mxbench ablate -S row_sum -S hadamard    every combination of two fields

`mxbench list fields` shows what can be swept."""


@click.command("ablate", epilog=_EPILOG)
@run_options
@click.option("-a", "--method", "names", multiple=True, metavar="NAME", help="What to ablate (default: mxattn).")
@click.option(
    "-S", "--sweep", "sweeps", multiple=True, metavar="FIELD=A:B:STEP", help="Sweep a field; may be repeated."
)
def command(names: tuple[str, ...], sweeps: tuple[str, ...], recipe_file: str | None, **options: Any) -> int:
    """Take a method apart, or sweep one of its fields.

    Without --sweep: the sequential ablation, each row removing one thing more. With --sweep: a row per value. A recipe
    gives model, prompts and sampling; its methods are replaced.
    """
    from mxbench.cli.launch import launch
    from mxbench.runs.ablation import parse_sweep, sequential, sweep

    if len(names) > 1:
        raise UserError(f"ablate takes one method apart, and --method names {', '.join(names)}", "run it once for each")
    method_name = names[0] if names else "mxattn"
    fields, _ = recipe_of(recipe_file)
    if sweeps:
        axes = [parse_sweep(text) for text in sweeps]
        fields["methods"], fields["kind"] = sweep(method_name, axes), "sweep"
        name = f"sweep-{method_name}-" + "-".join(axis for axis, _ in axes)
        fields["title"] = f"Sweep of {', '.join(axis for axis, _ in axes)} in {method_name}"
        fields["baseline"] = fields["methods"][0]["name"]
    else:
        fields["methods"], fields["kind"] = sequential(method_name), "ablation"
        name = f"ablate-{method_name}"
        fields["title"] = f"Sequential ablation of {method_name}"
        fields["baseline"] = fields["methods"][-1]["name"]
    return launch(fields, name, options)
