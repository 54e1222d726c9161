"""``mxbench vbench``, VBench's columns of a run, and ``mxbench score --vbench``; by workers that stand in."""

import json
import os
import sys

import pytest
from cli_checks import clip, error, one_line
from vbench_files import fill, without_checksums

from mxbench.runs.compare import column_of
from mxbench.vbench import home
from mxbench.vbench.dimensions import DIMENSIONS


def asked(tmp_path):
    path = tmp_path / "ASKED"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


RUN = ("run", "-a", "mxfp4", "-n", "1", "-o", "out", "-M", "psnr", "-M", "imaging_quality", "-M", "subject_consistency")


def test_a_run_whose_columns_lack_weights_is_refused_before_it_renders(
    mxbench_cli, fake_model, vbench, tmp_path, monkeypatch
):
    code, _, err = mxbench_cli(*RUN)
    assert code == 2
    one_line(code, err, "pyiqa_model/musiq_spaq_ckpt-358bb6af.pth (109 MB, from https://", "--allow-unscored")
    assert fake_model.rendered == []
    assert not (tmp_path / "out").exists()
    code, out, _ = mxbench_cli(*RUN, "--dry-run")
    assert code == 0
    assert "VBench: subject_consistency, imaging_quality cannot be scored without 5 files: " in out
    assert "left unscored" in mxbench_cli(*RUN, "--dry-run", "--allow-unscored")[1]
    fill(vbench)
    monkeypatch.setenv("MXBENCH_VBENCH_PYTHON", str(tmp_path / "gone"))
    assert f"there is no interpreter {tmp_path / 'gone'}" in mxbench_cli(*RUN, "--dry-run")[1]


def test_unscored_is_allowed_said_and_scored_once_the_weights_are_there(mxbench_cli, fake_model, vbench, tmp_path):
    code, out, _ = mxbench_cli(*RUN, "--allow-unscored", "-q")
    assert code == 0
    assert "unscored: VBench lacks" in " ".join(out.split())
    fill(vbench)
    fake_model.rendered.clear()
    code, out, _ = mxbench_cli(*RUN, "-q")
    assert code == 0
    said = " ".join(out.split())
    assert "VBench 0.1.5 on cpu" in said
    assert "cpu, torch None, torchvision None, 1 thread: " in said
    others = [file.path for name in ("subject_consistency", "imaging_quality") for file in DIMENSIONS[name].files]
    for path in others:
        assert path in said.split("not the published ones: ")[1].split(". These scores are no VBench scores.")[0]
    assert fake_model.rendered == []
    assert out.count("0.5000") == 6  # 50 of a hundred too
    assert len(asked(tmp_path)) == 6
    assert mxbench_cli(*RUN, "-q")[0] == 0
    assert asked(tmp_path) == []  # kept


def test_other_weights_are_other_scores(mxbench_cli, fake_model, vbench, tmp_path):
    fill(vbench)
    assert mxbench_cli(*RUN, "-q")[0] == 0
    asked(tmp_path)
    (vbench / "pyiqa_model/musiq_spaq_ckpt-358bb6af.pth").write_bytes(b"others")
    assert mxbench_cli(*RUN, "-q")[0] == 0
    assert {line.split()[0] for line in asked(tmp_path)} == {"imaging_quality"}
    runs = json.loads((tmp_path / "out/provenance.json").read_text())["runs"]
    assert runs[-1]["vbench"]["versions"] == {"vbench": "0.1.5"}
    assert len(runs[-1]["vbench"]["sha256"]["imaging_quality"]["pyiqa_model/musiq_spaq_ckpt-358bb6af.pth"]) == 64


def test_a_package_that_does_not_start_is_refused_too(mxbench_cli, fake_model, vbench, tmp_path):
    fill(vbench)
    (tmp_path / "worker.py").write_text("raise ImportError('no vbench here')")
    one_line(*error(mxbench_cli(*RUN)), "no vbench here", "--allow-unscored")
    code, out, _ = mxbench_cli(*RUN, "-q", "--allow-unscored")
    assert code == 0
    assert "no vbench here" in " ".join(out.split())


