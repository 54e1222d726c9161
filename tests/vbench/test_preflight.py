"""What is missing is said before anything starts; files are brought, and checked before they count."""

from __future__ import annotations

import hashlib
import http.server
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from vbench_files import fill

from mxbench.errors import UserError
from mxbench.vbench import home, weights
from mxbench.vbench.dimensions import DIMENSIONS, File
from mxbench.vbench.install import install
from mxbench.vbench.preflight import lacking, reason, refusal
from mxbench.vbench.verify import look, sha256_of
from mxbench.vbench.weights import bring


def test_the_files_of_a_dimension_are_named_with_place_size_and_source(tmp_path):
    missing = lacking(["imaging_quality", "temporal_flickering"], tmp_path)
    assert list(missing) == ["imaging_quality"]
    said = str(refusal(missing, tmp_path))
    path = tmp_path / "pyiqa_model/musiq_spaq_ckpt-358bb6af.pth"
    for word in (str(path), "109 MB", "https://github.com/chaofengc", "--allow-unscored", "mxbench vbench setup"):
        assert word in said
    assert len(said.splitlines()) == 1
    code = tmp_path / "dino_model/dino_vitbase16_pretrain.pth"
    assert reason("subject_consistency", tmp_path).startswith(f"VBench lacks {code} (343 MB) and 3 more: ")
    assert reason("imaging_quality", tmp_path) == f"VBench lacks {path} (109 MB): `mxbench vbench setup`"
    fill(tmp_path)
    assert lacking(DIMENSIONS, tmp_path) == {}
    path.write_bytes(b"")  # as a download that broke off leaves it
    assert list(lacking(DIMENSIONS, tmp_path)) == ["imaging_quality"]
    with pytest.raises(UserError, match="did you mean imaging_quality"):
        lacking(["imaging"], tmp_path)


def served(monkeypatch, tmp_path, content, size=7, **fields):
    """A dimension of one file, which a local file stands for the source of."""
    source = tmp_path / "source"
    source.write_bytes(content)
    file = File("some/file.pth", size, source.as_uri(), "MIT", **fields)
    monkeypatch.setitem(DIMENSIONS, "aesthetic_quality", replace(DIMENSIONS["aesthetic_quality"], files=(file,)))
    return file


def test_files_are_fetched_verified_and_left_where_they_are(monkeypatch, tmp_path):
    digest = hashlib.sha256(b"weights").hexdigest()
    served(monkeypatch, tmp_path, b"weights", sha256=digest)
    cache = tmp_path / "cache"
    assert [one.how for one in bring(["aesthetic_quality"], cache)] == ["fetched"]
    assert (cache / "some/file.pth").read_bytes() == b"weights"
    assert [one.how for one in bring(["aesthetic_quality"], cache)] == ["there"]
    (cache / "some/file.pth").write_bytes(b"others")
    (found,) = bring(["aesthetic_quality"], cache)
    assert found.how == "wrong"
    assert "delete it" in found.reason


def test_what_is_not_what_its_authors_published_does_not_count(monkeypatch, tmp_path):
    served(monkeypatch, tmp_path, b"weights", sha256="0" * 64)
    (found,) = bring(["aesthetic_quality"], tmp_path / "cache")
    assert (found.how, found.good) == ("wrong", False)
    assert "SHA-256" in found.reason
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("content", [b"weight", b"<html>no such page</html>", b""])
def test_a_file_of_another_size_does_not_count(monkeypatch, tmp_path, content):
    served(monkeypatch, tmp_path, content)
    (found,) = bring(["aesthetic_quality"], tmp_path / "cache")
    assert (found.how, found.reason) == (
        "wrong",
        f"what came has {len(content)} bytes where about 7 bytes are expected",
    )
    (tmp_path / "usb").mkdir()
    (tmp_path / "usb/file.pth").write_bytes(content)
    assert bring(["aesthetic_quality"], tmp_path / "cache", tmp_path / "usb")[0].how == "wrong"
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


class _Server(http.server.BaseHTTPRequestHandler):
    """Answers as its path says."""

    def do_GET(self):
        if "status" in self.path:
            self.wfile.write(b"nonsense\r\n\r\n")
            return
        self.send_response(200)
        if "chunked" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"FF\r\nshort")
            return
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"weigh" if "short" in self.path else b"weights")

    def log_message(self, *_arguments):
        pass


@pytest.mark.parametrize("member", [None, "some/member"])
@pytest.mark.parametrize("path", ["short", "chunked", "status"])
def test_a_download_that_breaks_off_is_one_line(monkeypatch, tmp_path, path, member):
    file = served(monkeypatch, tmp_path, b"", size=5, member=member)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        threading.Thread(target=server.serve_forever).start()
        there = replace(file, source=f"http://127.0.0.1:{server.server_port}/{path}")
        monkeypatch.setitem(DIMENSIONS, "aesthetic_quality", replace(DIMENSIONS["aesthetic_quality"], files=(there,)))
        (found,) = bring(["aesthetic_quality"], tmp_path / "cache")
        server.shutdown()
    assert found.how == "missing"
    assert "could not be fetched (" in found.reason
    assert "\n" not in found.reason
    assert ("broke off after 5 of 7 bytes" in found.reason) == (path == "short")


