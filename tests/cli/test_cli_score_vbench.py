"""``mxbench score --vbench``: what is looked at first, what stops it, what is kept, and how it is printed."""

import json
import os

import pytest
from cli_checks import clip, error, one_line
from vbench_files import fill, without_checksums

from mxbench.runs.vbench_kept import KeptScores

BOTH = ("--vbench", "-D", "imaging_quality", "-D", "dynamic_degree")
SAY = (
    "import json, os, signal, sys\njob = json.load(open(sys.argv[-1]))\n"
    "def say(kind, **fields): print(json.dumps({'kind': kind, **fields}), flush=True)\n"
    "def score(task):\n"
    "    say('begin', dimension=task[0], key=task[1])\n"
    "    say('score', dimension=task[0], key=task[1], value=0.5, frames=5, seconds=0.5, memory=9, device_memory=0)\n"
    "def ready(): say('ready', versions={'vbench': '0.1.5', 'torchvision': 'stand-in'}, device='cpu', threads=2)\n"
)
"""What programs that stand in for a worker begin with."""


@pytest.fixture
def program(vbench, tmp_path):
    """Writes the program that stands in for the worker, over files of weights."""
    fill(vbench)
    return lambda text: (tmp_path / "worker.py").write_text(SAY + text)


def clips(folder, *names):
    for number, name in enumerate(names):
        clip(folder / name, noise=10 * number)


STARTS = "open('STARTS', 'a').write('x')\nn = len(open('STARTS').read())\n"


@pytest.mark.parametrize("deed", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"])
def test_a_start_that_dies_loses_nothing_of_score(mxbench_cli, program, tmp_path, deed):
    program(
        f"{STARTS}if n > 2: {deed}\nready()\nfor task in job['tasks'][:1]: score(task)\nif n == 2: {deed}\nsay('end')\n"
    )
    clips(tmp_path / "mine", "a.mkv", "b.mkv")
    clips(tmp_path / "ref", "a.mkv", "b.mkv")
    code, out, _ = mxbench_cli("score", "mine", "-R", "ref", "-M", "psnr", *BOTH, "--json", "--keep", "k.jsonl")
    found = json.loads(out)["scores"]
    assert code == 1
    assert all(each["psnr"]["value"] is not None for each in found.values())
    assert found["a"]["dynamic_degree"]["value"] == 0.5
    assert "the worker of VBench" in found["b"]["imaging_quality"]["unscored"]
    assert len((tmp_path / "k.jsonl").read_text().splitlines()) == 1


def test_what_ends_vbench_leaves_the_table_of_what_there_is(mxbench_cli, program, tmp_path):
    program(
        f"{STARTS}ready()\nif n == 2:\n    score(job['tasks'][0])\n    say('wrong', reason='of its own')\n"
        "    sys.exit()\nsay('end')\n"
    )
    clips(tmp_path / "mine", "a.mkv", "b.mkv")
    clips(tmp_path / "ref", "a.mkv", "b.mkv")
    arguments = ("score", "mine", "-R", "ref", "-M", "psnr", *BOTH)
    code, out, err = mxbench_cli(*arguments)
    assert code == 1
    assert "Dynamic" in out
    assert "0.5000" in out
    assert out.count("–") >= 3
    assert err.splitlines()[-1].startswith("mxbench: VBench cannot run by ")
    (tmp_path / "STARTS").unlink()
    code, out, _ = mxbench_cli(*arguments, "--json")
    assert code == 1
    found = json.loads(out)
    assert "of its own" in found["vbench"]["stopped"]
    assert set(found["scores"]["b"]) == {"psnr"}


def test_what_cannot_be_kept_stops_soon_and_prints_what_there_is(mxbench_cli, program, monkeypatch, tmp_path):
    def full(self, *_arguments):
        raise self._unwritten(OSError(28, "No space left on device"))

    monkeypatch.setattr(KeptScores, "add", full)
    program("ready()\nfor task in job['tasks'][:1]:\n    score(task)\n    sys.stdin.read()\nsay('end')\n")
    clips(tmp_path / "mine", "a.mkv", "b.mkv", "c.mkv")
    code, out, err = mxbench_cli("score", "mine", *BOTH, "--vbench-workers", 3, "--keep", "k.jsonl")
    assert code == 1
    assert out.count("0.5000") == 3  # a clip, the mean, the package's total
    assert err.splitlines()[-1].startswith("mxbench: k.jsonl cannot be written: No space left on device; ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-D", "dynamic"), "did you mean dynamic_degree"),
        (("-D", "imaging_quality"), "cannot be scored without 1 file"),
        (("-D", "temporal_flickering", "--keep", "no/folder"), "cannot be written"),
        (("-D", "temporal_flickering", "--vbench-python", "none"), "there is no interpreter none"),
        (("-D", "temporal_flickering", "-M", "pnsr"), "did you mean psnr"),
        (("-D", "temporal_flickering", "--vbench-limit", "nan"), "leaves no time"),
    ],
)
def test_all_is_looked_at_before_anything_is_compared(mxbench_cli, vbench, monkeypatch, tmp_path, arguments, said):
    monkeypatch.setattr("mxbench.runs.compare.compare", lambda *_arguments, **_more: pytest.fail("compared"))
    clips(tmp_path, "a.mkv", "b.mkv")
    one_line(*error(mxbench_cli("score", "a.mkv", "-R", "b.mkv", "--vbench", *arguments)), said)
    assert not (tmp_path / "no").exists()


