"""A diffusers pipeline's folder: which components its index names, whether they are whole, and what tells them apart.

A missing shard or a file that was cut short is one line. Only safetensors count as weights. POSIX paths only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mxbench.errors import UserError

__all__ = [
    "INDEXES",
    "UNINDEXED",
    "UNREAD",
    "WORD",
    "Names",
    "components_of",
    "elements_of",
    "fingerprint",
    "lacking",
    "pipeline_of",
    "read_json",
    "says_lacking",
    "size",
    "tensors_of",
]

INDEXES = ("model_index.json", "modular_model_index.json")
# Repositories without an index, known by a file: what an index would say. LongCat-Video's own code loads part by part.
UNINDEXED: dict[str, dict[str, list[str]]] = {
    "dit/config.json": {
        "tokenizer": ["transformers", "T5Tokenizer"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "vae": ["diffusers", "AutoencoderKLWan"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "dit": ["diffusers", "LongCatVideoTransformer3DModel"],
    },
}
# What lies beside the safetensors in many repositories, and is never read: weights in other formats, and readmes.
UNREAD = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5", "*.onnx", "*.onnx_data", "*.gguf", "*.md")
_SHARD_INDEX = re.compile(r"\.safetensors\.index(\..+)?\.json$")  # a variant's name stands before .json
_WEIGHTLESS = re.compile("Tokenizer|Processor|Extractor|Scheduler|Guidance")  # in names of classes
_VOCABULARY = (".model", "/merges.txt", "/vocab.txt", "/chat_template.jinja")
WORD = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_SAMPLE = 4096  # bytes
Names = Collection[str] | None
_Part = tuple[str, str, str]  # a component: its folder below the pipeline's, the library that loads it, its class


def fingerprint(path: Path) -> str:
    """A digest that tells weights apart without reading gigabytes: 64 hexadecimal digits.

    It covers the pipeline's index and of each component every JSON, the tokenizer's vocabulary, and of each safetensors
    file the path, the size, the header (names, dtypes, shapes), 4096 bytes from its middle and 4096 from its end. So it
    sees other shapes, other files and nearly any other training, but not single values that change elsewhere. The
    folder's own place, times, links, and files outside of the components leave it as it is.

    Args:
        path: a pipeline's folder.

    Raises:
        UserError: no pipeline, or a file that is malformed or cannot be read.
    """
    digest = hashlib.sha256(b"mxbench weights 1")
    for name in sorted([n for n in INDEXES if _there(path / n)] + _files(path, components_of(path, None))):
        file, pieces = path / name, [os.fsencode(name)]
        if name.endswith(".safetensors"):
            length, header = _header(file)
            middle, end = (max(0, start - _SAMPLE) for start in ((length + _SAMPLE) // 2, length))
            pieces += [str(length).encode(), header, _bytes(file, middle, _SAMPLE), _bytes(file, end, _SAMPLE)]
        elif name.endswith((".json", *_VOCABULARY)):
            pieces.append(_bytes(file))
        else:
            continue
        for piece in pieces:  # each behind its length, so that no two lists of pieces run together alike
            digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()


def pipeline_of(path: Path) -> str | None:
    """The pipeline's class that the index of a folder names; None where it names none, or there is no index."""
    index = next((path / name for name in INDEXES if _there(path / name)), None)
    held = None if index is None else read_json(index).get("_class_name")
    return held if isinstance(held, str) else None


def size(path: Path) -> int:
    """Bytes of the safetensors of all components of a pipeline's folder; a UserError where it is none."""
    return sum((path / n).stat().st_size for n in _files(path, components_of(path, None)) if n.endswith(".safetensors"))


def elements_of(path: Path, components: Names) -> dict[str, int]:
    """How many numbers the safetensors of each component hold, whatever their dtype."""
    found: dict[str, int] = {}
    for name in _files(path, components_of(path, components)):
        if name.endswith(".safetensors"):
            shapes = tensors_of(path / name).values()
            part = name.partition("/")[0]
            found[part] = found.get(part, 0) + sum(math.prod(shape) for shape in shapes)
    return found