def test_a_full_disk_keeps_what_was_scored(mxbench_cli, fake_model, vbench, monkeypatch, tmp_path):
    from mxbench.runs.files import DiskFull
    from mxbench.runs.store import Store

    fill(vbench)
    put, calls = Store.put_score, []

    def full(self, cell, metric, *rest):
        calls.append(metric)
        if calls.count("imaging_quality") == 2:
            raise DiskFull(tmp_path)
        put(self, cell, metric, *rest)

    monkeypatch.setattr(Store, "put_score", full)
    code, _, err = mxbench_cli(*RUN, "-q")
    assert code == 1
    assert "the disk is full" in err
    monkeypatch.setattr(Store, "put_score", put)
    asked(tmp_path)
    assert mxbench_cli(*RUN, "-q")[0] == 0
    assert len(asked(tmp_path)) == 1


def test_a_start_that_dies_or_says_it_cannot_leaves_the_report(mxbench_cli, fake_model, vbench, tmp_path):
    fill(vbench)
    begin = (tmp_path / "worker.py").read_text().split("for dimension")[0]
    count = "open('STARTS', 'a').write('x')\nn = len(open('STARTS').read())\n"
    (tmp_path / "worker.py").write_text(f"import os\n{count}if n > 1: os._exit(3)\n{begin}say('end')\n")
    code, out, err = mxbench_cli(*RUN, "-q")
    assert code == 1
    assert "unscored: VBench: the worker of VBench ended with code 3" in " ".join(out.split())
    assert "Written: " in err
    (tmp_path / "STARTS").unlink()
    wrong = "if n > 1:\n    say('wrong', reason='of its own')\n    sys.exit()\n"
    (tmp_path / "worker.py").write_text(f"{count}{begin}{wrong}say('end')\n")
    code, out, err = mxbench_cli(*RUN, "-q")
    assert code == 1
    assert "of its own; run `mxbench vbench setup`" in err.splitlines()[-1]
    assert "Written: " in err
    assert (tmp_path / "out/report.md").is_file()


def test_videos_of_any_engine_are_scored_and_kept(mxbench_cli, vbench, tmp_path):
    fill(vbench)
    for noise, name in enumerate(("a.mp4", "it's .. é.mkv", "bad.mp4")):
        clip(tmp_path / "mine" / name, noise=40 * noise)
    code, out, _ = mxbench_cli("score", "mine", "--vbench", "--keep", "kept.jsonl", "--json")
    found = json.loads(out)
    assert code == 1
    assert set(found["scores"]) == {"a.mp4", "it's .. é.mkv", "bad.mp4"}
    columns = [column_of(name) for name in DIMENSIONS]
    assert {name: found["scores"]["a.mp4"][name]["value"] for name in columns} == dict.fromkeys(columns, 0.5)
    assert "cannot be read" in found["scores"]["bad.mp4"]["imaging_quality"]["unscored"]
    assert found["vbench"]["package_totals"]["imaging_quality"] == 0.5
    assert {"video": "a.mp4", "dimension": "imaging_quality", "seconds": 0.5, "memory": 9, "device_memory": 0} in found[
        "vbench"
    ]["costs"]
    assert len(asked(tmp_path)) == 21
    code, out, _ = mxbench_cli("score", "mine", "--vbench", "--keep", "kept.jsonl", "--vbench-workers", 3)
    assert len(asked(tmp_path)) == 7  # of the bad one
    assert "unscored" in out
    assert "the package's own total would be 0.5000" in out
    (tmp_path / "kept.jsonl").write_text((tmp_path / "kept.jsonl").read_text()[:-40])  # a line that was torn
    mxbench_cli("score", "mine", "--vbench", "--keep", "kept.jsonl")
    assert len(asked(tmp_path)) == 8


