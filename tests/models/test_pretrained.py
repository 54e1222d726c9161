"""Where weights come from: what stands for what, whole and broken folders, the hub's cache, and a hub that says no."""

import errno
import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import tiny as tiny_pipelines
from huggingface_hub import HfApi, constants, errors
from huggingface_hub.utils import close_session, validate_repo_id
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mxbench.errors import UserError
from mxbench.models.pipeline_folder import fingerprint, size
from mxbench.models.pretrained import locate, parse_source
from mxbench.models.source import Located, Source

ID, COMMIT = "acme/video", "0123456789abcdef0123456789abcdef01234567"
HUB = Source("hub", ID)
SHARDS = [f"transformer/diffusion_pytorch_model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
VAE, TEXT = "vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"
INDEX = {
    "_class_name": "WanPipeline",
    "_diffusers_version": "0.42.1",
    "boundary_ratio": 0.875,
    "image_encoder": [None, None],
    "scheduler": ["diffusers", "UniPCMultistepScheduler"],
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "tokenizer": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLWan"],
}


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


def tensors(seed, count=4096):
    return {"w": np.random.default_rng(seed).standard_normal(count).astype(np.float32), "b": np.zeros(3, np.float16)}


@pytest.fixture
def folder(tmp_path):
    """A pipeline as ``hf download --local-dir`` leaves it, without values that mean anything."""
    root = tmp_path / "pipeline"
    write(root / "model_index.json", INDEX)
    write(root / "scheduler/scheduler_config.json", {"flow_shift": 12.0})
    write(root / "tokenizer/tokenizer.json", {"model": {}})
    write(root / "tokenizer/tokenizer_config.json", {"extra_ids": 300})
    write(root / "tokenizer/spiece.model", "pieces")
    for number, name in enumerate([*SHARDS, VAE, TEXT]):
        write((root / name).parent / "config.json", {"layers": 2})
        save_file(tensors(number), root / name)
    mapping = {f"blocks.{i}.w": Path(name).name for i, name in enumerate(SHARDS)}
    write(root / "transformer/diffusion_pytorch_model.safetensors.index.json", {"weight_map": mapping})
    write(root / "README.md", "# Video")
    write(root / ".gitattributes", "*.safetensors filter=lfs")
    return root


@contextmanager
def refused(*said):
    """One line that says all of these."""
    with pytest.raises(UserError) as caught:
        yield caught
    text = str(caught.value)
    assert len(text.splitlines()) == 1, text
    assert all(part in text for part in said), text


def as_folder(path):
    return Source("folder", str(path))


@pytest.mark.parametrize(
    ("weights", "source"),
    [
        (None, Source("hub", "own/model")),
        ("random", Source("random", "")),
        ("random:tiny", Source("random", "tiny")),
        ("acme/video", Source("hub", "acme/video")),
        ("here", Source("folder", "here")),
        ("own/model", Source("folder", "own/model")),
        ("./random", Source("folder", "./random")),
        ("~/here", Source("folder", "~/here")),
        ("own/model/deep", Source("folder", "own/model/deep")),
    ],
)
def test_a_string_stands_for_one_source(tmp_path, monkeypatch, weights, source):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("here", "own/model/deep", "random"):
        (tmp_path / name).mkdir(parents=True)
    assert parse_source(weights, None, "own/model") == source


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("random:small", "use random (full size) or random:tiny"),
        ("random:", "use random (full size) or random:tiny"),
        *((name, "there is no such folder") for name in
          ("./acme", "/acme/video", "~/x", "~nobody-of-this/x", "acme\\video", "a/b/c", "a\0/b/", "x.safetensors")),
        *((name, "neither a folder nor a hub id") for name in
          ("", "acme", "acme/", "a b/c", "a/b\n", "a--b/c", "a/b..c", "a/-b", "a/b.git", "a/ü", "a/" + 99 * "b")),
    ],
)  # fmt: skip
def test_what_is_no_source_is_named(tmp_path, monkeypatch, weights, said):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.safetensors", "a file")
    with refused(said, "--weights"):
        parse_source(weights, None, "own/model")


