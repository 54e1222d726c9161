"""Workers: processes of the interpreter that holds vbench, their jobs, their answers, and their ends."""

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
from mxbench.vbench.dimensions import DIMENSIONS, VERSION

__all__ = ["Answer", "Environment", "Outcome", "Task", "check", "score"]

_PROGRAM = Path(__file__).parent / "inside" / "worker.py"
_START_S = 300.0  # of the packages' imports, from a slow disk
_DEATHS = 3  # in a row, within a dimension, without a score


@dataclass(frozen=True, slots=True)
class Task:
    """A video to be scored in a dimension.

    Attributes:
        dimension: a name in DIMENSIONS.
        key: what the caller calls the video.
        path: the file.
    """

    dimension: str
    key: str
    path: Path


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a task.

    Attributes:
        task: the question.
        value: the package's value of the video, over the dimension's divisor; None where ``reason`` says why not.
        raw: the package's value as it gave it.
        frames: of the video.
        reason: why there is no value.
        seconds: that it took; of the first video of a dimension with the loading of its model.
        memory: the most bytes of main memory that the worker had held in this dimension by then.
        device_memory: likewise of the GPU.
    """

    task: Task
    value: float | None
    raw: float | None = None
    frames: int = 0
    reason: str | None = None
    seconds: float = 0.0
    memory: int = 0
    device_memory: int = 0


@dataclass(frozen=True, slots=True)
class Environment:
    """Where scores were taken.

    Attributes:
        versions: of the packages, by name; ``torchvision`` is ``stand-in`` where ours was taken.
        device: the GPU's name, or ``cpu``.
    """

    versions: dict[str, str]
    device: str


@dataclass(slots=True)
class Outcome:
    """What came of a job.

    Attributes:
        answers: one for every task, in the order of the tasks.
        environment: None where no worker came up.
    """

    answers: list[Answer] = field(default_factory=list)
    environment: Environment | None = None


def check(python: str, folder: Path, device: str = "cpu") -> Environment:
    """Start a worker without tasks, to see whether the package imports there.

    Raises:
        UserError: it does not; with its own words.
    """
    found = score([], python=python, folder=folder, device=device)
    assert found.environment is not None
    return found.environment


def score(
    tasks: Sequence[Task],
    *,
    python: str,
    folder: Path,
    device: str = "cpu",
    workers: int = 1,
    limit_s: float = 1800.0,
    tell: Callable[[Answer], None] = lambda _answer: None,
) -> Outcome:
    """Score videos. A video, a model or a worker that fails costs its own tasks alone.

    Args:
        tasks: what to score; dimension by dimension is fastest.
        python: the interpreter that holds vbench.
        folder: of the weights.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        workers: processes; never more than there are videos.
        limit_s: seconds that one task may take before its worker is killed.
        tell: told of every answer as it comes, one at a time.

    Returns:
        The answers, the same whatever the number of workers.

    Raises:
        UserError: no worker could do anything: the package is missing, or another version, or cannot be imported.
    """
    videos = list(dict.fromkeys(task.key for task in tasks))
    count = max(1, min(workers, len(videos)))
    place = {key: index % count for index, key in enumerate(videos)}
    shares: list[list[Task]] = [[] for _ in range(count)]
    for task in tasks:
        shares[place[task.key]].append(task)
    found: dict[tuple[str, str], Answer] = {}
    lock, stop = threading.Lock(), threading.Event()

    def answered(answer: Answer) -> None:
        with lock:
            if not stop.is_set():
                found[answer.task.dimension, answer.task.key] = answer
                tell(answer)

    lines = [_Line(share, python, folder, device, limit_s, answered, stop) for share in shares]
    threads = [threading.Thread(target=line.run, daemon=True) for line in lines]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(1.0)  # so that an interruption is heard
    finally:
        stop.set()
        for line in lines:
            line.kill()
    if (error := next((line.error for line in lines if line.error is not None), None)) is not None:
        raise error
    environment = next((line.environment for line in lines if line.environment is not None), None)
    return Outcome([found[task.dimension, task.key] for task in tasks], environment)


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
            "free space there, or set TMPDIR; what was scored is kept",
        ) from error


class _Line:
    """Tasks that one worker does after another, and the workers after it if it dies."""

    def __init__(
        self,
        tasks: Sequence[Task],
        python: str,
        folder: Path,
        device: str,
        limit_s: float,
        answered: Callable[[Answer], None],
        stop: threading.Event,
    ) -> None:
        self.left = list(tasks)
        self.python, self.folder, self.device, self.limit_s = python, folder, device, limit_s
        self.answered, self.stop = answered, stop
        self.environment: Environment | None = None
        self.error: BaseException | None = None
        self.process: subprocess.Popen[str] | None = None
        self.deaths = 0
        self.current: Task | None = None
        self.reader: threading.Thread | None = None

    def run(self) -> None:
        try:
            again = True
            while again and not self.stop.is_set():
                with _scratch() as scratch:
                    self._worker(scratch)
                again = bool(self.left)
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
        job = {
            "device": self.device.split(":")[0],
            "cache": str(self.folder),
            "scratch": str(scratch),
            "version": VERSION,
            "frames": {name: each.frames for name, each in DIMENSIONS.items()},
            "tasks": [[task.dimension, task.key, str(task.path)] for task in self.left],
        }
        (scratch / "job.json").write_text(json.dumps(job), encoding="utf-8")
        environment = dict(os.environ)
        if ":" in self.device:
            environment["CUDA_VISIBLE_DEVICES"] = _visible(int(self.device.split(":")[1]))
        with (scratch / "said").open("w", encoding="utf-8", errors="replace") as said:
            try:
                self.process = subprocess.Popen(
                    [self.python, "-u", str(_PROGRAM), str(scratch / "job.json")],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=environment,
                    start_new_session=True, text=True, encoding="utf-8", errors="replace",
                )  # fmt: skip
            except OSError as error:
                raise _unusable(self.python, f"it cannot be started ({error.strerror})") from error
        self.current = None
        ready = ended = False
        try:
            for answer in self._answers(self.process):
                kind = answer["kind"]
                if kind == "ready":
                    ready = True
                    self.environment = Environment(answer["versions"], answer["device"])
                elif kind == "begin":
                    asked = (answer["dimension"], answer["key"])
                    self.current = next(task for task in self.left if (task.dimension, task.key) == asked)
                elif kind in ("score", "failed") and self.current is not None:
                    self._done(self.current, answer)
                    self.current = None
                elif kind == "wrong":
                    raise _unusable(self.python, answer["reason"])
                elif kind == "end":
                    ended = True
            death = None if ended else _death(self.process, scratch / "said")
        except TimeoutError as error:
            self.kill()
            death = str(error)
        finally:
            self.kill()
            self._close()
        if death is None or self.stop.is_set():
            return
        if not ready:
            raise _unusable(self.python, death)
        self._died(self.current, death)

    def _answers(self, process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
        """A worker's lines as they come, until it ends.

        Raises:
            TimeoutError: none came within the limit.
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
            seconds = self.limit_s if self.current else _START_S
            try:
                line = lines.get(timeout=seconds)
            except queue.Empty:
                raise TimeoutError(f"the worker of VBench gave no answer in {seconds:g} s and was stopped") from None
            if line is None:
                return
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict) and "kind" in answer:
                    yield answer

    def _done(self, task: Task, answer: dict[str, Any]) -> None:
        self.left.remove(task)
        if answer["kind"] == "failed":
            self.answered(Answer(task, None, reason=answer["reason"]))
            return
        self.deaths = 0
        fields = {name: answer[name] for name in ("frames", "seconds", "memory", "device_memory")}
        value = answer["value"]
        self.answered(Answer(task, value / DIMENSIONS[task.dimension].divisor, value, **fields))

    def _died(self, task: Task | None, death: str) -> None:
        """What was under way has no score; after a few deaths neither has what is left of its dimension."""
        task = task if task is not None else self.left[0]
        self.deaths += 1
        gone = [task]
        if self.deaths >= _DEATHS:
            gone = [each for each in self.left if each.dimension == task.dimension]
            self.deaths = 0
        for each in gone:
            self.left.remove(each)
            self.answered(Answer(each, None, reason=death))


def _visible(index: int) -> str:
    """The device that ``cuda:index`` is here, as a process that is to see it alone is told."""
    listed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if listed and index >= len(listed):
        raise UserError(f"there is no cuda:{index}: CUDA_VISIBLE_DEVICES shows {len(listed)}", "name one of those")
    return listed[index].strip() if listed else str(index)


def _death(process: subprocess.Popen[str], said: Path) -> str:
    code = process.wait()
    last = next((line.strip() for line in reversed(said.read_text(errors="replace").splitlines()) if line.strip()), "")
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (the system does so where memory runs out)" if -code == signal.SIGKILL else ""
        return f"the worker of VBench was ended by {name}{hint}"
    return f"the worker of VBench ended with code {code}" + (f": {last[:200]}" if last else " and said nothing")


def _unusable(python: str, reason: str) -> UserError:
    if "CUDA device" in reason:
        return UserError(f"VBench cannot run: {reason}", "use --vbench-device cpu, or a torch that sees the GPU")
    return UserError(
        f"VBench cannot run by {python}: {reason}",
        "run `mxbench vbench setup`, or name an interpreter that has it with --vbench-python",
    )
