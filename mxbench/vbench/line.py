"""A line of workers: the process that does some tasks, and those after it where it dies."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mxbench.errors import UserError
from mxbench.vbench.answers import Unreadable, answer_of, asked_for, environment_of, parse, reason_of
from mxbench.vbench.dimensions import DIMENSIONS, VERSION
from mxbench.vbench.tasks import Answer, Environment, Task

__all__ = ["Job", "Line", "unusable"]

_PROGRAM = Path(__file__).parent / "inside" / "worker.py"
_START_S = 300.0  # of the packages' imports, from a slow disk
_END_S = 60.0  # of its end, once it has closed its output
_DEATHS = 3  # in a row: of a dimension without a score, or of workers that began nothing


@dataclass(slots=True)
class Job:
    """What the lines of a job have in common.

    Attributes:
        python: the interpreter that holds vbench.
        folder: of the weights.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        limit_s: seconds that one task may take.
        came_up: set once some worker has.
        stop: set where all is to end.
    """

    python: str
    folder: Path
    device: str
    limit_s: float = 1800.0
    came_up: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)


class _Silent(Exception):
    """A worker took longer than it may; no ``TimeoutError``, which a file system raises too."""


class Line:
    """Tasks that one worker does after another, and the workers after it if it dies.

    Args:
        tasks: in their order.
        job: what the lines share.
        answered: told of every answer, in the line's own thread.
    """

    def __init__(self, tasks: Sequence[Task], job: Job, answered: Callable[[Answer], None]) -> None:
        self.left = list(tasks)
        self.job, self.answered = job, answered
        self.environment: Environment | None = None
        self.error: BaseException | None = None
        self.death: str | None = None
        self.process: subprocess.Popen[str] | None = None
        self.reader: threading.Thread | None = None
        self.current: Task | None = None
        self.deaths = self.idle_deaths = 0

    def run(self) -> None:
        """Work until nothing is left; what stops it is ``error``."""
        try:
            again = True
            while again and not self.job.stop.is_set():
                with _scratch() as scratch:
                    self._worker(scratch)
                again = bool(self.left) or (self.environment is None and 0 < self.idle_deaths < _DEATHS)
        except BaseException as error:  # noqa: BLE001 - raised again where the caller waits
            self.error = error
        finally:
            self.kill()
            self._close()

    def kill(self) -> None:
        """End the worker, if there is one, and whatever it has started."""
        if (process := self.process) is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _close(self) -> None:
        """After its end: the pipes."""
        process, self.process = self.process, None
        if process is not None:
            if self.reader is not None:
                self.reader.join()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _worker(self, scratch: Path) -> None:
        """One worker, until it ends or dies."""
        self.current = None
        with (scratch / "said").open("w", encoding="utf-8", errors="replace") as said:
            self.process = process = self._started(scratch, said)
        ready = ended = False
        code: int | None = None
        death: str | None = None
        try:
            if not self.job.stop.is_set():  # set before there was anything to kill
                for answer in self._answers(process):
                    self._heard(answer)
                    ready |= answer["kind"] == "ready"
                    ended |= answer["kind"] == "end"
                code = process.wait(_END_S)
        except _Silent as error:
            death = str(error)
        except Unreadable as error:
            death = f"the worker of VBench answered what cannot be read: {str(error)[:200]}"
        except subprocess.TimeoutExpired:
            death = "the worker of VBench fell silent and was stopped"
        finally:
            self.kill()
            self._close()
        if self.job.stop.is_set() or (ended and not self.left):
            return
        self._died(death or _death(code, scratch / "said", ended=ended), ready, code is not None and code < 0)

    def _started(self, scratch: Path, said: Any) -> subprocess.Popen[str]:
        job = {
            "device": self.job.device.split(":")[0],
            "cache": str(self.job.folder),
            "scratch": str(scratch),
            "version": VERSION,
            "frames": {name: each.frames for name, each in DIMENSIONS.items()},
            "tasks": [[task.dimension, task.key, str(task.path)] for task in self.left],
        }
        (scratch / "job.json").write_text(json.dumps(job), encoding="utf-8")
        environment = dict(os.environ)
        if ":" in self.job.device:
            environment["CUDA_VISIBLE_DEVICES"] = _visible(int(self.job.device.split(":")[1]))
        try:
            return subprocess.Popen(
                [self.job.python, "-u", str(_PROGRAM), str(scratch / "job.json")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=environment,
                start_new_session=True, text=True, encoding="utf-8", errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise unusable(self.job.python, f"it cannot be started ({error.strerror})") from error

    def _answers(self, process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
        """A worker's lines as they come, until it ends.

        Raises:
            _Silent: none came within the limit.
        """
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        while True:
            seconds = min(self.job.limit_s, threading.TIMEOUT_MAX) if self.current else _START_S
            try:
                line = lines.get(timeout=seconds)
            except queue.Empty:
                raise _Silent(f"the worker of VBench gave no answer in {seconds:g} s and was stopped") from None
            if line is None:
                return
            if (answer := parse(line)) is not None:
                yield answer

    def _heard(self, said: dict[str, Any]) -> None:
        """Take in a line.

        Raises:
            Unreadable: it cannot be understood.
            UserError: the worker says that none can work there.
        """
        kind = said["kind"]
        if kind == "ready":
            self.environment = environment_of(said)
            self.job.came_up.set()
        elif kind == "begin":
            self.current = asked_for(said, self.left)
            self.idle_deaths = 0
        elif kind in ("score", "failed"):
            answer = answer_of(said, asked_for(said, [self.current] if self.current is not None else []))
            self.current = None
            self.left.remove(answer.task)
            if answer.value is not None:
                self.deaths = 0
            self.answered(answer)
        elif kind == "wrong":
            raise unusable(self.job.python, reason_of(said))
        elif kind != "end":
            raise Unreadable(f"an answer of the kind {kind!r}")

    def _died(self, death: str, ready: bool, by_signal: bool) -> None:
        """What was under way has no score; after a few deaths neither has what is left of its dimension.

        A worker that had begun nothing costs nothing: it is started anew, a few times.

        Raises:
            UserError: no worker ever came up, and nothing but itself has ended this one.
        """
        self.death = death
        if (task := self.current) is not None:
            self.deaths += 1
            if self.deaths < _DEATHS:
                self._lose([task], death)
            else:
                self.deaths = 0
                self._lose([each for each in self.left if each.dimension == task.dimension], death)
            return
        if not ready and not by_signal and not self.job.came_up.is_set():
            raise unusable(self.job.python, death)
        if ready and not self.left:
            return  # all was said
        self.idle_deaths += 1
        if self.idle_deaths >= _DEATHS:
            self._lose(list(self.left), death)

    def _lose(self, tasks: Sequence[Task], death: str) -> None:
        for task in tasks:
            self.left.remove(task)
            self.answered(Answer(task, None, reason=death))


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for one worker.

    Raises:
        UserError: there is no room for it.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="mxbench-vbench-") as scratch:
            yield Path(scratch)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        raise UserError(
            f"{tempfile.gettempdir()} cannot hold VBench's working files: {error.strerror}",
            "free space there, or set TMPDIR",
        ) from error


def _visible(index: int) -> str:
    """The device that ``cuda:index`` is here, as a process that is to see it alone is told."""
    listed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if listed and index >= len(listed):
        raise UserError(f"there is no cuda:{index}: CUDA_VISIBLE_DEVICES shows {len(listed)}", "name one of those")
    return listed[index].strip() if listed else str(index)


def _death(code: int | None, said: Path, *, ended: bool) -> str:
    if ended:
        return "the worker of VBench ended before it had done all"
    last = next((line.strip() for line in reversed(said.read_text(errors="replace").splitlines()) if line.strip()), "")
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (the system does so where memory runs out)" if -code == signal.SIGKILL else ""
        return f"the worker of VBench was ended by {name}{hint}"
    return f"the worker of VBench ended with code {code}" + (f": {last[:200]}" if last else " and said nothing")


def unusable(python: str, reason: str, *, ended: bool = False) -> UserError:
    """The error of an interpreter by which no worker works.

    Args:
        python: the interpreter.
        reason: in a clause.
        ended: something else than itself ended the worker, so that setting up anew mends nothing.
    """
    if "CUDA device" in reason:
        return UserError(f"VBench cannot run: {reason}", "use --vbench-device cpu, or a torch that sees the GPU")
    if " is full (" in reason:
        return UserError(f"VBench cannot run: {reason}", "free space there, or set TMPDIR")
    if ended:
        return UserError(
            f"VBench cannot run by {python}: {reason}, {_DEATHS} times",
            "free memory, or use another --vbench-device, and run the same command again",
        )
    return UserError(
        f"VBench cannot run by {python}: {reason}",
        "run `mxbench vbench setup`, or name an interpreter that has it with --vbench-python",
    )
