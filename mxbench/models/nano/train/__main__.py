"""The command ``python -m mxbench.models.nano.train``; ``torchrun --nproc-per-node 2 -m`` takes it as well."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import torch

from mxbench.errors import UserError
from mxbench.models.nano.train import denoise, text, vae
from mxbench.models.nano.train.look import look
from mxbench.models.nano.train.loop import Log
from mxbench.models.nano.train.options import parse
from mxbench.models.nano.train.state import Session
from mxbench.models.nano.train.world import start

__all__ = ["main"]

_RUN = {"vae": vae.run, "text": text.run, "joint": denoise.run_joint, "experts": denoise.run_experts}
_MARKS = {"vae": ("vae",), "text": ("text",), "joint": ("joint",), "experts": ("expert-1", "expert-2")}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stages that the options name, in their order, and export.

    Raises:
        UserError: a stage that an earlier one must come before.
    """
    begun = time.monotonic()
    options = parse(arguments)
    torch.set_float32_matmul_precision("high")
    world = start()
    session = Session(options, world, begun)
    log = Log(options.folder / "log.jsonl", world)
    log(stages=",".join(options.stages), processes=world.size, device=str(world.device), torch=torch.__version__)
    for name, run in _RUN.items():
        wanted = name in options.stages
        known = all(mark in session.facts for mark in _MARKS[name])
        later = any(stage in options.stages for stage in list(_RUN)[list(_RUN).index(name) + 1 :])
        if not wanted and not known and later:
            raise UserError(f"stage {name} was not trained yet", f"run it first: --stage {name}")
        if wanted or known:
            run(options, session, log)
        if wanted and not all(session.done(mark) for mark in _MARKS[name]):
            break  # Out of time.
    if "export" in options.stages:
        session.export(log)
        if options.look and not world.rank:
            look(session, log)
    log(ended_s=time.monotonic() - begun)
    world.wait()
    if world.size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    # Threads of compilation workers need not be waited for.
    sys.stdout.flush()
    os._exit(0)
