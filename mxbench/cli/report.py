"""``mxbench report``."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["command"]

_EPILOG = """\b
Examples:
  mxbench report results/demo
  mxbench report results/demo --format csv > demo.csv
  mxbench report results/demo --published Wan2.2 --format md
  mxbench report results/a results/b"""


@click.command("report", epilog=_EPILOG)
@click.argument("folders", nargs=-1, metavar="DIR...")
@click.option(
    "-f", "--format", "form", type=click.Choice(["terminal", "md", "csv", "json"]), default="terminal",
    show_default=True, help="What to print.",
)  # fmt: skip
@click.option("-b", "--baseline", metavar="ROW", help="Row that paired differences are taken against.")
@click.option(
    "-P", "--published", is_flag=False, flag_value="same", metavar="[MODEL]",
    help="Put a paper's figures beside the measured ones; MODEL names one other than the model that was run.",
)  # fmt: skip
@click.option("--strips", is_flag=True, help="Also write strips/*.png: frames of every method, side by side.")
@click.option("-w", "--write", is_flag=True, help="Also write report.md and report.csv into each folder.")
def command(
    folders: tuple[str, ...], form: str, baseline: str | None, published: str | None, strips: bool, write: bool
) -> None:
    """Write the tables of a results folder.

    Reads what is stored and renders nothing: a table of a run that is still going shows what there is so far.
    """
    from rich.console import Console

    from mxbench.report.load import print_report, write_reports
    from mxbench.report.strips import write_strips
    from mxbench.runs.store import Store

    if not folders and published is not None and Path(published).is_dir():
        folders, published = (published,), "same"  # `--published DIR`: the folder, and no model's name
    if not folders:
        raise click.UsageError("Missing argument 'DIR...'.")
    stores = [Store(Path(folder)) for folder in folders]
    for store in stores:
        for name in store.plans():
            print_report(store, name, form, Console(), baseline=baseline, published=published)
            if strips:
                click.echo("Written: " + ", ".join(map(str, write_strips(store, name))), err=True)
            if write:
                paths = write_reports(store, name, None, baseline=baseline)
                click.echo("Written: " + ", ".join(map(str, paths)), err=True)
