"""``mxbench bench``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mxbench.cli.options import json_option, method_option
from mxbench.errors import UserError

if TYPE_CHECKING:
    from mxbench.bench.rows import Result

__all__ = ["command"]

_EPILOG = """\b
Examples:
  mxbench bench
  mxbench bench --model wan2.2 --impl fast --method vc8 --method mxattn
  mxbench bench --shape 1x24x4096x128 --shape 2x8x1000x64:333 --peer torch-sdpa
  mxbench bench --model wan2.2 --out results/bench --csv kernels.csv

Exit code 1: an output was wrong, a candidate broke or found no room, or nothing could be measured."""


@click.command("bench", epilog=_EPILOG)
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="The self-attention of a model: nano (the default), wan2.2, hunyuanvideo, hunyuanvideo-1.5, minimax-h3, "
    "longcat-video; may be repeated.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="BxHxNxD[:Nk]",
    help="A shape of Q, and the number of keys if it is another; may be repeated.",
)
@method_option
@click.option(
    "-i",
    "--impl",
    "impls",
    multiple=True,
    metavar="NAME",
    help="An implementation: conformance, fast, native, reference, sdpa, cudnn or flash; may be repeated (default: the "
    "first three on CUDA, the reference on a CPU).",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME",
    help="fa4, torch-cudnn, torch-flash, torch-sdpa, sage2-sm90, cudnn-fp8 or none; may be repeated (default: all that "
    "are installed).",
)
@click.option("-d", "--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--dtype",
    metavar="NAME",
    help="Of Q, K and V: bfloat16 (default on CUDA), float16 or float32 (default on a CPU).",
)
@click.option("--reps", type=int, default=20, show_default=True, metavar="N", help="Rounds that count.")
@click.option("-s", "--seed", type=int, default=0, show_default=True, metavar="S", help="Of Q, K and V.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Leave bench.md, bench.csv and bench.json there, and where there are ratios bench.png and bench.svg.",
)
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the rows there too.")
@json_option
def command(
    models: tuple[str, ...],
    shapes: tuple[str, ...],
    methods: tuple[str, ...],
    impls: tuple[str, ...],
    peers: tuple[str, ...],
    device: str,
    dtype: str | None,
    reps: int,
    seed: int,
    out: Path | None,
    csv_file: Path | None,
    as_json: bool,
) -> int:
    """Time attention kernels, pre-passes and whole calls beside installed peers.

    Every output is compared with what it must equal before it is timed, and a wrong one gets no time. All rows of a
    shape take turns, round by round, so that their ratios hold on a device whose clock drifts. Emulated FP4 is
    labelled: its time is the emulation's own, never that of FP4 hardware.
    """
    _writable(out, csv_file)
    import shlex
    import sys

    from mxbench.bench.output import to_csv, to_json
    from mxbench.bench.page import bench_page
    from mxbench.bench.run import bench
    from mxbench.report.terminal import print_page

    with _progress() as (plan, step):
        result = bench(
            models=models,
            shapes=shapes,
            methods=methods,
            impls=impls,
            peers=peers,
            device=device,
            dtype=dtype,
            reps=reps,
            seed=seed,
            command=shlex.join(["mxbench", *sys.argv[1:]]),
            on_plan=plan,
            on_step=step,
        )
    if as_json:
        click.echo(to_json(result), nl=False)
    else:
        print_page(bench_page(result))
    if csv_file is not None:  # last: a full disk must not cost the table
        _write(csv_file, to_csv(result))
        click.echo(f"Written: {csv_file}", err=True)
    if out is not None:
        click.echo("Written: " + ", ".join(map(str, _leave(result, out))), err=True)
    return 1 if result.failed or not result.measured else 0


def _writable(out: Path | None, csv_file: Path | None) -> None:
    if csv_file is not None and not csv_file.parent.is_dir():
        raise UserError(f"there is no folder {csv_file.parent}", "create it, or name another file")
    if csv_file is not None and csv_file.is_dir():
        raise UserError(f"{csv_file} is a folder", "name a file")
    if out is not None:
        if not out.name and out != Path("/") and out == Path():
            raise UserError("--out names no folder", "name one")
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file", "name a folder")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{out} cannot be made: {error.strerror}", "name another folder") from error


def _leave(result: Result, out: Path) -> list[Path]:
    from mxbench.bench.output import to_csv, to_json
    from mxbench.bench.page import bench_page
    from mxbench.bench.plot import draw
    from mxbench.report.markdown import render

    written = []
    for name, text in (
        ("bench.md", render(bench_page(result))),
        ("bench.csv", to_csv(result)),
        ("bench.json", to_json(result)),
    ):
        _write(out / name, text)
        written.append(out / name)
    for name in ("bench.png", "bench.svg"):
        if draw(result, out / name) is not None:
            written.append(out / name)
        else:  # an older run's would belong to other numbers
            (out / name).unlink(missing_ok=True)
    return written


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}", "name another file") from error


@contextmanager
def _progress() -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """A bar on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("planning", total=None)
        yield (
            lambda total: bar.update(task, total=total),
            lambda words: bar.update(task, advance=1, description=words),
        )