def test_a_line_torn_by_the_end_of_a_process_costs_itself_alone(mxbench_cli, vbench, tmp_path):
    fill(vbench)
    clip(tmp_path / "a.mp4")
    arguments = ("score", "a.mp4", "--vbench", "-D", "imaging_quality", "-D", "dynamic_degree", "--keep", "kept.jsonl")
    mxbench_cli(*arguments)
    whole = (tmp_path / "kept.jsonl").read_text()
    (tmp_path / "kept.jsonl").write_text(whole[:-20])
    asked(tmp_path)
    for again in (1, 0):
        assert mxbench_cli(*arguments)[0] == 0
        assert len(asked(tmp_path)) == again


def test_a_file_of_kept_scores_that_cannot_be_written_is_one_line(mxbench_cli, vbench, tmp_path):
    fill(vbench)
    clip(tmp_path / "a.mp4")
    (tmp_path / "notes.md").write_text("# Notes\n")
    code, _, err = mxbench_cli("score", "a.mp4", "--vbench", "--keep", "notes.md")
    assert (code, (tmp_path / "notes.md").read_text()) == (2, "# Notes\n")
    assert "holds something else than kept scores" in err
    for name in ("no/folder.jsonl", "."):
        code, _, err = mxbench_cli("score", "a.mp4", "--vbench", "--keep", name)
        assert code == 2
        assert "cannot be written" in err.splitlines()[-1]


def test_references_and_vbench_stand_in_one_table(mxbench_cli, vbench, tmp_path):
    fill(vbench)
    clip(tmp_path / "mine/a.mp4", noise=9)
    clip(tmp_path / "ref/a.mp4")
    code, out, _ = mxbench_cli("score", "mine", "-R", "ref", "-M", "psnr", "--vbench", "-D", "dynamic_degree", "--json")
    assert code == 0
    assert list(json.loads(out)["scores"]["a"]) == ["psnr", "dynamic_degree"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("score", "a.mp4"), "--vbench, which needs none"),
        (("score", "a.mp4", "-D", "dynamic_degree"), "pass --vbench too"),
        (("score", "a.mp4", "--vbench", "-M", "psnr"), "need a reference"),
        (("score", "a.mp4", "--vbench", "-D", "dynamic"), "did you mean dynamic_degree"),
        (("score", "no.mp4", "--vbench"), "no video or folder"),
        (("score", "a.mp4", "--vbench", "--vbench-workers", "0"), "scores nothing"),
        (("score", "a.mp4", "--vbench", "--vbench-limit", "0"), "leaves no time"),
        (("score", "a.mp4", "--vbench", "--vbench-python", "none"), "there is no interpreter none"),
        (("score", "a.mp4", "--vbench", "--vbench-device", "tpu"), "knows no device tpu"),
        (("score", "a.mp4", "--vbench", "--vbench-limit", "nan"), "leaves no time"),
        (("vbench", "check", "-d", "cuda:x"), "knows no device cuda:x"),
        (("vbench", "check", "--vbench-python", "none"), "there is no interpreter none"),
        (("vbench", "setup", "--weights", "none"), "there is no folder none"),
        (("vbench", "setup", "--weights", ".", "--no-weights"), "contradict"),
        (("vbench", "setup", "-D", "dynamic"), "did you mean dynamic_degree"),
    ],
)
def test_what_is_wrong_is_one_line(mxbench_cli, vbench, tmp_path, arguments, said):
    fill(vbench)
    clip(tmp_path / "a.mp4")
    one_line(*error(mxbench_cli(*arguments)), said)


def test_an_environment_where_a_file_is_cannot_be_made(mxbench_cli, vbench, tmp_path):
    (tmp_path / "file").write_text("a file")
    code, _, err = mxbench_cli("vbench", "setup", "--venv", "file")
    assert (code, "Traceback" in err) == (2, False)
    assert "cannot be made: " in err.splitlines()[-1]


