"""Context parallelism: one render on several GPUs of a host, by diffusers' Ulysses attention.

Every GPU holds the whole model and a piece of the sequence. At each attention call the pieces change hands, so that a
GPU sees whole sequences of some of the heads: statistics of a method are per head, and stay what they are. The process
of the run is rank 0. It starts one process a further GPU; these load the same model and render along.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from mxbench.errors import CellFailed, UserError
from mxbench.models.base import ModelFacts, Render, Sampling, VideoModel
from mxbench.policy import Schedule

__all__ = ["ParallelModel", "check", "spread"]

_GRACE = 60.0
"""Seconds that the other ranks have to answer once this one is done."""

_PATIENCE = 10.0
"""Seconds that this process has to find out by itself what ended another rank."""

_IDLE = timedelta(days=7)
"""What a collective may wait for: rank 0 judges clips while the others wait for the next."""

Loader = Callable[[str], VideoModel]


def check(model: str, facts: ModelFacts, sampling: Sampling, device: str, memory: str | None, gpus: int) -> None:
    """See that a model can be spread over GPUs.

    Args:
        model: its name.
        facts: of it.
        sampling: of the clips.
        device: of rank 0.
        memory: how it is placed, see ``mxbench.models.memory``.
        gpus: how many share a render.

    Raises:
        UserError: it cannot.
    """
    if gpus < 1:
        raise UserError(f"--gpus {gpus} renders nothing", "give 1 or more")
    if gpus == 1:
        return
    if not facts.spread:
        raise UserError(f"diffusers has no plan that spreads {model} over GPUs", "leave --gpus out")
    if not device.startswith("cuda"):
        raise UserError(f"--gpus {gpus}: a render is spread over CUDA devices, and this one is on {device}", "use 1")
    count = torch.cuda.device_count()
    if device != "cuda:0" or count < gpus:
        raise UserError(
            f"--gpus {gpus} takes cuda:0 to cuda:{gpus - 1}, and torch sees {count} CUDA devices",
            "leave --device out, and give as many as there are (CUDA_VISIBLE_DEVICES chooses which)",
        )
    if memory in ("model", "group"):
        raise UserError(
            f"--memory {memory} keeps parts on the CPU, and --gpus {gpus} all of them on every GPU",
            "use --memory whole-tiled, or leave --gpus out",
        )
    divided = {"attention heads": facts.spread}
    if facts.work is not None and not facts.uneven:
        divided["tokens"] = facts.work(sampling).tokens
    for what, number in divided.items():
        if number % gpus:
            fit = [str(n) for n in range(1, gpus) if not any(m % n for m in divided.values())]
            raise UserError(f"{model} has {number} {what}, which {gpus} GPUs cannot share", f"give {' or '.join(fit)}")


def spread(model: Any, gpus: int, *, uneven: bool) -> None:
    """Spread a loaded model's transformers over the ranks of the process group.

    Args:
        model: a ``PipelineModel``.
        gpus: ranks of the group.
        uneven: pieces of a sequence may differ by a token.

    Raises:
        UserError: this rank's diffusers does not do it.
    """
    from diffusers import ContextParallelConfig

    config = ContextParallelConfig(ulysses_degree=gpus, ulysses_anything=uneven)
    for name in model.family.experts:
        transformer = getattr(model.pipe, name, None)
        if transformer is None:
            continue
        with _counted(transformer):
            try:
                transformer.enable_parallelism(config=replace(config))
            except (RuntimeError, ValueError) as error:
                raise UserError(f"diffusers does not spread {name}: {error}", "leave --gpus out") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what diffusers says at every forward: that Wan's timestep is one number, and torch of its collectives."""
    log = logging.getLogger("diffusers.hooks.context_parallel")

    def heard(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Expected input tensor to have 2 dimensions, but got 1 ")

    log.addFilter(heard)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*all_gather_tensor", FutureWarning)
            yield
    finally:
        log.removeFilter(heard)


@contextmanager
def _counted(transformer: Any) -> Iterator[None]:
    """Diffusers divides by the number of accelerators, and says with a warning that its interface may change."""
    from diffusers.models import modeling_utils

    with mock.patch.object(modeling_utils.logger, "warning"):
        if next(transformer.parameters()).device.type == "cpu":
            with mock.patch.object(torch.accelerator, "device_count", return_value=1):
                yield
        else:
            yield


def _join(rank: int, gpus: int, device: str, folder: str) -> None:
    """Become a rank of the process group."""
    backend = "nccl" if device.startswith("cuda") else "gloo"
    torch.distributed.init_process_group(
        backend,
        init_method=f"file://{Path(folder) / 'ranks'}",
        rank=rank,
        world_size=gpus,
        timeout=_IDLE,
        device_id=torch.device(device) if backend == "nccl" else None,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a rank says of a command: counters of its render, or why it has none."""

    nonfinite: int = 0
    widened: int = 0
    failed: str | None = None
    error: str | None = None


class ParallelModel:
    """A ``VideoModel`` that several processes render together.

    Args:
        load: loads the model onto a device; it is called in every process, and must be importable.
        devices: of the ranks; the first is this process's.
        uneven: see ``spread``.

    Raises:
        UserError: a rank could not load the model.
    """

    def __init__(self, load: Loader, devices: tuple[str, ...], *, uneven: bool = False) -> None:
        if torch.distributed.is_initialized():
            raise UserError("this process is a rank of another model already", "close that one first")
        self._folder = tempfile.TemporaryDirectory(prefix="mxbench-")
        self._lost: str | None = None
        context = multiprocessing.get_context("spawn")
        self._ranks: list[tuple[Connection, Any]] = []
        atexit.register(self.close)
        for rank, device in enumerate(devices[1:], start=1):
            mine, other = context.Pipe()
            process = context.Process(
                target=_follow, args=(other, load, rank, len(devices), device, self._folder.name, uneven), daemon=True
            )
            process.start()
            other.close()
            self._ranks.append((mine, process))
        try:
            self._model = load(devices[0])
            self._loaded()
            self._together(("join",), lambda: self._join(devices, uneven))
        except BaseException:
            self.close()
            raise

    def render(
        self,
        prompt: str,
        seed: int,
        sampling: Sampling,
        schedule: Schedule,
        impl: str,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Render:
        """Render one prompt on all ranks; see ``VideoModel.render``.

        Raises:
            CellFailed: on any rank.
            UserError: likewise, or a rank is gone: the model renders no more.
        """
        found: list[Render] = []
        answers = self._together(
            ("render", prompt, seed, sampling, schedule, impl),
            lambda: found.append(self._model.render(prompt, seed, sampling, schedule, impl, on_step)),
        )
        for answer in answers:
            if answer.failed is not None:
                raise CellFailed(answer.failed)
        render = found[0]
        # A rank sees its heads alone. What is not finite in one layer is so in all heads of the next.
        return replace(
            render,
            nonfinite_calls=max(render.nonfinite_calls, *(a.nonfinite for a in answers)),
            widened_calls=max(render.widened_calls, *(a.widened for a in answers)),
        )

    def self_test(self) -> None:
        """See ``VideoModel.self_test``; on all ranks."""
        self._together(("self_test",), self._model.self_test)

    def close(self) -> None:
        """End the other ranks; the model renders no more."""
        atexit.unregister(self.close)
        self._lost = self._lost or "they were closed"
        for connection, process in self._ranks:
            connection.close()
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._ranks = []
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self._folder.cleanup()

    def _join(self, devices: tuple[str, ...], uneven: bool) -> None:
        _join(0, len(devices), devices[0], self._folder.name)
        spread(self._model, len(devices), uneven=uneven)

    def _together(self, command: tuple[Any, ...], mine: Callable[[], None]) -> list[_Answer]:
        """Have all ranks do the same, this one by ``mine``; their answers."""
        if self._lost is not None:
            raise UserError(f"the other GPUs of this render are gone: {self._lost}", "run again; what is done is kept")
        try:
            for connection, _process in self._ranks:
                connection.send(command)
        except OSError:
            self._lost = "a process has ended"
            self.close()
            raise UserError("a process of another GPU has ended", "run again; what is done is kept") from None
        watch = _Watch(self._ranks)
        watch.start()
        own: BaseException | None = None
        try:
            with _quiet():
                mine()
        except BaseException as error:  # noqa: BLE001 - raised below
            own = error
        expected = isinstance(own, (CellFailed, UserError))
        answers, lost = watch.end(_GRACE if own is None or expected else _PATIENCE)
        if lost is not None:
            self._lost = lost
            self.close()
        if own is None or not (expected or isinstance(own, KeyboardInterrupt)):
            said = next((f"GPU {rank}: {a.error}" for rank, a in answers.items() if a.error is not None), lost)
            if said is not None:
                raise UserError(said, "run again; what is done is kept") from own
        if own is not None:
            raise own
        return list(answers.values())

    def _loaded(self) -> None:
        """Wait until every rank has done what it does by itself.

        Raises:
            UserError: one ended, or says why it cannot.
        """
        watch = _Watch(self._ranks)
        answers, lost = watch.end(None)
        said = next((f"GPU {rank}: {a.error}" for rank, a in answers.items() if a.error is not None), lost)
        if said is not None:
            raise UserError(said, "mend that, or leave --gpus out")


class _Watch(threading.Thread):
    """Takes the answers of the other ranks while this process works, and sees that it does not wait for the dead.

    A rank that ended or failed joins no collective. This process may wait in one for it: that rank is ended too, which
    wakes a collective of gloo; one of NCCL nothing wakes, and this process ends.
    """

    def __init__(self, ranks: list[tuple[Connection, Any]]) -> None:
        super().__init__(daemon=True)
        self._ranks = dict(enumerate(ranks, start=1))
        self._answers: dict[int, _Answer] = {}
        self._lost: str | None = None
        self._done = threading.Event()

    def end(self, grace: float | None) -> tuple[dict[int, _Answer], str | None]:
        """The answers of all ranks, waited for for ``grace`` seconds (None: as long as they live), and who has none."""
        self._done.set()
        if self.is_alive():
            self.join()
        until = None if grace is None else time.monotonic() + grace
        while self._lost is None and len(self._answers) < len(self._ranks):
            self._look(0.1)
            if until is not None and time.monotonic() > until:
                silent = next(rank for rank in self._ranks if rank not in self._answers)
                self._lost = self._lost or f"the process of GPU {silent} does not answer"
        return dict(sorted(self._answers.items())), self._lost

    def _look(self, seconds: float) -> None:
        """Take what has come within some seconds."""
        left = {rank: pair for rank, pair in self._ranks.items() if rank not in self._answers}
        ready = wait([connection for connection, _ in left.values()], seconds)
        for rank, (connection, process) in left.items():
            if connection in ready:
                try:
                    self._answers[rank] = connection.recv()
                except (EOFError, ConnectionResetError):
                    process.join(timeout=5)
                    self._lost = f"the process of GPU {rank} ended with {process.exitcode}"

    def _trouble(self) -> str | None:
        if self._lost is not None:
            return self._lost
        return next((f"GPU {r}: {a.error or a.failed}" for r, a in self._answers.items() if a.error or a.failed), None)

    def run(self) -> None:
        """Until ``end`` is called, or there is no other way."""
        while not self._done.is_set():
            if len(self._answers) == len(self._ranks):
                self._done.wait(0.2)
            else:
                self._look(0.2)
            if self._trouble() is None or self._done.wait(_PATIENCE):
                continue
            self._lost = self._trouble()
            for _connection, process in self._ranks.values():
                process.kill()
            if not self._done.wait(_GRACE):
                sys.stderr.write(f"mxbench: {self._trouble()}; run again: what is done is kept\n")
                sys.stderr.flush()
                os._exit(1)


def _follow(connection: Connection, load: Loader, rank: int, gpus: int, device: str, folder: str, uneven: bool) -> None:
    """What a further rank does: load, join, and do as it is told until rank 0 hangs up."""
    try:
        model = load(device)
        connection.send(_Answer())
        while True:
            command, *arguments = connection.recv()
            if command == "join":
                _join(rank, gpus, device, folder)
                spread(model, gpus, uneven=uneven)
                connection.send(_Answer())
            else:
                connection.send(_obey(model, command, arguments))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except UserError as error:
        connection.send(_Answer(error=str(error)))
    except Exception as error:  # noqa: BLE001 - rank 0 says it
        connection.send(_Answer(error=f"{type(error).__name__}: {error}"))


def _obey(model: VideoModel, command: str, arguments: list[Any]) -> _Answer:
    try:
        with _quiet():
            if command == "self_test":
                model.self_test()
                return _Answer()
            render = model.render(*arguments)
    except CellFailed as error:
        return _Answer(failed=str(error))
    except UserError as error:
        return _Answer(error=error.problem)
    except Exception as error:  # noqa: BLE001 - rank 0 says it
        return _Answer(error=f"{type(error).__name__}: {error}")
    return _Answer(render.nonfinite_calls, render.widened_calls)
