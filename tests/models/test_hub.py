"""The hub's cache, whole or not, downloads, and a hub that says no."""

import errno
import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import HfApi, constants, errors
from huggingface_hub.utils import close_session
from saved_pipelines import (
    COMMIT,
    HUB,
    ID,
    SHARDS,
    VAE,
    cached,
    closed,
    refused,
    state,
    write,
)

from mxbench.models.pipeline_folder import fingerprint, size
from mxbench.models.pretrained import locate
from mxbench.models.source import Located, Source


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_whole_cache_serves_without_network_and_is_not_written(folder, hub, monkeypatch, revision):
    snapshot = cached(folder, hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", lambda *_args, **_kwargs: pytest.fail("the network was asked"))
    with closed(hub):
        before = state(hub)
        assert locate(Source("hub", ID, revision)) == Located(snapshot, COMMIT)
        assert size(snapshot) == size(folder)
        assert state(hub) == before


def test_the_cache_is_found_by_its_environment(folder, tmp_path):
    """In a process of its own, since huggingface_hub reads the environment when it is imported."""
    code = (
        "import sys; from mxbench.models.pretrained import locate; from mxbench.models.source import Source\n"
        f"print(locate(Source('hub', {ID!r})).path)\n"
        "try: locate(Source('hub', 'acme/other'))\n"
        "except Exception as error: print(error)"
    )
    for name, hub in [("HF_HOME", tmp_path / "a/hub"), ("HF_HUB_CACHE", tmp_path / "b")]:
        snapshot = cached(folder, hub)
        env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {"HF_HUB_OFFLINE": "1"}
        env[name] = str(hub.parent if name == "HF_HOME" else hub)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        found, said = done.stdout.splitlines()
        assert found == str(snapshot)
        assert said.startswith(
            f"acme/other is not in the cache {hub}, and HF_HUB_OFFLINE is set; unset it, or run `hf "
        )


@pytest.mark.parametrize(
    ("without", "tree", "said"),
    [
        (SHARDS[1:], False, f"lacks 2 files, the first {SHARDS[1]}"),
        ([VAE], False, f"lacks {VAE}"),
        (["tokenizer/tokenizer.json", "README.md"], True, "lacks tokenizer/tokenizer.json"),
        (["model_index.json"], True, f"{ID} is not in the cache"),
    ],
)
def test_a_cache_that_is_not_whole_says_what_it_lacks(folder, hub, without, tree, said):
    cached(folder, hub, without, tree)
    bring = f"hf download {ID} --local-dir FOLDER"
    with refused(said, str(hub), "HF_HUB_OFFLINE is set", bring, "--weights FOLDER"):
        locate(HUB)


def test_a_blob_that_was_cut_short_is_named_behind_its_link(folder, hub):
    file = cached(folder, hub) / VAE
    os.truncate(file, 5000)
    with refused(f"{file} is no whole safetensors file", f"delete {hub}/models--acme--video/blobs/"):
        locate(HUB)


def test_broken_links_and_other_revisions_are_missing(folder, hub):
    snapshot = cached(folder, hub)
    (snapshot / VAE).resolve().unlink()
    with refused(f"lacks {VAE}"):
        locate(HUB)
    with refused(f"revision v2 of {ID} is not in the cache {hub}, which has main", f"hf download {ID} --revision v2 "):
        locate(Source("hub", ID, "v2"))


def http(kind, status=404, **more):
    """A real error of huggingface_hub, or of the HTTP library below it."""
    library = importlib.import_module(errors.HfHubHTTPError.__init__.__globals__["Response"].__module__.split(".")[0])
    request = library.Request("GET", f"https://huggingface.co/api/models/{ID}")
    if hasattr(library, kind):
        return getattr(library, kind)("no way\nto host", request=request)
    return getattr(errors, kind)("an error\n\nof lines", response=library.Response(status, request=request), **more)


def chained(outer, inner):
    outer.__cause__ = inner
    return outer


OFFLINE = [f"{ID} is not in the cache", "no network", f"hf download {ID} ", "--weights FOLDER"]
FULL, CLOSED = ["the disk of the cache", "is full", "HF_HOME"], ["cache cannot be written", "set HF_HOME to a folder"]
SAID = {
    "no repository": (http("RepositoryNotFoundError", 401), [f"the hub shows no {ID}", "hf auth login"]),
    "gated": (http("GatedRepoError", 403), [f"accept its licence at https://huggingface.co/{ID}", "`hf auth login`"]),
    "no revision": (http("RevisionNotFoundError"), [f"{ID} has no revision v9", f"https://huggingface.co/{ID}/commits"]),
    "refused": (http("ConnectError"), OFFLINE),
    "slow": (http("ReadTimeout"), OFFLINE),
    "proxy": (http("ProxyError"), OFFLINE),
    "reset": (ConnectionResetError(errno.ECONNRESET, "reset"), OFFLINE),
    "timeout": (TimeoutError("timed out"), OFFLINE),
    "offline": (errors.OfflineModeIsEnabled("offline\nmode"), OFFLINE),
    "no entry": (errors.LocalEntryNotFoundError("not\nfound"), OFFLINE),
    "no entry, no network": (chained(errors.LocalEntryNotFoundError("x"), http("ConnectTimeout")), OFFLINE),
    "no way out": (chained(http("ConnectError"), PermissionError(errno.EACCES, "denied")), OFFLINE),
    "hub is down": (chained(errors.LocalEntryNotFoundError("x"), http("HfHubHTTPError", 503)), ["an error of lines"]),
    "full": (OSError(errno.ENOSPC, "No space left on device"), FULL),
    "quota": (OSError(errno.EDQUOT, "Disk quota exceeded"), FULL),
    "full, by xet": (RuntimeError("Data processing error: No space left on device (os error 28)"), FULL),
    "read-only": (OSError(errno.EROFS, "Read-only file system"), CLOSED),
    "closed": (PermissionError(errno.EACCES, "Permission denied"), CLOSED),
    "broken disk": (OSError(errno.EIO, "Input/output error"), ["could not be downloaded", "Input/output error"]),
}  # fmt: skip


@pytest.mark.parametrize(("error", "said"), SAID.values(), ids=SAID)
def test_a_download_that_fails_is_one_line_with_what_to_do(hub, monkeypatch, error, said):
    def failing(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", failing)
    with refused(*said) as caught:
        locate(Source("hub", ID, "v9"))
    assert caught.value.__cause__ is error
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    if said is CLOSED:  # HF_HOME alone would change nothing
        with refused("unset HF_HUB_CACHE"):
            locate(HUB)


def test_a_mistake_in_the_code_keeps_its_traceback(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", lambda *_args, **_kwargs: {}["x"])
    with pytest.raises(KeyError):
        locate(HUB)


@pytest.fixture
def server(folder, hub, monkeypatch):
    """A hub on this machine that serves the folder; ``told`` maps a part of a path to the error it answers with."""
    told, asked = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
            head = {"X-Repo-Commit": COMMIT}
            status, body = 200, b""
            code = next((code for part, code in told.items() if part in self.path), None)
            if code is not None:
                status, head = 403, {"X-Error-Code": code}
            elif "/tree/" in self.path:
                files = [{"type": "file", "path": n, "size": (folder / n).stat().st_size, "oid": "0"} for n in names]
                body = json.dumps(files).encode()
            elif "/api/" in self.path:
                body = json.dumps({"id": ID, "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]}).encode()
            else:
                name = self.path.partition(f"/resolve/{COMMIT}/")[2]
                body, head["ETag"] = (folder / name).read_bytes(), f'"{names.index(name):040x}"'
            self.send_response(status)
            for key, value in {**head, "Content-Length": len(body), "Connection": "close"}.items():
                self.send_header(key, str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - as the server looks it up

        def log_message(self, *_args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        endpoint = f"http://127.0.0.1:{running.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        close_session()
        yield told, asked
        close_session()
        running.shutdown()
        thread.join()


def test_what_is_not_in_the_cache_is_downloaded_once(folder, hub, server, monkeypatch):
    _, asked = server
    write(folder / "vae/pytorch_model.bin", "never read")
    write(folder / "assets/demo.json", "of no component")
    located = locate(HUB, ignore=["*.model"])
    assert located == Located(hub / f"models--acme--video/snapshots/{COMMIT}", COMMIT)
    got = {p.relative_to(located.path).as_posix() for p in located.path.rglob("*") if p.is_file()}
    wanted = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    unread = {"README.md", ".gitattributes", "vae/pytorch_model.bin", "assets/demo.json", "tokenizer/spiece.model"}
    assert got == wanted - unread
    count = len(asked)
    assert locate(HUB, ignore=["*.model"]) == located
    assert len(asked) == count
    locate(HUB)
    assert fingerprint(located.path) == fingerprint(folder)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert locate(HUB) == locate(Source("hub", ID, COMMIT)) == located


def test_a_download_completes_what_the_cache_began(folder, hub, server):
    _, asked = server
    cached(folder, hub, without=[SHARDS[2], VAE])
    locate(HUB)
    assert {name for name in (SHARDS[2], VAE) if any(name in path for path in asked)} == {SHARDS[2], VAE}
    assert not any(SHARDS[0] in path for path in asked)


@pytest.mark.parametrize(
    ("part", "code", "said"),
    [
        ("/resolve/", "GatedRepo", f"accept its licence at https://huggingface.co/{ID}"),
        (VAE, "GatedRepo", f"accept its licence at https://huggingface.co/{ID}"),
        ("/api/", "RepoNotFound", f"the hub shows no {ID}"),
        ("/api/", "RevisionNotFound", f"{ID} has no revision main"),
        ("/api/", "", "could not be downloaded"),
    ],
)
def test_a_hub_that_says_no_is_understood(hub, server, part, code, said):
    server[0][part] = code
    with refused(said):
        locate(HUB)


def test_repositories_that_are_no_whole_pipelines(folder, hub, server):
    (folder / SHARDS[2]).unlink()
    with refused(f"{ID} lacks {SHARDS[2]} even after its download"):
        locate(HUB)
    shutil.rmtree(hub)
    (folder / "model_index.json").unlink()
    with refused(f"{ID} on the hub holds no model_index.json"):
        locate(HUB)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_is_said_to_be(folder, hub, server):
    cached(folder, hub, without=[VAE])
    with closed(hub), refused(f"lacks {VAE}, and the cache cannot be written", "set HF_HOME"):
        locate(HUB)


def test_a_repository_without_an_index_is_known_by_a_file(folder, hub, server):
    """As LongCat-Video's, whose own code loads part by part."""
    _, asked = server
    (folder / "model_index.json").unlink()
    (folder / "transformer").rename(folder / "dit")
    write(folder / "lora/config.json", "of no component")
    located = locate(HUB)
    assert located == Located(hub / f"models--acme--video/snapshots/{COMMIT}", COMMIT)
    assert (located.path / SHARDS[0].replace("transformer", "dit")).is_file()
    assert not (located.path / "lora").exists()
    assert fingerprint(located.path) == fingerprint(folder)
    count = len(asked)
    assert locate(HUB) == located
    assert len(asked) == count