def test_check_says_what_is_ready(mxbench_cli, vbench):
    fill(vbench, ["imaging_quality"])
    code, out, _ = mxbench_cli("vbench", "check")
    assert code == 1
    assert "imaging_quality: ready, but not with the published pyiqa_model/" in out
    assert "aesthetic_quality: lacks clip_model/ViT-L-14.pt (932 MB, from https://" in out
    fill(vbench)
    code, out, _ = mxbench_cli("vbench", "check", "--json")
    assert code == 0
    assert json.loads(out)["dimensions"] == {name: [] for name in DIMENSIONS}


def test_check_says_what_is_not_verified(mxbench_cli, vbench, monkeypatch):
    without_checksums(monkeypatch, "motion_smoothness")
    fill(vbench)
    os.truncate(vbench / "amt_model/amt-s.pth", 12_027_871)
    _, out, _ = mxbench_cli("vbench", "check")
    assert "motion_smoothness: ready; not verified, no checksum is published: amt_model/amt-s.pth" in out
    found = json.loads(mxbench_cli("vbench", "check", "--json")[1])
    assert found["unverified"]["motion_smoothness"] == ["amt_model/amt-s.pth"]
    assert found["unpublished"]["dynamic_degree"] == ["raft_model/models/raft-things.pth"]
    assert found["threads"] == 1


def test_setup_is_remembered_and_what_is_gone_is_said(mxbench_cli, vbench, monkeypatch, tmp_path):
    monkeypatch.setattr("mxbench.vbench.install._pip", lambda *_arguments: None)
    monkeypatch.delenv("MXBENCH_VBENCH_PYTHON")
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "python").rename(tmp_path / "venv/bin/python")
    fill(vbench)
    clip(tmp_path / "a.mkv")
    score = ("score", "a.mkv", "--vbench", "-D", "dynamic_degree")
    assert mxbench_cli("vbench", "setup", "--venv", "venv", "--no-weights")[0] == 0
    assert mxbench_cli(*score)[0] == 0
    (tmp_path / "venv/bin/python").unlink()
    one_line(*error(mxbench_cli(*score)), "venv/bin/python, for which", "is gone; run `mxbench vbench setup` again")
    code, out, _ = mxbench_cli(*score, "--allow-unscored")
    assert (code, "is gone" in out) == (0, True)
    code, out, _ = mxbench_cli("list", "metrics", "--json")
    assert code == 0
    assert "is gone" in next(each for each in json.loads(out) if each["name"] == "dynamic_degree")["here"]
    code, out, _ = mxbench_cli("doctor", "--json")
    assert "is gone" in out
    assert mxbench_cli("vbench", "setup", "--no-weights")[0] == 0
    assert home.interpreter() == sys.executable


def test_setup_takes_weights_from_a_folder_and_says_their_terms(mxbench_cli, vbench, monkeypatch, tmp_path):
    monkeypatch.setattr("mxbench.vbench.install._pip", lambda *_arguments: None)
    (tmp_path / "usb").mkdir()
    (tmp_path / "usb/amt-s.pth").write_bytes(b"weights")
    code, out, _ = mxbench_cli("vbench", "setup", "--weights", "usb", "-D", "motion_smoothness")
    assert code == 1
    assert "SHA-256" in out
    without_checksums(monkeypatch, "motion_smoothness")
    code, out, _ = mxbench_cli("vbench", "setup", "--weights", "usb", "-D", "motion_smoothness")
    assert code == 1
    terms = "(12 MB; CC BY-NC-SA 4.0, as its page on the hub: not for commercial use)"
    assert f"wrong: amt_model/amt-s.pth {terms}: what came has 7 bytes" in out
    os.truncate(tmp_path / "usb/amt-s.pth", 12_027_871)
    code, out, _ = mxbench_cli("vbench", "setup", "--weights", "usb", "-D", "motion_smoothness")
    assert code == 0
    copied = f"copied: amt_model/amt-s.pth {terms}"
    assert f"{copied} (not verified, no checksum is published)" in out
    code, out, err = mxbench_cli("vbench", "setup", "--weights", "usb", "-D", "imaging_quality")
    assert code == 1
    assert "missing: pyiqa_model/musiq_spaq_ckpt-358bb6af.pth" in out
    assert "1 of 1 files are missing" in err
