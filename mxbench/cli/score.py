"""``mxbench score``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxbench.cli.options import echo_json, json_option, vbench_choice, vbench_options
from mxbench.errors import UserError

if TYPE_CHECKING:
    from mxbench.runs.compare import Comparison
    from mxbench.runs.vbench_kept import KeptScores
    from mxbench.runs.vbench_scores import Setup

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
    from mxbench.metrics import metric
    from mxbench.runs.compare import alone, compare, named, paired
    from mxbench.runs.recipe import METRIC_DEFAULTS

    if not vbench and (dimensions or keep):
        raise UserError("--dimension and --keep are VBench's", "pass --vbench too")
    if reference is None and not vbench:
        raise UserError("there is nothing to compare with", "pass --reference, or --vbench, which needs none")
    if reference is None:
        if metrics or align:
            raise UserError("--metric and --align need a reference", "pass --reference too")
        result, files = alone(videos)
        judge: _VBench | None = _vbench(dimensions, keep, options)
    else:
        for name in metrics:
            metric(name)
        paired(videos, reference)
        files = named(videos) if vbench else {}
        judge = _vbench(dimensions, keep, options) if vbench else None
        result = compare(videos, reference, list(metrics) or list(METRIC_DEFAULTS), align=align)
    title = videos if reference is None else f"{videos} against {reference}"
    found = judge.score(result, files, quiet=as_json) if judge is not None else _Found(result)
    _print(found, title, as_json=as_json)
    if found.stopped is not None:
        click.echo(f"mxbench: {found.stopped}", err=True)
    return 1 if result.problems or found.lost or found.stopped is not None else 0


@dataclass(slots=True)
class _Found:
    """The comparison with all its columns.

    Attributes:
        result: the comparison.
        vbench: what programs are told of VBench; None without.
        lost: whether a score is missing that was not allowed to be.
        stopped: why VBench ended before its end, or None.
    """

    result: Comparison
    vbench: dict[str, Any] | None = None
    lost: bool = False
    stopped: UserError | None = None


@dataclass(frozen=True, slots=True)
class _VBench:
    """VBench as it was asked for, looked at before anything is scored."""

    setup: Setup
    chosen: list[str]
    kept: KeptScores | None

    def score(self, result: Comparison, files: dict[str, Path], *, quiet: bool) -> _Found:
        """A comparison with VBench's columns."""
        from mxbench.cli.score_page import printable
        from mxbench.runs.compare import Comparison, column_of
        from mxbench.runs.vbench_scores import score_files
        from mxbench.vbench.aggregate import package_total

        costs: list[dict[str, Any]] = []

        def tell(number: int, count: int, answer: Any) -> None:
            cost = {name: getattr(answer, name) for name in ("seconds", "memory", "device_memory")}
            costs.append({"video": answer.task.key, "dimension": answer.task.dimension, **cost})
            if not quiet:
                said = f"unscored: {answer.reason}" if answer.value is None else f"{answer.seconds:.1f} s"
                line = f"[{number}/{count}] {answer.task.dimension}  {printable(answer.task.key)}  {said}"
                click.echo(line, err=True)

        found = score_files(files, self.chosen, self.setup, self.kept, tell)
        names = tuple(dict.fromkeys((*result.metrics, *(column_of(name) for name in self.chosen))))
        scores = {name: dict(each) for name, each in result.scores.items()}
        for video, each in found.scores.items():
            scores.setdefault(video, {}).update({column_of(name): score for name, score in each.items()})
        reached = {name: [each[name] for each in found.scores.values() if name in each] for name in self.chosen}
        vbench = {
            **self.setup.to_dict(),
            "notes": self.setup.notes(),
            "package_totals": {column_of(name): package_total(name, each) for name, each in reached.items()},
            "costs": costs,
            "stopped": str(found.stopped) if found.stopped is not None else None,
        }
        lost = any(
            score.value is None
            for name, each in reached.items()
            for score in each
            if name not in self.setup.reasons  # what was allowed is not lost
        )
        return _Found(Comparison(names, scores, result.notes, result.problems), vbench, lost, found.stopped)


def _vbench(dimensions: tuple[str, ...], keep: str | None, options: dict[str, Any]) -> _VBench:
    """See that VBench can score, and that scores can be kept.

    Raises:
        UserError: it cannot, or they cannot.
    """
    from mxbench.runs.vbench_kept import KeptScores
    from mxbench.runs.vbench_scores import prepare
    from mxbench.vbench.dimensions import DIMENSIONS
    from mxbench.vbench.preflight import lacking

    lacking(dimensions)  # names that do not exist
    choice = vbench_choice(options)
    kept = KeptScores(Path(keep)) if keep else None
    chosen = [name for name in DIMENSIONS if not dimensions or name in dimensions]
    return _VBench(prepare(chosen, choice), chosen, kept)


def _print(found: _Found, title: str, *, as_json: bool) -> None:
    from rich.console import Console

    from mxbench.cli.score_page import print_scores

    if as_json:
        echo_json({**found.result.to_dict(), **({"vbench": found.vbench} if found.vbench is not None else {})})
        return
    vbench = found.vbench or {"notes": [], "package_totals": {}}
    print_scores(found.result, title, vbench["notes"], Console(highlight=False))
    for name, total in vbench["package_totals"].items():
        if total is not None:
            click.echo(f"{name}: the package's own total would be {total:.4f}")
