"""Crash a run at its n-th write, for every n, resume it, and compare the reports. Run as a program: forks, no threads.

Usage: crash_driver.py FOLDER
Prints a JSON object: the number of writes, and what went wrong at any of them.
"""

import json
import os
import shutil
import sys
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
    "prompts": ["a red circle", "“quotes” and / slashes"],
    "methods": ["mxfp4", "mxattn"],
    "sampling": {"frames": 5, "steps": 2},
    "metrics": ["psnr", "cosine", "temporal_flickering"],
}
WRITES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "shutil.rmtree")


def work(out, die_at=None):
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
    plan = expand(parse(RECIPE))
    store = Store(out, create=True)
    store.put_plan("crash", plan.to_dict())
    run(plan, store, Silent(), loader=lambda _: FakeModel())
    write_reports(store, "crash", None)
    return count


def forked(function, *args):
    pid = os.fork()
    if pid == 0:
        try:
            function(*args)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


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
        left = [str(p) for p in out.rglob("*.tmp")]
        if left:
            problems.append(f"write {n}: left behind {left}")
    print(json.dumps({"writes": n - 1, "problems": problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
