"""What can be said on the command line of the training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["STAGES", "Options", "parse"]

STAGES = ("vae", "text", "joint", "experts", "export")

_MINUTES = {"vae": 8.5, "text": 0.5, "joint": 15.0, "experts": 14.0}
_TOY_MINUTES = {"vae": 0.1, "text": 0.05, "joint": 0.1, "experts": 0.1}


@dataclass(frozen=True, slots=True)
class Options:
    """One call of the training; see ``--help``."""

    stages: tuple[str, ...]
    folder: Path
    out: Path
    start_from: Path | None
    minutes: dict[str, float]
    stop_after: float
    batch: dict[str, int]
    rate: dict[str, float]
    pool: int
    compile: bool
    record: bool
    look: bool
    seed: int
    toy: bool


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(
        "python -m mxbench.models.nano.train",
        description="Train the built-in model. Each stage goes on where it stopped; a finished stage is skipped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument

    def minutes(stage: str, about: str) -> None:
        usual = f"{_MINUTES[stage]:g}; toy: {_TOY_MINUTES[stage]:g}"
        add(f"--minutes-{stage}", type=float, default=argparse.SUPPRESS, help=f"GPU minutes of {about} ({usual})")

    add("--stage", default=",".join(STAGES), help=f"stages to run, of {', '.join(STAGES)}")
    add("--folder", type=Path, default=Path("nano-training"), help="checkpoints, optimiser state and log")
    add("--out", type=Path, default=Path("nano-weights"), help="where weights, facts, log and preview are exported to")
    add("--from", type=Path, dest="start_from", help="an exported folder to go on from where --folder holds no stage")
    minutes("vae", "the VAE, shared by all GPUs")
    minutes("text", "the text encoder")
    minutes("joint", "one DiT over all times")
    minutes("experts", "both experts together")
    add("--stop-after", type=float, default=1e9, help="seconds after which to save, export and end")
    add("--batch-vae", type=int, default=32, help="clips a step and GPU")
    add("--batch-text", type=int, default=512, help="captions a step and GPU")
    add("--batch", type=int, default=64, help="clips a step and GPU of the DiT")
    add("--rate-vae", type=float, default=2e-3, help="peak learning rate")
    add("--rate-text", type=float, default=1e-3, help="peak learning rate")
    add("--rate-joint", type=float, default=2e-3, help="peak learning rate")
    add("--rate-experts", type=float, default=8e-4, help="peak learning rate")
    add("--pool", type=int, default=49152, help="clips whose latents a GPU holds; renewed while training")
    add("--no-compile", action="store_true", help="without torch.compile")
    add("--no-record", action="store_true", help="without CUDA graphs: every kernel launched by itself")
    add("--no-look", action="store_true", help="export without the previews")
    add("--seed", type=int, default=0, help="of weights and data")
    add("--toy", action="store_true", help="tiny networks, batches and times: does every path run?")
    got = parser.parse_args(arguments)
    toy = got.toy
    stages = tuple(got.stage.split(","))
    if unknown := set(stages) - set(STAGES):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    return Options(
        stages=stages,
        folder=got.folder,
        out=got.out,
        start_from=got.start_from,
        minutes={
            name: minutes if (given := getattr(got, f"minutes_{name}", None)) is None else given
            for name, minutes in (_TOY_MINUTES if toy else _MINUTES).items()
        },
        stop_after=got.stop_after,
        batch={
            "vae": 1 if toy else got.batch_vae,
            "text": 4 if toy else got.batch_text,
            "joint": 2 if toy else got.batch,
            "experts": 2 if toy else got.batch,
        },
        rate={name: getattr(got, f"rate_{name}") for name in STAGES[:-1]},
        pool=4 if toy else got.pool,
        compile=not (got.no_compile or toy),
        record=not got.no_record,
        look=not got.no_look,
        seed=got.seed,
        toy=toy,
    )
