"""Where weights come from: what stands for what, whole and broken folders, and what tells weights apart."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny as tiny_pipelines
from huggingface_hub import errors
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from saved_pipelines import (
    ID,
    INDEX,
    SHARDS,
    TEXT,
    VAE,
    as_folder,
    cached,
    refused,
    tensors,
    write,
)

from mxbench.models.pipeline_folder import fingerprint, size
from mxbench.models.pretrained import locate, parse_source
from mxbench.models.source import Located, Source


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
