"""``mxbench score``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxbench.cli.options import echo_json, json_option, vbench_choice, vbench_options
from mxbench.errors import UserError

if TYPE_CHECKING:
    from mxbench.runs.compare import Comparison

__all__ = ["command"]

_EPILOG = """\b
Examples:
  mxbench score mine.mp4 --reference fp16.mp4
  mxbench score outputs/mxfp4 --reference outputs/bf16
  mxbench score outputs/mxfp4 -R outputs/bf16 -M ssim -M psnr --json
  mxbench score outputs/mxfp4 --vbench -D subject_consistency --keep vbench.jsonl

Files of two folders are paired by their names without the suffix."""


@click.command("score", epilog=_EPILOG)
@click.argument("videos", metavar="VIDEO_OR_DIR")
@click.option("-R", "--reference", metavar="VIDEO_OR_DIR", help="What to compare with.")
@click.option("-M", "--metric", "metrics", multiple=True, metavar="NAME", help="A metric; may be repeated.")
@click.option("--align", is_flag=True, help="Cut the longer clip of a pair to the shorter one; recorded in the output.")
@click.option("--vbench", is_flag=True, help="Score with VBench too, or alone where there is no reference.")
@click.option(
    "-D", "--dimension", "dimensions", multiple=True, metavar="NAME",
    help="A dimension of VBench; may be repeated (default: all seven).",
)  # fmt: skip
@click.option("--keep", metavar="FILE", help="Keep VBench's scores there as they come, and take those that are there.")
@vbench_options
@json_option
def command(
    videos: str,
    reference: str | None,
    metrics: tuple[str, ...],
    align: bool,
    vbench: bool,
    dimensions: tuple[str, ...],
    keep: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare videos of any engine with reference videos, and score them with VBench.

    A pair must match in frames, size and frame rate. Clips that cannot be compared are named with the reason and cost
    the others nothing; the exit code is then 1. Lossy files put their compression into every score.
    """
    from rich.console import Console

    from mxbench.runs.compare import alone, compare, named
    from mxbench.runs.recipe import METRIC_DEFAULTS

    if not vbench and (dimensions or keep):
        raise UserError("--dimension and --keep are VBench's", "pass --vbench too")
    if reference is None and not vbench:
        raise UserError("there is nothing to compare with", "pass --reference, or --vbench, which needs none")
    if reference is None:
        if metrics or align:
            raise UserError("--metric and --align need a reference", "pass --reference too")
        result, files = alone(videos)
    else:
        files = named(videos) if vbench else {}
        result = compare(videos, reference, list(metrics) or list(METRIC_DEFAULTS), align=align)
    extra: dict[str, Any] = {}
    if vbench:
        result, extra = _with_vbench(result, files, dimensions, keep, options, quiet=as_json)
    lost = extra.pop("lost", False)
    if as_json:
        echo_json({**result.to_dict(), **extra})
    else:
        console = Console()
        result.print(console)
        for name, total in extra.get("vbench", {}).get("package_totals", {}).items():
            if total is not None:
                console.print(f"{name}: the package's own total would be {total:.4f}", highlight=False)
    return 1 if result.problems or lost else 0


def _with_vbench(
    result: Comparison,
    files: dict[str, Path],
    dimensions: tuple[str, ...],
    keep: str | None,
    options: dict[str, Any],
    *,
    quiet: bool,
) -> tuple[Comparison, dict[str, Any]]:
    """The comparison with VBench's columns, and what programs are told besides."""
    from mxbench.runs.compare import Comparison
    from mxbench.runs.vbench_scores import prepare, score_files
    from mxbench.vbench.aggregate import package_total
    from mxbench.vbench.dimensions import DIMENSIONS
    from mxbench.vbench.preflight import lacking

    chosen = [name for name in DIMENSIONS if not dimensions or name in dimensions]
    lacking(dimensions)  # names that do not exist
    setup = prepare(chosen, vbench_choice(options))

    costs: list[dict[str, Any]] = []

    def tell(number: int, count: int, answer: Any) -> None:
        cost = {name: getattr(answer, name) for name in ("seconds", "memory", "device_memory")}
        costs.append({"video": answer.task.key, "dimension": answer.task.dimension, **cost})
        if not quiet:
            said = f"unscored: {answer.reason}" if answer.value is None else f"{answer.seconds:.1f} s"
            name = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in answer.task.key)
            click.echo(f"[{number}/{count}] {answer.task.dimension}  {name}  {said}", err=True)

    found = score_files(files, chosen, setup, Path(keep) if keep else None, tell)
    names = tuple(dict.fromkeys((*result.metrics, *chosen)))
    scores = {name: {**result.scores.get(name, {}), **found.get(name, {})} for name in {**result.scores, **found}}
    whole = Comparison(names, scores, result.notes, result.problems)
    totals = {name: package_total(name, [found[video][name] for video in files]) for name in chosen}
    lost = any(score.value is None for each in found.values() for score in each.values())
    return whole, {"vbench": {**setup.to_dict(), "package_totals": totals, "costs": costs}, "lost": lost}