def test_a_package_that_is_missing_is_said_before_anything_is_compared(mxbench_cli, program, monkeypatch, tmp_path):
    monkeypatch.setattr("mxbench.runs.compare.compare", lambda *_arguments, **_more: pytest.fail("compared"))
    program("raise ImportError('no vbench here')")
    clips(tmp_path, "a.mkv", "b.mkv")
    one_line(*error(mxbench_cli("score", "a.mkv", "-R", "b.mkv", *BOTH)), "no vbench here")


def test_dimensions_that_may_be_unscored_are_no_failure(mxbench_cli, vbench, tmp_path):
    fill(vbench, ["dynamic_degree"])
    clips(tmp_path / "mine", "a.mkv")
    code, out, _ = mxbench_cli("score", "mine", *BOTH, "--allow-unscored")
    assert code == 0
    assert "Imaging unscored: VBench lacks" in out
    clips(tmp_path / "mine", "bad.mkv")
    assert mxbench_cli("score", "mine", *BOTH, "--allow-unscored")[0] == 1


@pytest.mark.parametrize("limit", ["inf", "1e10"])
def test_a_limit_may_be_as_long_as_it_takes(mxbench_cli, vbench, tmp_path, limit):
    fill(vbench)
    clip(tmp_path / "a.mkv")
    assert mxbench_cli("score", "a.mkv", *BOTH, "--vbench-limit", limit)[0] == 0


@pytest.mark.parametrize("text", ["", "\n", '{"vid', '{"video": "a', '{"video": "a", "dimension": "b"}\n', "\n\n[1]\n"])
def test_a_torn_or_blank_beginning_is_not_something_else(mxbench_cli, vbench, tmp_path, text):
    fill(vbench)
    clip(tmp_path / "a.mkv")
    (tmp_path / "k.jsonl").write_text(text)
    for again in (2, 2):
        code, _, err = mxbench_cli("score", "a.mkv", *BOTH, "--keep", "k.jsonl")
        assert code == 0, err
        asked = (tmp_path / "ASKED").read_text().splitlines()
        assert len(asked) == again  # the second takes what the first has kept


@pytest.mark.parametrize("field", ["frames", "setup", "value", "per_frame", "details", "video"])
def test_a_kept_line_that_lacks_something_is_scored_anew(mxbench_cli, vbench, tmp_path, field):
    fill(vbench)
    clip(tmp_path / "a.mkv")
    arguments = ("score", "a.mkv", "--vbench", "-D", "imaging_quality", "--keep", "k.jsonl")
    assert mxbench_cli(*arguments)[0] == 0
    line = json.loads((tmp_path / "k.jsonl").read_text())
    (line["details"] if field in line["details"] else line).pop(field)
    (tmp_path / "k.jsonl").write_text(json.dumps({"video": line.pop("video", None), **line}) + "\n")
    assert mxbench_cli(*arguments)[0] == 0
    assert len((tmp_path / "ASKED").read_text().splitlines()) == 2