def test_hub_ids_are_those_of_huggingface_hub():
    names = [
        "a/b",
        "Wan-AI/Wan2.2-T2V-A14B-Diffusers",
        "a_/_b",
        "-a/b",
        "a-/b",
        "a/b-",
        "a/.b",
        "a/b.",
        "a/b--c",
        "a/b.git",
    ]
    for name in names:
        try:
            validate_repo_id(name)
            lawful = True
        except errors.HFValidationError:
            lawful = False
        if lawful:
            assert parse_source(name, None, "own/model") == Source("hub", name)
        else:
            with refused("neither a folder nor a hub id"):
                parse_source(name, None, "own/model")


def test_revisions_are_of_the_hub(folder):
    assert parse_source(None, "refs/pr/3", "own/model") == Source("hub", "own/model", "refs/pr/3")
    assert parse_source(ID, "v1.0", "own/model").revision == "v1.0"
    for weights in (str(folder), "random:tiny"):
        with refused("--revision v1", "own/model"):
            parse_source(weights, "v1", "own/model")
    for revision in ("", "../../etc", "a..b", "/a", "a b", "a\nb", "-x"):
        with refused("is no revision"):
            parse_source(ID, revision, "own/model")


def test_a_whole_folder_is_located(folder, monkeypatch):
    assert locate(as_folder(folder)) == Located(folder, None)
    monkeypatch.chdir(folder.parent)
    assert locate(as_folder("pipeline")).path == folder
    with pytest.raises(ValueError, match="nowhere"):
        locate(Source("random", ""))


@pytest.mark.parametrize(
    ("gone", "first", "count"),
    [
        ([SHARDS[1]], SHARDS[1], 1),
        (SHARDS, SHARDS[0], 3),
        (["vae"], "vae/", 1),
        (["vae", "tokenizer", "scheduler"], "scheduler/", 3),
        ([VAE], VAE, 1),
        ([TEXT], TEXT, 1),
        ([TEXT, "text_encoder/config.json"], "text_encoder/", 1),
        (["vae/config.json"], "vae/config.json", 1),
        (["transformer/config.json", SHARDS[2]], "transformer/config.json", 2),
    ],
)
def test_what_a_folder_lacks_is_named_and_counted(folder, gone, first, count):
    for name in gone:
        (shutil.rmtree if (folder / name).is_dir() else os.remove)(folder / name)
    with refused(str(folder), f"lacks {first};" if count == 1 else f"lacks {count} files, the first {first};"):
        locate(as_folder(folder))


def test_only_what_is_needed_must_be_there(folder):
    shutil.rmtree(folder / "vae")
    (folder / SHARDS[0]).unlink()
    locate(as_folder(folder), components=["tokenizer", "text_encoder"])
    locate(as_folder(folder), components=["transformer"], ignore=["*-00001-of-*"])
    with refused("names scheduler, text_encoder", "no transformer_2"):
        locate(as_folder(folder), components=["transformer_2"])
    with refused("no image_encoder"):
        locate(as_folder(folder), components=["image_encoder"])


def test_folders_that_are_no_pipelines(folder, tmp_path):
    with refused("there is no such folder"):
        locate(as_folder(tmp_path / "none"))
    with refused("there is no such folder"):
        locate(as_folder(folder / "model_index.json"))
    with refused("holds no model_index.json", "hf download"):
        locate(as_folder(folder / "vae"))
    (tmp_path / "snapshots").mkdir()
    with refused("holds no model_index.json", "one of the folders in its snapshots"):
        locate(as_folder(tmp_path))
    for content in ("{", "[]", "\x00", '{"a": ' * 100_000):
        write(folder / "model_index.json", content)
        for function in (lambda: locate(as_folder(folder)), lambda: fingerprint(folder), lambda: size(folder)):
            with refused("model_index.json is no JSON object"):
                function()
    write(folder / "model_index.json", {"_class_name": ["pipeline", "Own"], "vae": [None, None], "sizes": [1, 2]})
    with refused("names nothing and no component"):
        locate(as_folder(folder))
    write(folder / "model_index.json", {"../../etc": ["diffusers", "X"]})
    with refused("outside of its own"):
        locate(as_folder(folder))


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_of_shards_that_is_broken_is_named(folder, content):
    write(folder / "transformer/diffusion_pytorch_model.safetensors.index.json", content)
    with refused("transformer/diffusion_pytorch_model.safetensors.index.json", "bring it again"):
        locate(as_folder(folder))


