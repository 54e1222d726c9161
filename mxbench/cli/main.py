"""``mxbench``: the group of commands, loaded one by one so that ``--help`` is instant."""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

import click

from mxbench import __version__
from mxbench.errors import UserError, unknown_name

__all__ = ["PROCESS_START", "main"]

PROCESS_START = time.perf_counter()

_COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("mxbench.cli.run", "Render prompts with several methods and compare them."),
    "ablate": ("mxbench.cli.ablate", "Take a method apart, or sweep one of its fields."),
    "report": ("mxbench.cli.report", "Write the tables of a results folder."),
    "score": ("mxbench.cli.score", "Compare videos of any engine with reference videos."),
    "bench": ("mxbench.cli.bench", "Time attention kernels beside installed peers, each checked first."),
    "analyze": ("mxbench.cli.analyze", "Study a model's attention, a method's error on tensors, or the theory."),
    "list": ("mxbench.cli.list", "List models, methods, metrics, recipes or fields."),
    "show": ("mxbench.cli.show", "Show the full expansion of a method, a recipe or a cell."),
    "vbench": ("mxbench.cli.vbench", "Set up VBench, and see whether it works."),
    "doctor": ("mxbench.cli.doctor", "Say what this machine can run, and what to install for the rest."),
}

_EPILOG = """\b
Examples:
  mxbench run --recipe recipes/demo.yaml
  mxbench run --model nano --method mxattn --method nvfp4 --limit 4
  mxbench ablate --sweep q_max=6:8:0.25
  mxbench report results/demo

\b
Shell completion (bash; zsh and fish likewise):
  eval "$(_MXBENCH_COMPLETE=bash_source mxbench)"

\b
Exit codes: 0 all cells done, 1 some cells failed, 2 the input is wrong,
130 interrupted."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            raise unknown_name("command", args[0], _COMMANDS, hint="mxbench --help")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])


@click.group(cls=_Lazy, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="mxbench")
def cli() -> None:
    """Decide which low-bit attention to ship in a video diffusion model.

    mxbench renders the same prompts with FP16, MXFP4, NVFP4, SageAttention-style, MXAttention and VC-Attention, judges
    every video against the FP16 render, and writes comparison tables with paired statistics.
    """


_AGAIN = "run the same command again: "
_KEPT = {
    "run": f"{_AGAIN}what a results folder holds is kept",
    "ablate": f"{_AGAIN}what a results folder holds is kept",
    "vbench": f"{_AGAIN}the packages and files that are in place are kept",
    "score": "nothing is kept (--vbench keeps its scores with --keep FILE)",
    "bench": "nothing is kept",
}


def _kept(arguments: list[str]) -> str:
    """What an interrupted command leaves."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name == "score" and any(word == "--keep" or word.startswith("--keep=") for word in arguments):
        return f"{_AGAIN}what VBench has scored is kept in the file of --keep"
    return _KEPT.get(name, "run the same command again")


def main() -> None:
    """Run the command line; every foreseen error is one line on stderr."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        code: Any = cli.main(standalone_mode=False, prog_name="mxbench")
    except UserError as error:
        click.echo(f"mxbench: {error}", err=True)
        code = 2
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        hint = f" (try `{error.ctx.command_path} --help`)" if isinstance(error, click.UsageError) and error.ctx else ""
        click.echo(f"mxbench: {' '.join(error.format_message().split())}{hint}", err=True)
        code = 2
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"mxbench: interrupted; {_kept(sys.argv[1:])}", err=True)
        code = 130
    except BrokenPipeError:
        # The reader of the output has gone (a pager, `head`): nothing is wrong and nobody is listening.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