def test_scores_of_another_number_of_threads_are_others(mxbench_cli, program, tmp_path):
    clip(tmp_path / "a.mkv")
    arguments = ("score", "a.mkv", "--vbench", "-D", "imaging_quality", "--keep", "k.jsonl", "--json")
    for number, threads in enumerate((1, 2, 2)):
        program(
            f"say('ready', versions={{}}, device='cpu', threads={threads})\n"
            "for task in job['tasks']: score(task)\nsay('end')\n"
        )
        found = json.loads(mxbench_cli(*arguments)[1])
        assert found["vbench"]["threads"] == threads
        assert len((tmp_path / "k.jsonl").read_text().splitlines()) == min(number + 1, 2)


def test_the_notes_of_a_run_are_the_notes_of_score(mxbench_cli, program, vbench, tmp_path, monkeypatch):
    without_checksums(monkeypatch, "motion_smoothness")
    program("ready()\nfor task in job['tasks']: score(task)\nsay('end')\n")
    os.truncate(vbench / "amt_model/amt-s.pth", 12_027_871)
    clip(tmp_path / "a.mkv")
    arguments = ("score", "a.mkv", *BOTH, "-D", "motion_smoothness")
    code, out, _ = mxbench_cli(*arguments)
    assert code == 0
    said = "".join(out.split())  # a path may be on two lines
    for note in (
        "VBench 0.1.5 on cpu, torch None, torchvision stand-in, 2 threads: means over videos",
        "not the published ones: raft_model/models/raft-things.pth, pyiqa_model/musiq_spaq_ckpt",
        "VBench's weights not verified, no checksum is published: amt_model/amt-s.pth.",
    ):
        assert note.replace(" ", "") in said
    found = json.loads(mxbench_cli(*arguments, "--json")[1])["vbench"]
    assert [note.replace(" ", "") in said for note in found["notes"]] == [True] * 3
    assert found["unverified"] == {"motion_smoothness": ["amt_model/amt-s.pth"]}


def test_both_flickerings_have_columns_of_their_own(mxbench_cli, vbench, tmp_path):
    clips(tmp_path, "a.mkv", "b.mkv")
    arguments = ("score", "a.mkv", "-R", "b.mkv", "-M", "temporal_flickering", "--vbench", "-D", "temporal_flickering")
    found = json.loads(mxbench_cli(*arguments, "--json")[1])
    ours, theirs = found["scores"]["a.mkv"].values()
    assert list(found["means"]) == ["temporal_flickering", "temporal_flickering_vbench"]
    assert (ours["value"] != 0.5, theirs["value"]) == (True, 0.5)
    out = mxbench_cli(*arguments)[1]
    assert "Flicker (unfiltered)" in out
    assert "Flicker (VBench)" in out


@pytest.mark.parametrize("columns", [80, 50])
def test_a_narrow_table_continues_and_nothing_is_cut_off(mxbench_cli, vbench, monkeypatch, tmp_path, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    fill(vbench)
    names = ("[bold]x.mkv", ":smile:.mkv", "new\nline.mkv", "long-" * 9 + "name.mkv")
    clips(tmp_path / "mine", *names)
    code, out, err = mxbench_cli("score", "mine", "--vbench")
    assert code == 0
    table = out.split("·")[0]
    for head in ("Subject", "Background", "Flicker (VBench)", "Motion", "Dynamic", "Aesthetic", "Imaging"):
        assert head in table
    assert table.count("(continued)") >= 1
    assert table.count("clip ") == table.count("(continued)") + 1
    assert "…" not in table
    assert all(len(line) <= columns for line in table.splitlines())
    for name in ("[bold]x.mkv", ":smile:.mkv", "new\N{REPLACEMENT CHARACTER}line.mkv"):
        assert name in table
        assert name in err
    assert table.count("0.5000") == 7 * 5


def test_an_interruption_says_what_is_kept(mxbench_cli, vbench, monkeypatch, tmp_path):
    def interrupted(*_arguments, **_more):
        raise KeyboardInterrupt

    fill(vbench)
    clip(tmp_path / "a.mkv")
    monkeypatch.setattr("mxbench.vbench.worker.score", interrupted)
    code, _, err = mxbench_cli("score", "a.mkv", *BOTH)
    assert (code, err.splitlines()[-1].startswith("mxbench: interrupted; nothing is kept")) == (130, True)
    for keep in (("--keep", "k.jsonl"), ("--keep=k.jsonl",)):
        code, _, err = mxbench_cli("score", "a.mkv", *BOTH, *keep)
        assert code == 130
        assert "what VBench has scored is kept in the file of --keep" in err