@pytest.mark.parametrize(("size", "good"), [(89, False), (90, True), (110, True), (111, False), (200, False)])
def test_a_file_without_a_checksum_is_known_by_its_size_alone(monkeypatch, tmp_path, size, good):
    file = served(monkeypatch, tmp_path, b"", size=100)
    (tmp_path / file.path).parent.mkdir()
    (tmp_path / file.path).write_bytes(b"w" * size)
    found = look("aesthetic_quality", tmp_path)
    assert (found.unpublished, found.unverified) == (((), (file.path,)) if good else ((file.path,), ()))


def test_a_file_of_weights_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        sha256_of(tmp_path)


def test_a_file_with_a_checksum_is_known_by_it(monkeypatch, tmp_path):
    file = served(monkeypatch, tmp_path, b"", sha256=hashlib.sha256(b"weights").hexdigest())
    (tmp_path / file.path).parent.mkdir()
    (tmp_path / file.path).write_bytes(b"weights")
    found = look("aesthetic_quality", tmp_path)
    assert (found.unpublished, found.unverified) == ((), ())
    (tmp_path / file.path).write_bytes(b"Weights")
    assert look("aesthetic_quality", tmp_path).unpublished == (file.path,)


def test_a_member_of_an_archive(monkeypatch, tmp_path):
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("models/inside.pth", b"inside")
    served(monkeypatch, tmp_path, (tmp_path / "archive").read_bytes(), size=6, member="models/inside.pth")
    assert [one.how for one in bring(["aesthetic_quality"], tmp_path / "cache")] == ["fetched"]
    assert (tmp_path / "cache/some/file.pth").read_bytes() == b"inside"
    served(monkeypatch, tmp_path, b"no archive", member="models/inside.pth")
    (found,) = bring(["aesthetic_quality"], tmp_path / "other")
    assert "could not be fetched" in found.reason


@pytest.mark.parametrize("name", ["some/file.pth", "file.pth"])
def test_files_brought_by_hand(monkeypatch, tmp_path, name):
    served(monkeypatch, tmp_path, b"weights")
    by_hand = tmp_path / "usb"
    (by_hand / name).parent.mkdir(parents=True)
    assert "it is not in" in bring(["aesthetic_quality"], tmp_path / "cache", by_hand)[0].reason
    (by_hand / name).write_bytes(b"brought")
    assert [one.how for one in bring(["aesthetic_quality"], tmp_path / "cache", by_hand)] == ["copied"]
    assert (tmp_path / "cache/some/file.pth").read_bytes() == b"brought"


def test_no_network_is_said_of_each_file(monkeypatch, tmp_path):
    file = served(monkeypatch, tmp_path, b"weights")
    gone = replace(file, source="http://127.0.0.1:9/file.pth")
    monkeypatch.setitem(DIMENSIONS, "aesthetic_quality", replace(DIMENSIONS["aesthetic_quality"], files=(gone,)))
    (found,) = bring(["aesthetic_quality"], tmp_path / "cache")
    assert "could not be fetched" in found.reason


def test_a_cache_that_cannot_be_written_is_one_line(monkeypatch, tmp_path):
    served(monkeypatch, tmp_path, b"weights")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match="VBENCH_CACHE_DIR"):
        bring(["aesthetic_quality"], tmp_path / "cache")


def test_a_full_disk_leaves_nothing_half_written(monkeypatch, tmp_path):
    served(monkeypatch, tmp_path, b"weights")

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights.shutil, "copyfileobj", full)
    with pytest.raises(UserError, match="No space left on device"):
        bring(["aesthetic_quality"], tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_the_interpreter_is_the_one_named_then_the_environment_s_then_the_one_set_up(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(home.PYTHON_VARIABLE, raising=False)
    assert home.interpreter() == sys.executable
    made = tmp_path / "made"
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    home.remember(made)
    assert home.interpreter() == str(made)
    monkeypatch.setenv(home.PYTHON_VARIABLE, sys.executable)
    assert home.interpreter() == sys.executable
    assert home.interpreter(str(made)) == str(made)
    with pytest.raises(UserError, match="there is no interpreter /no/such"):
        home.interpreter("/no/such")
    monkeypatch.setenv(home.PYTHON_VARIABLE, "")
    assert home.interpreter() == str(made)
    made.unlink()  # an environment that was deleted
    for gone in (lambda: None, lambda: (tmp_path / "config/mxbench/vbench.json").write_text("torn")):
        gone()
        with pytest.raises(UserError, match="run `mxbench vbench setup` again"):
            home.interpreter()
    home.remember(Path(sys.executable))
    assert home.interpreter() == sys.executable


def test_a_folder_of_settings_that_is_a_file_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "config").write_text("a file")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(home.PYTHON_VARIABLE, raising=False)
    home.remember(Path(sys.executable))  # which is taken anyway
    assert home.interpreter() == sys.executable
    with pytest.raises(UserError, match=r"cannot be written: .*; set XDG_CONFIG_HOME"):
        home.remember(tmp_path / "python")


def test_an_environment_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(UserError, match=r"cannot be made: .*; name another folder with --venv"):
        install(tmp_path / "file")
    (tmp_path / "not/bin").mkdir(parents=True)
    (tmp_path / "not/bin/python").write_text("no program")
    with pytest.raises(UserError, match="cannot be started"):
        install(tmp_path / "not")
