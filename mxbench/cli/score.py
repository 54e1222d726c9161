"""``mxbench score``."""

from __future__ import annotations

import click

from mxbench.cli.options import echo_json, json_option

__all__ = ["command"]

_EPILOG = """\b
Examples:
  mxbench score mine.mp4 --reference fp16.mp4
  mxbench score outputs/mxfp4 --reference outputs/bf16
  mxbench score outputs/mxfp4 -R outputs/bf16 -M ssim -M psnr --json

Files of two folders are paired by their names without the suffix."""


@click.command("score", epilog=_EPILOG)
@click.argument("videos", metavar="VIDEO_OR_DIR")
@click.option("-R", "--reference", required=True, metavar="VIDEO_OR_DIR", help="What to compare with.")
@click.option("-M", "--metric", "metrics", multiple=True, metavar="NAME", help="A metric; may be repeated.")
@click.option("--align", is_flag=True, help="Cut the longer clip of a pair to the shorter one; recorded in the output.")
@json_option
def command(videos: str, reference: str, metrics: tuple[str, ...], align: bool, as_json: bool) -> int:
    """Compare videos of any engine with reference videos.

    A pair must match in frames, size and frame rate. Clips that cannot be compared are named with the reason and cost
    the others nothing; the exit code is then 1. Lossy files put their compression into every score.
    """
    from rich.console import Console

    from mxbench.runs.compare import compare
    from mxbench.runs.recipe import METRIC_DEFAULTS

    result = compare(videos, reference, list(metrics) or list(METRIC_DEFAULTS), align=align)
    if as_json:
        echo_json(result.to_dict())
    else:
        result.print(Console())
    return 1 if result.problems else 0
