"""Workers that crash, hang, are killed or talk nonsense cost their own tasks alone; by programs that stand in."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxbench.errors import UserError
from mxbench.vbench.worker import Task, check, score

VIDEOS = ("a", "b", "c")
TASKS = [Task(name, key, Path(key)) for name in ("subject_consistency", "imaging_quality") for key in VIDEOS]


def outcome(python, tasks=TASKS, **options):
    found = score(tasks, python=python, folder=Path("weights"), **options)
    assert [answer.task for answer in found.answers] == list(tasks)
    return found.answers


def scored(answers):
    return [(answer.task.dimension, answer.task.key) for answer in answers if answer.value is not None]


EVERY = "ready()\nfor task in job['tasks']: score(task)\nsay('end')\n"


def test_every_task_is_answered_in_its_order_and_imaging_is_of_one(stand_in):
    answers = outcome(stand_in(EVERY))
    assert [answer.value for answer in answers] == [0.5] * 3 + [0.005] * 3
    assert {answer.raw for answer in answers} == {0.5}


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_workers_share_videos_and_change_nothing(stand_in, workers):
    program = "ready()\nfor task in job['tasks']: score(task, {'a': 0.1, 'b': 0.2, 'c': 0.7}[task[1]])\nsay('end')\n"
    told = []
    answers = outcome(stand_in(program), workers=workers, tell=told.append)
    assert [answer.raw for answer in answers] == [0.1, 0.2, 0.7] * 2
    assert len(told) == len(TASKS)


ENDS = {
    "crash": ("raise RuntimeError('of its own')", "RuntimeError: of its own"),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL (the system does so where memory runs out)"),
    "fault": ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    "hang": ("sys.stdin.read()", "gave no answer in 1 s"),
    "early end": ("sys.exit(0)", "ended with code 0"),
}


@pytest.mark.parametrize(("deed", "said"), ENDS.values(), ids=ENDS)
def test_a_worker_that_ends_costs_the_video_it_was_at(stand_in, deed, said):
    program = (
        "ready()\nfor task in job['tasks']:\n    if task[:2] == ['subject_consistency', 'b']:\n"
        f"        begin(task)\n        {deed}\n    score(task)\nsay('end')\n"
    )
    answers = outcome(stand_in(program), limit_s=1.0 if "stdin" in deed else 60.0)
    assert len(scored(answers)) == 5
    assert said in answers[1].reason


def test_a_dimension_whose_worker_always_ends_is_given_up_and_the_others_go_on(stand_in):
    program = (
        "ready()\nfor task in job['tasks']:\n    begin(task)\n    if task[0] == 'subject_consistency': os._exit(3)\n"
        "    score(task)\nsay('end')\n"
    )
    many = [Task(task.dimension, f"{task.key}{i}", task.path) for task in TASKS for i in range(4)]
    answers = outcome(stand_in(program), sorted(many, key=lambda task: task.dimension == "imaging_quality"))
    assert {name for name, _ in scored(answers)} == {"imaging_quality"}
    assert len(scored(answers)) == 12
    assert all("ended with code 3" in answer.reason for answer in answers if answer.value is None)


def test_what_the_package_refuses_is_said_of_that_video(stand_in):
    program = (
        "ready()\nfor task in job['tasks']:\n    begin(task)\n"
        "    say('failed', dimension=task[0], key=task[1], reason='the package returned nan')\nsay('end')\n"
    )
    assert {answer.reason for answer in outcome(stand_in(program))} == {"the package returned nan"}


def test_lines_that_are_no_answers_are_passed_over(stand_in):
    assert len(scored(outcome(stand_in("print('hello'); print('[1]'); print('{}')\n" + EVERY)))) == 6


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("say('wrong', reason='vbench 0.1.4 is installed, and scores are those of 0.1.5')\n", "vbench 0.1.4"),
        ("import no_such_package\n", "No module named 'no_such_package'"),
        ("os.kill(os.getpid(), signal.SIGKILL)\n", "SIGKILL"),
    ],
)
def test_a_package_that_does_not_start_is_one_line(stand_in, program, said):
    python = stand_in(program)
    for ask in (lambda: check(python, Path("weights")), lambda: outcome(python), lambda: outcome(python, workers=3)):
        with pytest.raises(UserError, match="mxbench vbench setup") as caught:
            ask()
        assert said in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


def test_an_interpreter_that_is_none_is_one_line():
    with pytest.raises(UserError, match="cannot be started"):
        check("/no/such/python", Path("weights"))


def test_an_interruption_ends_the_workers(stand_in, tmp_path):
    path = str(tmp_path / "pid")
    program = f"open({path!r}, 'w').write(str(os.getpid()))\nready()\nscore(job['tasks'][0])\nsys.stdin.read()\n"

    def stop(_answer):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outcome(stand_in(program), tell=stop)
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1]


def test_a_full_temporary_folder_is_one_line(stand_in, monkeypatch):
    def full(*_arguments, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mxbench.vbench.worker.tempfile.TemporaryDirectory", full)
    with pytest.raises(UserError, match="No space left on device; free space there, or set TMPDIR"):
        outcome(stand_in(EVERY))


@pytest.mark.parametrize(
    ("visible", "device", "seen"), [(None, "cuda:1", "1"), ("4,7", "cuda:1", "7"), ("4,7", "cuda", "4,7")]
)
def test_a_worker_sees_the_gpu_that_was_named(stand_in, monkeypatch, visible, device, seen):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    program = "say('ready', versions={}, device=os.environ.get('CUDA_VISIBLE_DEVICES'))\nsay('end')\n"
    assert check(stand_in(program), Path("weights"), device).device == seen


def test_a_gpu_that_is_not_shown_is_one_line(stand_in, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    with pytest.raises(UserError, match="there is no cuda:1: CUDA_VISIBLE_DEVICES shows 1"):
        check(stand_in(EVERY), Path("weights"), "cuda:1")
