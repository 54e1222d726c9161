"""Crash runs, resume them, and compare the reports with an uninterrupted one. Run as a program: forks, no threads.

Usage: crash_driver.py FOLDER [kill]
Without ``kill``: dies right before its n-th write, for every n. With it: SIGKILL at 20 random moments of one run.
Prints a JSON object: how often it died, and what went wrong at any time.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from fakes import FakeModel

from mxbench.cli.progress import Silent
from mxbench.report.load import write_reports
from mxbench.runs.plan import expand
from mxbench.runs.recipe import parse
from mxbench.runs.runner import run
from mxbench.runs.store import Store

RECIPE = {
    "title": "crash",
    "prompts": ["“a” red/blue circle"],
    "methods": ["mxattn"],
    "sampling": {"frames": 5, "steps": 2},
    "metrics": ["psnr", "temporal_flickering"],
}
WRITES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "shutil.rmtree")


def work(out, die_at=None, recipe=RECIPE):
    """The whole run; with ``die_at`` the process dies right before that write, as by SIGKILL."""
    count = 0
    if die_at is not None:

        def hook(event, args):
            nonlocal count
            is_write = event in WRITES or (
                event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            )
            if is_write and args and str(out) in str(args[0]):
                count += 1
                if count == die_at:
                    os._exit(137)

        sys.addaudithook(hook)
    plan = expand(parse(recipe))
    store = Store(out, create=True)
    store.put_plan("crash", plan.to_dict())
    run(plan, store, Silent(), loader=lambda *_: FakeModel())
    write_reports(store, "crash", None)
    return count


def start(function, *args):
    pid = os.fork()
    if pid == 0:
        try:
            function(*args)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the parent hears of it by the exit code
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return pid


def forked(function, *args):
    pid = start(function, *args)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(folder):
    """One run of 40 cells, killed 20 times."""
    recipe = RECIPE | {"prompts": [f"prompt {i}" for i in range(10)], "methods": ["mxattn", "mxfp4"]}
    out, log = folder / "killed", folder / "renders"
    os.environ["RENDERS"] = str(folder / "renders-whole")
    begun = time.monotonic()
    assert forked(work, folder / "whole", None, recipe) == 0
    usual = time.monotonic() - begun
    os.environ["RENDERS"] = str(log)
    moments, problems, stamps, kills = random.Random(0), [], {}, 0
    while kills < 20:
        pid = start(work, out, None, recipe)
        # A tenth of the whole at most, so that twenty kills come before the end.
        time.sleep(moments.uniform(0, usual / 12))
        os.kill(pid, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL:
            problems.append("the run ended before it could be killed 20 times")
            break
        kills += 1
        for path in out.glob("cells/*/status.json"):
            stamp = path.stat().st_mtime_ns
            if stamps.setdefault(path, stamp) != stamp:
                problems.append(f"kill {kills}: {path.parent.name} was rendered again")
    if forked(work, out, None, recipe) != 0:
        problems.append("the resumed run failed")
    for name in ("report.md", "report.csv"):
        if (out / name).read_bytes() != (folder / "whole" / name).read_bytes():
            problems.append(f"{name} differs")
    if len(set(log.read_text().splitlines())) != 40:
        problems.append("not every cell was rendered")
    print(json.dumps({"kills": kills, "problems": problems}))


def main(folder):
    whole = folder / "whole"
    os.environ["RENDERS"] = str(folder / "renders-whole")
    assert forked(work, whole) == 0
    wanted = {name: (whole / name).read_bytes() for name in ("report.md", "report.csv")}
    problems, n = [], 0
    while True:
        n += 1
        out = folder / "crashed"
        shutil.rmtree(out, ignore_errors=True)
        log = folder / "renders"
        log.unlink(missing_ok=True)
        os.environ["RENDERS"] = str(log)
        code = forked(work, out, n)
        if code == 0:
            break
        if code != 137:
            problems.append(f"write {n}: exit {code}")
        finished = {p.parent.name for p in out.glob("cells/*/status.json") if not p.parent.name.startswith(".")}
        stamps = {name: (out / "cells" / name / "status.json").stat().st_mtime_ns for name in finished}
        if forked(work, out) != 0:
            problems.append(f"write {n}: the resumed run failed")
            continue
        for name, data in wanted.items():
            if (out / name).read_bytes() != data:
                problems.append(f"write {n}: {name} differs")
        for name, stamp in stamps.items():
            if (out / "cells" / name / "status.json").stat().st_mtime_ns != stamp:
                problems.append(f"write {n}: finished cell {name} was rendered again")
        again = {key: count for key, count in Counter(log.read_text().splitlines()).items() if count > 1}
        if sum(count - 1 for count in again.values()) > 1:
            problems.append(f"write {n}: more than the cell in work was rendered twice: {again}")
        left = [str(p) for p in (out / ".tmp").iterdir()]
        if left:
            problems.append(f"write {n}: left behind {left}")
    print(json.dumps({"writes": n - 1, "problems": problems}))


if __name__ == "__main__":
    (kill if "kill" in sys.argv else main)(Path(sys.argv[1]))
