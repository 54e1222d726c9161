"""``mxbench analyze``."""

from __future__ import annotations

from pathlib import Path

import click

from mxbench.cli import analyze_attention
from mxbench.cli.options import echo_json, json_option, method_option

__all__ = ["command"]


@click.group("analyze")
def command() -> None:
    """Study a method's error on tensors, a model's attention, or the theory behind it."""


command.add_command(analyze_attention.command)

_TENSORS_EPILOG = """\b
Examples:
  mxbench analyze tensors layer12.safetensors
  mxbench analyze tensors captured.safetensors -a mxfp4 -a mxattn --json

The file holds q, k and v of shape [B,H,N,D], or sets NAME.q, NAME.k, NAME.v."""


@command.command("tensors", epilog=_TENSORS_EPILOG)
@click.argument("file", metavar="FILE.safetensors")
@method_option
@json_option
def tensors(file: str, methods: tuple[str, ...], as_json: bool) -> int:
    """Measure the error of every method on your own Q, K and V.

    Against softmax attention in float64: relative L2 error, cosine, bias of the row sums, the part of the squared error
    that Q, K, V and P cause when each alone is quantised, and bits per element.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from mxbench.analysis.tensors import MethodError, load_tensors, study
    from mxbench.attention.methods import METHODS, method
    from mxbench.errors import UserError

    sets = load_tensors(file)
    chosen = list(methods or METHODS)
    for name in chosen:
        method(name)
    found: list[MethodError] = []
    unsuited: dict[str, str] = {}
    for each in sets:
        for name in chosen:
            try:
                found += study(each, [name])
            except UserError as refusal:
                unsuited[f"{each.name}, {name}"] = refusal.problem
    for where, reason in unsuited.items():
        click.echo(f"mxbench: {where}: {reason}", err=True)
    if as_json:
        echo_json([error.to_dict() for error in found])
        return 1 if unsuited else 0
    for each in sets:
        title = f"{each.name}: q {list(each.q.shape)}, k and v {list(each.k.shape)}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("method", no_wrap=True)
        for column in ("rel. L2", "cosine", "row sums", "error from Q/K/V/P", "bits"):
            table.add_column(column, justify="right", no_wrap=True)
        for error in found:
            if error.tensors == each.name:
                shares = "/".join(f"{100 * share:.0f}" for share in error.shares.values()) + " %"
                bits = list(dict.fromkeys(f"{value:g}" for value in error.bits.values()))
                table.add_row(
                    error.method,
                    f"{error.relative_l2:.2e}",
                    f"{error.cosine:.6f}",
                    f"{error.row_sum_bias:+.4f}",
                    shares if any(error.shares.values()) else "–",
                    "/".join(bits),
                )
        Console().print(table)
    return 1 if unsuited else 0


_THEORY_EPILOG = """\b
Examples:
  mxbench analyze theory
  mxbench analyze theory --figure theory.svg"""


@command.command("theory", epilog=_THEORY_EPILOG)
@click.option(
    "-F", "--figure", type=click.Path(path_type=Path), metavar="FILE", help="Draw the curves: .svg, .png or .pdf."
)
@json_option
def theory(figure: Path | None, as_json: bool) -> None:
    """Recompute what the papers derive: the UOS boundary from exact rationals, and ExpCast's figures.

    Every row is computed now and set beside the value that the paper prints.
    """
    from dataclasses import asdict

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from mxbench.analysis.theory import summary

    claims = summary()
    if as_json:
        echo_json([asdict(claim) for claim in claims])
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("claim", "source", "published", "computed", ""):
            table.add_column(column, overflow="fold")
        for c in claims:
            table.add_row(c.claim, c.source, str(c.published), str(c.computed), "agrees" if c.agrees else c.note)
        Console().print(table)
    if figure is not None:
        from mxbench.analysis.theory_figure import draw

        click.echo(f"Written: {draw(figure)}", err=True)
