"""Pipelines as folders and as repositories of the hub's cache, without values that mean anything."""

import json
import os
import shutil
from contextlib import contextmanager

import numpy as np
import pytest

from mxbench.errors import UserError
from mxbench.models.source import Source

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