def test_files_are_whole_where_safetensors_itself_opens_them(folder):
    file = folder / VAE
    save_file(tensors(0, 2), file)
    whole = file.read_bytes()
    broken = [whole[:n] for n in range(len(whole))] + [whole + b"\0", b"\xff" * 64, b"\2" + bytes(7) + b"[]"]
    broken += [(9).to_bytes(8, "little") + b'{"a": {}}', (8).to_bytes(8, "little") + b'{"a": 1}', whole]
    for content in broken:
        file.write_bytes(content)
        try:
            with safe_open(file, "numpy"):
                opens = True
        except SafetensorError:
            opens = False
        for function in (lambda: locate(as_folder(folder)), lambda: fingerprint(folder)):
            if opens:
                function()
            else:
                with refused(f"{file} is no whole safetensors file"):
                    function()
    assert opens


def test_a_git_lfs_pointer_is_told_from_weights(folder):
    write(folder / SHARDS[0], "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with refused(SHARDS[0], "git lfs pull"):
        locate(as_folder(folder))


def test_folders_that_diffusers_saves_are_whole_and_without_a_shard_neither_loads_them(tmp_path, nano):
    from diffusers import WanPipeline

    root = tmp_path / "saved"
    nano.pipe.save_pretrained(root, max_shard_size="8MB")
    assert len(list((root / "transformer").glob("*.safetensors"))) > 1
    assert locate(as_folder(root)).path == root
    parts = [getattr(nano.pipe, name) for name in ("transformer", "transformer_2", "text_encoder", "vae")]
    kept = sum(t.numel() * t.element_size() for part in parts for t in {id(t): t for t in part.parameters()}.values())
    assert kept <= size(root) < 1.05 * kept
    next((root / "transformer").glob("*-00002-of-*")).unlink()
    with refused("lacks transformer/"):
        locate(as_folder(root))
    with pytest.raises(OSError, match="00002"):
        WanPipeline.from_pretrained(root, local_files_only=True)


def test_modular_pipelines_that_diffusers_saves_are_whole(tmp_path):
    """Their index says ``null`` for what was not loaded, and on the hub for everything: the type is in the details."""
    root = tmp_path / "saved"
    tiny_pipelines.minimax().save_pretrained(str(root), overwrite_modular_index=True)
    assert not (root / "model_index.json").exists()
    locate(as_folder(root))
    index = json.loads((root / "modular_model_index.json").read_text())
    assert index["vae"][:2] == [None, None]
    for name in ("transformer", "scheduler"):
        index[name][:2] = None, None
    index["scheduler"][2]["repo"] = index["scheduler"][2].pop(
        "pretrained_model_name_or_path"
    )  # as diffusers also takes it
    write(root / "modular_model_index.json", index)
    assert locate(as_folder(root), components=["transformer", "scheduler"]).path == root
    (root / "transformer/diffusion_pytorch_model.safetensors").unlink()
    (root / "scheduler/scheduler_config.json").unlink()
    with refused("lacks 2 files, the first scheduler/"):
        locate(as_folder(root))
    with refused("names scheduler, transformer and no vae"):
        locate(as_folder(root), components=["vae"])


def test_size_is_that_of_the_safetensors(folder):
    numbers = 4096 * 4 + 3 * 2
    header = int.from_bytes((folder / VAE).read_bytes()[:8], "little")
    write(folder / "lora.safetensors", "of no component")
    write(folder / "vae/pytorch_model.bin", "never read")
    assert size(folder) == 5 * (8 + header + numbers)


def cached(folder, hub, without=(), tree=False):
    """The folder as a repository of the hub's cache: blobs, and a snapshot of links to them."""
    home = hub / "models--acme--video"
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    write(home / "refs/main", COMMIT)
    for number, name in enumerate(names):
        if name in without:
            continue
        blob, link = home / f"blobs/{number:040x}", home / f"snapshots/{COMMIT}" / name
        write(blob, "")
        shutil.copy(folder / name, blob)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    if tree:
        files = {name: {"size": (folder / name).stat().st_size, "blob_id": "0" * 40} for name in names}
        write(home / f"trees/{COMMIT}.json", {"format_version": 1, "files": files})
    return home / "snapshots" / COMMIT


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache, and no network to fill it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return tmp_path / "hub"


@contextmanager
def closed(root):
    """Nobody but root can write it."""
    places = [path for path in [root, *root.rglob("*")] if path.is_dir() and not path.is_symlink()]
    for place in places:
        place.chmod(0o555)
    try:
        yield
    finally:
        for place in places:
            place.chmod(0o755)


def state(root):
    return {p: (p.lstat().st_mtime_ns, p.lstat().st_mode) for p in [root, *root.rglob("*")]}


def test_fingerprints_do_not_see_where_and_when(folder, hub, tmp_path):
    mine = fingerprint(folder)
    assert len(mine) == 64 and set(mine) <= set("0123456789abcdef")
    copy = shutil.copytree(folder, tmp_path / "elsewhere/copy")
    for file in copy.rglob("*"):
        os.utime(file, (1, 1))
    (copy / "README.md").unlink()
    (copy / ".gitattributes").unlink()
    for name in (
        ".cache/huggingface/x.json",
        "assets/x.json",
        "vae/.x.json",
        "vae/README.md",
        "vae/x.bin",
        "x.safetensors",
    ):
        write(copy / name, "{}")
    assert fingerprint(copy) == fingerprint(cached(folder, hub)) == mine


CHANGES = {
    "a config": lambda f: write(f / "vae/config.json", {"layers": 3}),
    "the index": lambda f: write(f / "model_index.json", {**INDEX, "boundary_ratio": 0.9}),
    "a tokenizer's pieces": lambda f: write(f / "tokenizer/spiece.model", "other"),
    "a file's name": lambda f: (f / VAE).rename(f / "vae/model.safetensors"),
    "a component": lambda f: shutil.rmtree(f / "scheduler"),
    "two files swapped": lambda f: ((f / SHARDS[0]).rename(f / "x"), (f / SHARDS[1]).rename(f / SHARDS[0]),
                                    (f / "x").rename(f / SHARDS[1])),
    "another training": lambda f: save_file(tensors(99), f / VAE),
    "a name": lambda f: save_file({"v": tensors(3)["w"], "b": np.zeros(3, np.float16)}, f / VAE),
    "a dtype": lambda f: save_file({**tensors(3), "b": np.zeros(3, np.int16)}, f / VAE),
    "a size": lambda f: save_file(tensors(3, 4097), f / VAE),
    "the last byte": lambda f: flip(f / VAE, -1),
    "the middle byte": lambda f: flip(f / VAE, (f / VAE).stat().st_size // 2),
}  # fmt: skip


def flip(file, at):
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_fingerprints_see_what_changes_a_render(folder, change):
    before = fingerprint(folder)
    change(folder)
    assert fingerprint(folder) != before


def test_fingerprints_read_samples_and_no_gigabytes(folder):
    """A file of 64 GiB, nearly all of it a hole: to read it would take minutes. What is not sampled is not seen."""
    length = 64 << 30
    header = json.dumps({"w": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}).encode()
    with (folder / VAE).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + length)
    before = fingerprint(folder)
    assert size(folder) > length
    for at, seen in [(length // 4, False), (length // 2, True)]:
        with (folder / VAE).open("r+b") as file:
            file.seek(at)
            file.write(b"\1")
        assert (fingerprint(folder) != before) == seen


def test_files_that_cannot_be_read_are_named(folder, monkeypatch):
    def closed(self, *_args, **_kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "open", closed)
    with refused("model_index.json cannot be read: Permission denied"):
        fingerprint(folder)
    monkeypatch.setattr(Path, "is_file", closed)
    with refused("model_index.json cannot be read: Permission denied"):
        locate(as_folder(folder))


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
    with refused("is not in the cache", f"hf download {ID} --revision v2 "):
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
