"""The store: what is written is whole or absent."""

import errno
import json
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mxbench.errors import UserError
from mxbench.metrics import Score
from mxbench.models.base import Render
from mxbench.runs import store as store_module
from mxbench.runs.cell import Cell
from mxbench.runs.files import DiskFull, read_json
from mxbench.runs.store import Store


def cell(prompt="p"):
    return Cell({"name": "x"}, {"rules": []}, ("sdpa",), prompt, 0, {"steps": 1}, {"device": "cpu"})


def render(seed=0):
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (5, 18, 34, 3), dtype=np.uint8)
    return Render(frames, rng.normal(size=(4, 2, 2, 2)).astype(np.float32), Fraction(8), 1.0, 0.5, 8, 0)


def test_a_cell_comes_back_exactly(tmp_path):
    store, one, clip = Store(tmp_path / "r", create=True), cell(), render()
    assert store.status(one.id) is None
    store.put(one, clip, {"rendered": "now"}, None)
    assert store.status(one.id).state == "done"
    assert np.array_equal(store.clip(one.id).frames, clip.frames)
    assert store.clip(one.id).fps == 8
    assert store.describe(one.id) == one.describe()
    assert store.cell_ids() == [one.id]


def test_counts_of_calls_stand_in_the_status_and_an_older_one_has_none(tmp_path):
    store = Store(tmp_path, create=True)
    store.put(cell(), replace(render(), nonfinite_calls=3, widened_calls=5), {}, None)
    status = store.status(cell().id)
    assert (status.nonfinite_calls, status.widened_calls) == (3, 5)
    path = tmp_path / "cells" / cell().id / "status.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    del kept["widened_calls"]
    path.write_text(json.dumps(kept), encoding="utf-8")
    status = store.status(cell().id)
    assert (status.state, status.nonfinite_calls, status.widened_calls) == ("done", 3, 0)


def test_ids_are_the_hash_of_the_description():
    assert cell().id == cell().id
    assert cell().id != cell("q").id
    assert cell("é").id != cell("e\u0301").id


def test_equal_renders_give_equal_files(tmp_path):
    for name in ("a", "b"):
        Store(tmp_path / name, create=True).put(cell(), render(), {"rendered": name}, None)
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a" / "cells").rglob("*") if p.is_file())
    assert {p.name for p in files} == {
        "cell.json", "frames.mkv", "latents.safetensors", "preview.mp4", "provenance.json", "status.json",
    }  # fmt: skip
    for path in files:
        if path.name != "provenance.json":
            assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path


def test_a_sick_render_is_kept_as_a_finding(tmp_path):
    store = Store(tmp_path, create=True)
    store.put(cell(), render(), {}, "black frames from frame 2")
    assert store.status(cell().id).reason == "black frames from frame 2"
    store.put_failed(cell("q"), "NaN from step 1", {})
    assert store.status(cell("q").id).state == "failed"


def test_scores_are_keyed_by_version_and_reference(tmp_path):
    store = Store(tmp_path, create=True)
    store.put(cell(), render(), {}, None)
    store.put_score(cell().id, "psnr", 1, "ref1", Score(30.0, (float("inf"), 30.0)))
    assert store.score(cell().id, "psnr", 1, "ref1").per_frame == (float("inf"), 30.0)
    assert store.score(cell().id, "psnr", 2, "ref1") is None
    assert store.score(cell().id, "psnr", 1, "ref2") is None
    path = next((tmp_path / "cells" / cell().id / "scores").iterdir())
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    path.write_text("{torn")
    assert store.score(cell().id, "psnr", 1, "ref1") is None


def test_a_damaged_cell_counts_as_none_and_is_replaced(tmp_path):
    store = Store(tmp_path, create=True)
    store.put(cell(), render(), {}, None)
    (tmp_path / "cells" / cell().id / "status.json").write_text("{")
    assert store.status(cell().id) is None
    store.put(cell(), render(), {}, None)
    assert store.status(cell().id).state == "done"
    (tmp_path / "cells" / cell().id / "frames.mkv").unlink()
    assert store.status(cell().id) is None


@pytest.mark.parametrize("where", ["write_lossless", "write_preview", "replace_folder", "_write_json"])
def test_a_full_disk_costs_nothing_that_was_finished(tmp_path, monkeypatch, where):
    store = Store(tmp_path, create=True)
    store.put(cell("finished"), render(), {}, None)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store_module, where, full)
        with pytest.raises((DiskFull, OSError)) as error:
            store.put(cell("next"), render(1), {}, None)
    if where != "replace_folder":
        assert "free some space" in str(error.value)
    assert store.status(cell("finished").id).state == "done"
    assert store.status(cell("next").id) is None
    assert [p.name for p in next((tmp_path / ".tmp").iterdir()).iterdir()] == ["lock"]
    store.put(cell("next"), render(1), {}, None)
    assert store.status(cell("next").id).state == "done"


def test_folders_that_cannot_hold_results_are_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for create in (True, False):
        with pytest.raises(UserError, match="file"):
            Store(file, create=create)
    with pytest.raises(UserError, match="file"):
        Store(file / "below", create=True)
    with pytest.raises(UserError, match="there is no results folder"):
        Store(tmp_path / "none")
    with pytest.raises(UserError, match="holds no results"):
        Store(tmp_path)


def test_a_folder_without_permission_is_named(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UserError, match="permission denied"):
        Store(tmp_path, create=True)


def test_what_a_dead_process_left_is_swept_and_what_a_living_one_has_is_not(tmp_path):
    living = Store(tmp_path, create=True)
    dead = tmp_path / ".tmp" / "dead"
    dead.mkdir()
    (dead / "half.mkv").write_bytes(b"x")
    Store(tmp_path, create=True)
    assert not dead.exists()
    assert living._scratch.folder.is_dir()


def test_provenance_grows_and_survives_a_torn_file(tmp_path):
    store = Store(tmp_path, create=True)
    store.append_provenance({"n": 1})
    store.append_provenance({"n": 2})
    assert read_json(tmp_path / "provenance.json") == {"runs": [{"n": 1}, {"n": 2}]}
    (tmp_path / "provenance.json").write_text("{")
    store.append_provenance({"n": 3})
    assert read_json(tmp_path / "provenance.json") == {"runs": [{"n": 3}]}


@pytest.mark.slow
def test_a_crash_at_every_write_and_the_report_is_the_same(tmp_path):
    """Every write, rename, link and removal in the results folder, one after another."""
    driver = Path(__file__).parents[1] / "support" / "crash_driver.py"
    done = subprocess.run([sys.executable, str(driver), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["writes"] > 50