def tensors_of(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file that is whole."""
    entries = json.loads(_header(file)[1][8:])
    return {name: tuple(entry["shape"]) for name, entry in entries.items() if name != "__metadata__"}


def components_of(root: Path, components: Names) -> list[_Part]:
    """The components that a pipeline's index names, in its order."""
    index = next((root / name for name in (*INDEXES, *UNINDEXED) if _there(root / name)), None)
    if index is None:
        fix = "pass the folder of a diffusers pipeline, as `hf download ID --local-dir FOLDER` makes it"
        if (root / "snapshots").is_dir():
            fix = "this is a repository in the hub's cache: pass one of the folders in its snapshots"
        raise UserError(f"{root} holds no {INDEXES[0]}", fix)
    found = {}
    told = UNINDEXED.get(index.relative_to(root).as_posix())
    for name, entry in (read_json(index) if told is None else told).items():
        match entry:
            case [str(library), str(cls)] if not name.startswith("_"):
                found[name] = (name, library, cls)
            case [_, _, {"subfolder": str(folder), "type_hint": [str(library), str(cls)], **spec}] if folder:
                if spec.get("pretrained_model_name_or_path") or spec.get("repo"):  # of a modular pipeline
                    found[name] = (folder, library, cls)
    for name in components or ([] if found else ["component"]):
        if name not in found:
            raise UserError(f"{index} names {', '.join(found) or 'nothing'} and no {name}", "pass this model's weights")
    parts = [part for name, part in found.items() if components is None or name in components]
    if not all(WORD.fullmatch(word) for folder, _, _ in parts for word in folder.split("/")):
        raise UserError(f"{index} names a folder outside of its own", "pass weights that you trust")
    return parts


def _files(root: Path, parts: Iterable[_Part], ignore: Iterable[str] = ()) -> list[str]:
    """Paths below ``root`` of the components' files, sorted; broken links are none, and hidden files do not count."""
    found = set()
    for folder, _, _ in parts:
        for file in (root / folder).rglob("*"):
            name = file.relative_to(root).as_posix()
            if "/." not in name and not _ignored(name, ignore) and _there(file):
                found.add(name)
    return sorted(found)


def _there(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError as error:
        raise _broken(file, f"cannot be read: {error.strerror}", "see to its permissions and its disk") from error


def _broken(file: Path, why: str, fix: str = "") -> UserError:
    bad = file.resolve() if file.is_symlink() else "it"  # the hub's cache would link a bad blob again
    return UserError(f"{file} {why}", fix or f"delete {bad} and bring it again")


def _ignored(name: str, ignore: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in ignore)


def lacking(root: Path, components: Names, ignore: Sequence[str], listed: Sequence[str] = ()) -> list[str]:
    """Paths below ``root`` of files that must be there and are not. Where none is missing, none is cut short either.

    Files of components without weights, such as tokenizers, stand in no index: ``listed`` is all that a repository has.
    """
    missing, parts = [], components_of(root, components)
    for folder, library, cls in parts:
        names = _files(root, [(folder, library, cls)], ignore)
        if not names:
            missing.append(f"{folder}/")
            continue
        indexes = [name for name in names if _SHARD_INDEX.search(name)]
        weights = bool(indexes) or any(name.endswith(".safetensors") for name in names)
        model = library in ("diffusers", "transformers") and not _WEIGHTLESS.search(cls)
        wanted = [f"{Path(index).parent.as_posix()}/{shard}" for index in indexes for shard in _shards(root / index)]
        if model or weights:
            wanted.insert(0, f"{folder}/config.json")
        if model and not weights:
            wanted.append(f"{folder}/{'diffusion_pytorch_' if library == 'diffusers' else ''}model.safetensors")
        if not model and not weights:
            wanted += [n for n in listed if n.startswith(f"{folder}/") and "/." not in n and not _ignored(n, UNREAD)]
        missing += [name for name in wanted if name not in names and not _ignored(name, ignore)]
    for name in [] if missing else _files(root, parts, ignore):
        if name.endswith(".safetensors"):
            _header(root / name)
    return missing


def _shards(index: Path) -> list[str]:
    mapping = read_json(index).get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()):
        raise _broken(index, "has no weight_map")
    return sorted(set(mapping.values()))


def says_lacking(missing: Sequence[str]) -> str:
    """In words what ``lacking`` found: the first, and how many."""
    return f"lacks {missing[0]}" if len(missing) == 1 else f"lacks {len(missing)} files, the first {missing[0]}"


def read_json(file: Path) -> dict[str, Any]:
    """A file's JSON object; a UserError where it is none."""
    try:
        data = json.loads(_bytes(file))
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise _broken(file, "is no JSON object")
    return data


def _bytes(file: Path, start: int = 0, count: int = -1) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            return stream.read(count)
    except OSError as error:
        raise _broken(file, f"cannot be read: {error.strerror}", "see to its permissions and its disk") from error


def _header(file: Path) -> tuple[int, bytes]:
    """Size in bytes, and the header behind the 8 bytes of its length, of a safetensors file that is whole."""
    header = _bytes(file, 0, 8)
    length, told = file.stat().st_size, int.from_bytes(header, "little")
    if header == b"version ":
        raise _broken(file, "is a Git LFS pointer and not the weights", "run `git lfs pull` in its repository")
    why = f"its header is not in its {length} bytes"
    if len(header) == 8 and told <= min(length - 8, 100_000_000):  # as safetensors has it
        header = _bytes(file, 0, 8 + told)
        try:
            entries = json.loads(header[8:])
            ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
            whole = 8 + told + max(ends, default=0)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            whole = None
        if whole == length:
            return length, header
        why = "its header is malformed" if whole is None else f"it has {length} bytes and its header tells of {whole}"
    raise _broken(file, f"is no whole safetensors file: {why}")
