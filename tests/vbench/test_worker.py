"""Workers that crash, hang, are killed or talk nonsense cost their own tasks alone; by programs that stand in."""

from __future__ import annotations

import signal
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
        ("say('ready', versions={'vbench': '0.1.5'}, device='cpu')\n", "cannot be read: ready with threads None"),
    ],
)
def test_a_package_that_does_not_start_is_one_line(stand_in, program, said):
    python = stand_in(program)
    for ask in (lambda: check(python, Path("weights")), lambda: outcome(python), lambda: outcome(python, workers=3)):
        with pytest.raises(UserError, match="mxbench vbench setup") as caught:
            ask()
        assert said in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


def counted(tmp_path, deed):
    """A program whose n-th start sees ``n``, from 1 on."""
    return f"path = {str(tmp_path / 'starts')!r}\nopen(path, 'a').write('x')\nn = len(open(path).read())\n{deed}\n"


KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def test_a_start_that_was_killed_is_tried_again(stand_in, tmp_path):
    python = stand_in(counted(tmp_path, f"if n < 3: {KILL}") + EVERY)
    assert len(scored(outcome(python))) == 6
    (tmp_path / "starts").unlink()
    assert check(python, Path("weights")).device == "cpu"


def test_a_check_that_is_always_killed_does_not_send_to_setup(stand_in):
    with pytest.raises(UserError, match=r"SIGKILL.*3 times; free memory") as caught:
        check(stand_in(KILL + "\n"), Path("weights"))
    assert "setup" not in str(caught.value)


def test_workers_that_are_always_killed_while_they_start_leave_their_tasks_unscored(stand_in):
    answers = outcome(stand_in(KILL + "\n"), workers=2)
    assert {answer.value for answer in answers} == {None}
    assert all("SIGKILL" in answer.reason for answer in answers)


@pytest.mark.parametrize("deed", [KILL, "os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(3)"])
def test_a_later_worker_that_does_not_start_loses_nothing_that_was_scored(stand_in, tmp_path, deed):
    first = (
        f"if n == 1:\n    ready()\n    for task in job['tasks'][:2]: score(task)\n    begin(job['tasks'][2])\n{deed}"
    )
    answers = outcome(stand_in(counted(tmp_path, first)))
    assert [answer.value is None for answer in answers] == [False, False, True, True, True, True]
    assert (tmp_path / "starts").read_text() == "xxxx"


def test_a_worker_that_came_up_before_the_job_is_no_package_that_is_missing(stand_in):
    answers = outcome(stand_in("os._exit(3)\n"), came_up=True)
    assert {answer.reason for answer in answers} == {"the worker of VBench ended with code 3 and said nothing"}


def test_a_worker_that_says_it_is_wrong_costs_no_answer_of_another(stand_in):
    program = "if job['tasks'][0][1] == 'a':\n    say('wrong', reason='no CUDA device'); sys.exit()\n"
    told = []
    with pytest.raises(UserError, match="no CUDA device"):
        outcome(stand_in(program + EVERY), workers=3, tell=told.append)
    assert len(scored(told)) == 4


@pytest.mark.parametrize("end", [KILL, "sys.exit(1)", "sys.exit(0)"])
def test_a_death_with_nothing_left_loses_nothing(stand_in, end):
    python = stand_in(f"ready()\nfor task in job['tasks']: score(task)\n{end}\n")
    assert len(scored(outcome(python))) == 6
    assert check(python, Path("weights")).device == "cpu"


@pytest.mark.parametrize("program", ["ready()\nos._exit(4)\n", "ready()\nsay('end')\n"])
def test_workers_that_begin_nothing_are_given_up(stand_in, program):
    answers = outcome(stand_in(program))
    assert len({answer.reason for answer in answers}) == 1
    assert scored(answers) == []


UNREADABLE = {
    "no value": "say('score', dimension=task[0], key=task[1], frames=5, seconds=1, memory=1, device_memory=0)",
    "no frames": "say('score', dimension=task[0], key=task[1], value=0.5, seconds=1, memory=1, device_memory=0)",
    "null": "score(task, None)",
    "word": "score(task, 'good')",
    "no reason": "say('failed', dimension=task[0], key=task[1])",
    "another task": "say('score', dimension=task[0], key='z', value=0.5)",
    "begin of none": "say('begin', dimension='no', key=[1])",
    "kind": "say('kind')",
    "ready again": "say('ready')",
}


@pytest.mark.parametrize("line", UNREADABLE.values(), ids=UNREADABLE)
def test_a_worker_that_cannot_be_understood_costs_the_video_it_was_at(stand_in, line):
    program = (
        "ready()\nfor task in job['tasks']:\n    if task[:2] == ['subject_consistency', 'b']:\n"
        f"        begin(task)\n        {line}\n        sys.stdin.read()\n    score(task)\nsay('end')\n"
    )
    answers = outcome(stand_in(program))
    assert len(scored(answers)) == 5
    assert answers[1].reason.startswith("the worker of VBench answered what cannot be read: ")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_value_that_is_no_number_is_the_package_s(stand_in, value):
    python = stand_in(f"ready()\nfor task in job['tasks']: score(task, float('{value}'))\nsay('end')\n")
    assert {answer.reason for answer in outcome(python)} == {f"the package returned {value}"}


def test_a_signal_without_a_name_is_said_by_its_number(stand_in):
    program = f"ready()\nfor task in job['tasks']:\n    begin(task)\n    os.kill(os.getpid(), {signal.SIGRTMIN + 1})\n"
    assert f"ended by signal {signal.SIGRTMIN + 1}" in outcome(stand_in(program))[0].reason


@pytest.mark.parametrize("limit", [1e10, float("inf")])
def test_as_long_as_it_takes_is_a_limit(stand_in, limit):
    assert len(scored(outcome(stand_in(EVERY), limit_s=limit))) == 6


@pytest.mark.parametrize("error", [UserError("no room", "make some"), TimeoutError("no room")])
def test_what_is_raised_by_who_is_told_ends_all_workers_soon(stand_in, error):
    def full(_answer):
        raise error

    program = "ready()\nscore(job['tasks'][0])\nsys.stdin.read()\n"
    with pytest.raises(type(error), match="no room"):
        outcome(stand_in(program), workers=3, tell=full)


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

    monkeypatch.setattr("mxbench.vbench.line.tempfile.TemporaryDirectory", full)
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
    program = "say('ready', versions={}, device=os.environ.get('CUDA_VISIBLE_DEVICES'), threads=1)\nsay('end')\n"
    assert check(stand_in(program), Path("weights"), device).device == seen


def test_a_gpu_that_is_not_shown_is_one_line(stand_in, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    with pytest.raises(UserError, match="there is no cuda:1: CUDA_VISIBLE_DEVICES shows 1"):
        check(stand_in(EVERY), Path("weights"), "cuda:1")
