"""``mxbench vbench``: set VBench up, and see whether it works."""

from __future__ import annotations

from pathlib import Path

import click

from mxbench.cli.options import echo_json, json_option, known_device
from mxbench.errors import UserError

__all__ = ["command"]


_EPILOG = """\b
Examples:
  mxbench vbench setup
  mxbench vbench check"""


@click.group("vbench", epilog=_EPILOG)
def command() -> None:
    """Set up VBench's packages and weights, and see whether they work."""


_SETUP = """\b
Examples:
  mxbench vbench setup
  mxbench vbench setup --venv ~/vbench --no-weights
  mxbench vbench setup --weights /mnt/usb/vbench"""


@command.command("setup", epilog=_SETUP)
@click.option(
    "--venv",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="An environment of its own, made there (default: beside mxbench, without the packages' dependencies).",
)
@click.option(
    "--weights",
    "by_hand",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Take the weights from here instead of fetching them.",
)
@click.option("--no-weights", is_flag=True, help="Packages only.")
@click.option(
    "-D",
    "--dimension",
    "dimensions",
    multiple=True,
    metavar="NAME",
    help="Only the weights that this dimension needs; may be repeated.",
)
def setup(folder: Path | None, by_hand: Path | None, no_weights: bool, dimensions: tuple[str, ...]) -> int:
    """Install VBench's packages, and fetch the weights of its dimensions.

    Weights go to VBENCH_CACHE_DIR (~/.cache/vbench). They have licences of their own, two of which forbid commercial
    use: they are printed. Checksums are verified where the authors publish them, and sizes where they do not.
    """
    from mxbench.vbench.dimensions import DIMENSIONS
    from mxbench.vbench.home import cache, remember
    from mxbench.vbench.install import LICENCES, install
    from mxbench.vbench.preflight import lacking
    from mxbench.vbench.weights import bring, wanted

    lacking(dimensions)  # names that do not exist
    if no_weights and by_hand is not None:
        raise UserError("--weights and --no-weights contradict each other", "leave one of them out")
    if by_hand is not None and not by_hand.is_dir():
        raise UserError(f"there is no folder {by_hand}", "name the folder that holds the files")
    python = install(folder.absolute() if folder else None, tell=lambda words: click.echo(words, err=True))
    remember(python)
    click.echo(f"VBench's packages are installed for {python}. Licences: {'; '.join(LICENCES)}")
    if no_weights:
        return 0
    found = bring(
        dimensions or DIMENSIONS, cache(), by_hand,
        tell=lambda file: click.echo(f"{'copying' if by_hand else 'fetching'} {wanted(file)}", err=True),
    )  # fmt: skip
    for each in found:
        known = " (SHA-256 verified)" if each.file.sha256 else " (not verified, no checksum is published)"
        click.echo(f"{each.how}: {wanted(each.file)}" + (known if each.good else f": {each.reason}"))
    gone = [each for each in found if not each.good]
    if gone:
        click.echo(
            f"mxbench: {len(gone)} of {len(found)} files are missing or wrong; bring them here and run "
            f"`mxbench vbench setup --weights DIR`, or put them below {cache()}",
            err=True,
        )
    return 1 if gone else 0


_CHECK = """\b
Examples:
  mxbench vbench check
  mxbench vbench check --vbench-python ~/vbench/bin/python --json"""


@command.command("check", epilog=_CHECK)
@click.option("--vbench-python", "python", metavar="FILE", help="The interpreter that holds vbench.")
@click.option("-d", "--device", default="cpu", show_default=True, metavar="NAME", help="cpu, cuda or cuda:N.")
@json_option
def check(python: str | None, device: str, as_json: bool) -> int:
    """Start VBench's worker, and say which dimensions it can score and what the others lack."""
    from mxbench.vbench import worker
    from mxbench.vbench.dimensions import DIMENSIONS
    from mxbench.vbench.home import cache, interpreter
    from mxbench.vbench.preflight import lacking, size_of
    from mxbench.vbench.verify import look

    known_device(device)
    where = interpreter(python)
    environment = worker.check(where, cache(), device)
    missing = lacking(DIMENSIONS)
    files = {name: look(name, cache()) for name in DIMENSIONS}
    if as_json:
        echo_json(
            {
                "python": where,
                "cache": str(cache()),
                "versions": environment.versions,
                "device": environment.device,
                "threads": environment.threads,
                "dimensions": {name: [file.path for file in missing.get(name, [])] for name in DIMENSIONS},
                "unpublished": {name: list(each.unpublished) for name, each in files.items()},
                "unverified": {name: list(each.unverified) for name, each in files.items()},
            }
        )
    else:
        click.echo(f"{where}: {', '.join(f'{name} {version}' for name, version in environment.versions.items())}")
        click.echo(f"device: {environment.device}; threads: {environment.threads}; weights below {cache()}")
        for name in DIMENSIONS:
            gone = [f"{file.path} ({size_of(file)}, from {file.source})" for file in missing.get(name, [])]
            said = ["ready"]
            if other := files[name].unpublished:
                said = [f"ready, but not with the published {', '.join(other)}"]
            if gone:
                said = [f"lacks {'; '.join(gone)}"]
            if files[name].unverified:
                said.append(f"not verified, no checksum is published: {', '.join(files[name].unverified)}")
            click.echo(f"{name}: {'; '.join(said)}")
    return 1 if missing else 0
