"""``mxbench analyze attention``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxbench.cli.options import device_option, echo_json, json_option, weights_options
from mxbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mxbench.analysis.sites import Level, SiteStatistics
    from mxbench.runs.plan import Plan

__all__ = ["command"]

_PROMPTS = 4

_EPILOG = """\b
Examples:
  mxbench analyze attention --model nano
  mxbench analyze attention --limit 1 --steps 4 --by site
  mxbench analyze attention -p my_prompts.txt --csv sites.csv --markdown"""


def _models(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from mxbench.models import MODELS

    return [name for name in MODELS if name.startswith(incomplete)]


@click.command("attention", epilog=_EPILOG)
@click.option(
    "-m", "--model", default="nano", metavar="NAME", shell_complete=_models, help="Video model (default: nano)."
)
@weights_options
@click.option("-p", "--prompts", metavar="FILE", help="Prompt set or file (default: the model's own).")
@click.option(
    "-n", "--limit", type=int, metavar="N", help=f"Only the first N prompts (default: {_PROMPTS}, or all of --prompts)."
)
@click.option("-s", "--seed", type=int, default=0, metavar="S", help="Seed of the noise (default: 0).")
@click.option("--steps", type=int, metavar="N", help="Denoising steps (default: the model's).")
@click.option("--rows", type=int, metavar="N", help="Query rows a head, evenly spaced, for P (default: 256).")
@click.option(
    "--by", type=click.Choice(["site", "layer", "step"]), help="Print this table alone; for --json and --csv: site."
)
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the numbers there too.")
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown, for a model card.")
@device_option
@json_option
def command(
    model: str,
    weights: str | None,
    revision: str | None,
    memory: str | None,
    prompts: str | None,
    limit: int | None,
    seed: int,
    steps: int | None,
    rows: int | None,
    device: str,
    by: Level | None,
    csv_file: Path | None,
    markdown: bool,
    as_json: bool,
) -> None:
    """Show what a model's attention looks like: outliers, entropy, row sums of P in MXFP4, block means of V.

    Renders prompts with exact attention and looks at Q, K, V and P of every self-attention call, by expert, layer and
    step; means over heads, guidance branches and prompts. The last table sets the overall means beside what the papers
    print of their models.
    """
    if markdown and as_json:
        raise UserError("--json and --markdown exclude each other", "leave one of them out")
    if rows is not None and rows < 1:
        raise UserError(f"--rows {rows} leaves no row to look at", "give 1 or more")
    if csv_file is not None and not csv_file.parent.is_dir():
        raise UserError(f"there is no folder {csv_file.parent}", "create it, or name another file")
    if csv_file is not None and csv_file.is_dir():
        raise UserError(f"{csv_file} is a folder", "name a file")
    from mxbench.analysis.sites import ROWS, aggregate, study
    from mxbench.cli.analyze_attention_page import attention_page
    from mxbench.models.device import fits
    from mxbench.report.markdown import render
    from mxbench.report.terminal import print_page
    from mxbench.runs.plan import expand
    from mxbench.runs.recipe import parse

    fields: dict[str, Any] = {
        "model": model,
        "weights": weights,
        "revision": revision,
        "memory": memory,
        "prompts": prompts,
        "limit": _PROMPTS if limit is None and prompts is None else limit,
        "seeds": [seed],
        "sampling": {} if steps is None else {"steps": steps},
        "methods": ["fp16"],
        "noise_floor": False,
    }
    plan = expand(parse(fields), device)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    loaded = plan.load()
    with fits(plan.device, plan.memory), _progress(len(plan.prompts) * plan.sampling.steps) as advance:
        loaded.self_test()
        sites = study(
            loaded,
            [prompt.text for prompt in plan.prompts],
            seed=seed,
            sampling=plan.sampling,
            rows=ROWS if rows is None else rows,
            on_step=advance,
        )
    page = attention_page(plan, sites, (by,) if by else ("layer", "step"))
    if as_json:
        echo_json(_plain(plan, sites, by or "site"))
    elif markdown:
        click.echo(render(page), nl=False)
    else:
        print_page(page)
    if csv_file is not None:  # last: a full disk must not cost the tables
        _write_csv(csv_file, aggregate(sites, by or "site"))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar of denoising steps on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("denoising steps", total=total)
        yield lambda: bar.advance(task)


def _plain(plan: Plan, sites: list[SiteStatistics], by: Level) -> dict[str, Any]:
    from dataclasses import asdict

    from mxbench.analysis.sites import PUBLISHED, SOURCE, aggregate

    return {
        "model": plan.recipe.model,
        "weights": plan.facts.weights,
        "prompts": [prompt.text for prompt in plan.prompts],
        "seed": plan.seeds[0],
        "sampling": asdict(plan.sampling),
        "environment": plan.environment,
        "by": by,
        "sites": [each.to_dict() for each in aggregate(sites, by)],
        "mean": aggregate(sites, "all")[0].to_dict(),
        "published": dict(PUBLISHED),
        "published_source": SOURCE,
    }


def _write_csv(path: Path, found: list[SiteStatistics]) -> None:
    """One line an entry; what is averaged over, or undefined, is empty."""
    import csv

    lines = [each.to_dict() for each in found]
    try:
        with path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}", "name another file") from error
    click.echo(f"Written: {path}", err=True)
