"""What a call of the training holds: the networks, where they are kept, and how they are exported."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mxbench.models.nano import build, weights
from mxbench.models.nano.train.loop import Log, train
from mxbench.models.nano.train.options import Options
from mxbench.models.nano.train.trainee import Task, Trainee
from mxbench.models.nano.train.world import World

__all__ = ["TOY", "Session"]

TOY: dict[str, dict[str, Any]] = {
    **build.ARCHITECTURE,
    "transformer": build.ARCHITECTURE["transformer"]
    | {"attention_head_dim": 16, "ffn_dim": 32, "num_layers": 1, "text_dim": 16, "freq_dim": 16},
    "vae": build.ARCHITECTURE["vae"] | {"base_dim": 4},
    "text_encoder": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
}


class Session:
    """The networks in training and all that surrounds them.

    Args:
        options: of this call.
        world: the processes.
        begun: ``time.monotonic()`` at the start of the call.
    """

    def __init__(self, options: Options, world: World, begun: float) -> None:
        self.options, self.world = options, world
        self.stop_at = begun + options.stop_after
        self.architecture: dict[str, dict[str, Any]] = copy.deepcopy(TOY if options.toy else build.ARCHITECTURE)
        self.architecture.pop("gains")
        self.facts: dict[str, Any] = {"seed": options.seed}
        imported: weights.Weights | None = None
        self._known = options.folder / "facts.json"
        if options.start_from is not None:
            imported = weights.load(options.start_from)
            self.architecture = {k: dict(v) for k, v in imported.architecture.items()}
            self.facts |= imported.training
        if self._known.exists():
            known = json.loads(self._known.read_text(encoding="utf-8"))
            self.architecture, self.facts = known["architecture"], known["facts"]
        self.parts: dict[str, Any] = build.modules(self.architecture, options.seed)
        for name in ("transformer", "transformer_2"):
            torch.nn.init.zeros_(self.parts[name].proj_out.weight)
            torch.nn.init.zeros_(self.parts[name].proj_out.bias)
        if imported is not None:
            for name, state in imported.parts.items():
                weights.fill(self.parts[name], state)
        for part in self.parts.values():
            part.to(world.device)
        options.folder.mkdir(parents=True, exist_ok=True)

    def note(self, stage: str, trainee: Trainee, log: Log, **facts: Any) -> None:
        """Keep what is known of a stage."""
        self.facts[stage] = {"step": trainee.step, "elapsed": trainee.elapsed, "done": trainee.done, **facts}
        log(stage=stage, **self.facts[stage])
        if not self.world.rank:
            text = json.dumps({"architecture": self.architecture, "facts": self.facts})
            self._known.write_text(text, encoding="utf-8")

    def done(self, stage: str) -> bool:
        """Whether a stage has had its time."""
        return bool(self.facts.get(stage, {}).get("done"))

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """BF16 matrix products on a GPU; FP32 on the CPU."""
        return torch.autocast("cuda", torch.bfloat16, enabled=self.world.device.type == "cuda")

    @property
    def record(self) -> bool:
        """Whether steps are recorded as CUDA graphs."""
        return self.options.record and self.world.device.type == "cuda"

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled where the options say so."""
        return torch.compile(function, dynamic=False) if self.options.compile else function

    def resume(self, stage: str, trainee: Trainee) -> Path:
        """Take up a stage where the folder has it, or where the imported weights left it; the checkpoint's path."""
        path = self.options.folder / f"{stage}.pt"
        if path.exists():
            trainee.load(path)
        elif stage in self.facts:
            trainee.elapsed, trainee.step, trainee.done = (self.facts[stage][k] for k in ("elapsed", "step", "done"))
            trainee.averages = [p.detach().clone() for p in trainee.parameters]
        return path

    def train(
        self,
        name: str,
        trainee: Trainee,
        task: Task,
        path: Path,
        log: Log,
        *,
        seconds: float,
        world: World | None = None,
    ) -> None:
        """Train a stage, see ``loop.train``: with the time that is left to this call, on ``world`` or all processes."""
        train(
            trainee,
            task,
            world or self.world,
            log,
            name=name,
            budget=seconds,
            stop_at=self.stop_at,
            path=path,
            record=self.record,
        )

    def export(self, log: Log) -> None:
        """Write the networks trained so far, the facts and the log to the output folder."""
        if self.world.rank:
            return
        trained = ["vae"] if "vae" in self.facts else []
        trained += ["text_encoder"] if "text" in self.facts else []
        trained += ["transformer"] if "joint" in self.facts else []
        trained += ["transformer_2"] if "expert-2" in self.facts else []
        if not trained:
            return
        self.facts["exported_at"] = time.strftime("%Y-%m-%d", time.gmtime())
        self.facts["torch"] = torch.__version__
        states = {name: self.parts[name].state_dict() for name in trained}
        weights.save(self.options.out, states, self.architecture, self.facts)
        if log.path.exists():
            shutil.copy(log.path, self.options.out / "log.jsonl")
