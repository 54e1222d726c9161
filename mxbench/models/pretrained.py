"""Where a model's weights come from: a folder, the hub's cache, the hub itself, or a seed. All is seen before loading.

``locate`` finds a diffusers pipeline and proves it whole, so that a gated licence, a missing shard or a file that was
cut short is one line before any GPU time is spent. Only safetensors count as weights. POSIX paths only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from mxbench.errors import UserError

__all__ = ["Located", "Source", "fingerprint", "locate", "parse_source", "size"]

_INDEXES = ("model_index.json", "modular_model_index.json")
# What lies beside the safetensors in many repositories, and is never read: weights in other formats, and readmes.
_UNREAD = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5", "*.onnx", "*.onnx_data", "*.gguf", "*.md")
_SHARD_INDEX = re.compile(r"\.safetensors\.index(\..+)?\.json$")  # a variant's name stands before .json
_WEIGHTLESS = re.compile("Tokenizer|Processor|Extractor|Scheduler|Guidance")  # in names of classes
_VOCABULARY = (".model", "/merges.txt", "/vocab.txt", "/chat_template.jinja")
_WORD = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_SAMPLE = 4096  # bytes
_Names = Collection[str] | None
_Part = tuple[str, str, str]  # a component: its folder below the pipeline's, the library that loads it, its class
# By name: between versions of huggingface_hub the classes move, and the HTTP library below them has changed twice.
_NETWORK = {"TransportError", "ConnectionError", "Timeout", "TimeoutException", "TimeoutError", "gaierror"}


@dataclass(frozen=True, slots=True)
class Source:
    """What the user asked for.

    Attributes:
        kind: of the source.
        name: the folder, or the hub id; of random weights ``""`` (full size) or ``"tiny"``.
        revision: branch, tag or commit on the hub; None is its main branch.
    """

    kind: Literal["folder", "hub", "random"]
    name: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Located:
    """Weights on this machine.

    Attributes:
        path: a local folder, absolute, ready for ``from_pretrained``.
        revision: the commit hash, if they are from the hub.
    """

    path: Path
    revision: str | None


def parse_source(weights: str | None, revision: str | None, hub_id: str) -> Source:
    """Read ``--weights`` and ``--revision``.

    Args:
        weights: ``random``, ``random:tiny``, a folder, or a hub id ``owner/name``; None is the model's own hub id. A
            folder that exists goes before a hub id of the same spelling, and ``./random`` is a folder.
        revision: branch, tag or commit on the hub.
        hub_id: the model's own.

    Raises:
        UserError: none of these, a folder that does not exist, or a revision of what has none.
    """
    source = Source("hub", hub_id) if weights is None else _read(weights, hub_id)
    if revision is None:
        return source
    if source.kind != "hub":
        raise UserError(f"--revision {revision} goes with a hub id alone", f"leave it out, or pass one like {hub_id}")
    if ".." in revision or not all(_WORD.fullmatch(word) for word in revision.split("/")):
        raise UserError(f"--revision {revision!r} is no revision", "pass a branch, a tag or a commit hash")
    return Source("hub", source.name, revision)


def _read(weights: str, hub_id: str) -> Source:
    if weights == "random" or weights.startswith("random:"):
        if weights not in ("random", "random:tiny"):
            raise UserError(f"--weights {weights}: no such random weights", "use random (full size) or random:tiny")
        return Source("random", weights[len("random:") :])
    path = _existing(weights)
    if path is not None and path.is_dir():
        return Source("folder", weights)
    if path is not None or weights.startswith((".", "/", "~")) or "\\" in weights or weights.count("/") > 1:
        raise _no_folder(weights)
    lawful = weights.count("/") == 1 and len(weights) <= 96 and all(_WORD.fullmatch(w) for w in weights.split("/"))
    if not lawful or "--" in weights or ".." in weights or weights.endswith(".git"):
        raise UserError(f"--weights {weights!r} is neither a folder nor a hub id", f"pass either, such as {hub_id}")
    return Source("hub", weights)


def _existing(name: str) -> Path | None:
    try:
        path = Path(name).expanduser().absolute()
        return path if name and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # a name too long, a closed parent, ~ of an unknown user
        return None


def _no_folder(name: str) -> UserError:
    return UserError(f"--weights {name}: there is no such folder", "pass that of a diffusers pipeline, or a hub id")


def locate(source: Source, *, components: Collection[str] | None = None, ignore: Sequence[str] = ()) -> Located:
    """Find the weights, and see that they are whole: every component, every shard, every file to its last byte.

    What the hub's cache holds whole is taken from there without asking the network, at the commit that the cache knows
    for the revision; nothing is written then, so a cache may be read-only. Otherwise the pipeline is downloaded, unless
    ``HF_HUB_OFFLINE`` is set.

    Args:
        source: a folder or a hub id.
        components: those that are needed; None is all that the pipeline's index names.
        ignore: patterns of files that are not needed, such as ``*.fp16.*``, as ``fnmatch`` reads them, against the path
            below the pipeline's folder.

    Raises:
        UserError: something is missing or cut short, or cannot be downloaded; it says what, and what to do.
        ValueError: random weights, which lie nowhere.
    """
    if source.kind == "random":
        raise ValueError("random weights lie nowhere")
    if source.kind == "hub":
        return _from_hub(source, components, ignore)
    root = _existing(source.name)
    if root is None or not root.is_dir():
        raise _no_folder(source.name)
    if missing := _missing(root, components, ignore):
        raise UserError(f"{root} {_lacks(missing)}", f"bring it all, as by `hf download ID --local-dir {root}`")
    return Located(root, None)


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
    for name in sorted([n for n in _INDEXES if _there(path / n)] + _files(path, _parts(path, None))):
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


def size(path: Path) -> int:
    """Bytes of the safetensors of all components of a pipeline's folder; a UserError where it is none."""
    return sum((path / n).stat().st_size for n in _files(path, _parts(path, None)) if n.endswith(".safetensors"))


def _parts(root: Path, components: _Names) -> list[_Part]:
    """The components that a pipeline's index names, in its order."""
    index = next((root / name for name in _INDEXES if _there(root / name)), None)
    if index is None:
        fix = "pass the folder of a diffusers pipeline, as `hf download ID --local-dir FOLDER` makes it"
        if (root / "snapshots").is_dir():
            fix = "this is a repository in the hub's cache: pass one of the folders in its snapshots"
        raise UserError(f"{root} holds no {_INDEXES[0]}", fix)
    found = {}
    for name, entry in _json(index).items():
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
    if not all(_WORD.fullmatch(word) for folder, _, _ in parts for word in folder.split("/")):
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


def _missing(root: Path, components: _Names, ignore: Sequence[str], listed: Sequence[str] = ()) -> list[str]:
    """Paths below ``root`` of files that must be there and are not. Where none is missing, none is cut short either.

    Files of components without weights, such as tokenizers, stand in no index: ``listed`` is all that a repository has.
    """
    missing, parts = [], _parts(root, components)
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
            wanted += [n for n in listed if n.startswith(f"{folder}/") and "/." not in n and not _ignored(n, _UNREAD)]
        missing += [name for name in wanted if name not in names and not _ignored(name, ignore)]
    for name in [] if missing else _files(root, parts, ignore):
        if name.endswith(".safetensors"):
            _header(root / name)
    return missing


def _shards(index: Path) -> list[str]:
    mapping = _json(index).get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()):
        raise _broken(index, "has no weight_map")
    return sorted(set(mapping.values()))


def _lacks(missing: Sequence[str]) -> str:
    return f"lacks {missing[0]}" if len(missing) == 1 else f"lacks {len(missing)} files, the first {missing[0]}"


def _json(file: Path) -> dict[str, Any]:
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


def _from_hub(source: Source, components: _Names, ignore: Sequence[str]) -> Located:
    from huggingface_hub import constants, try_to_load_from_cache

    found = (try_to_load_from_cache(source.name, name, revision=source.revision) for name in _INDEXES)
    root = next((Path(file).absolute().parent for file in found if isinstance(file, str)), None)
    state = f"{source.name} is not in the cache {constants.HF_HUB_CACHE}"
    if root is not None:
        missing = _missing(root, components, ignore, _listed(source.name, root.name))
        if not missing:
            return Located(root, root.name)
        state = f"{source.name} in the cache {constants.HF_HUB_CACHE} {_lacks(missing)}"
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{state}, and HF_HUB_OFFLINE is set", f"unset it, or {_bring(source)}")
    try:
        root = _download(source, components, ignore)
    except Exception as error:
        known = None if isinstance(error, UserError) else _explain(error, source, state)
        if known is None:
            raise
        raise known from error
    if missing := _missing(root, components, ignore, _listed(source.name, root.name)):
        raise UserError(f"{source.name} {_lacks(missing)} even after its download", f"start again, or {_bring(source)}")
    return Located(root, root.name)


def _listed(hub_id: str, commit: str) -> list[str]:
    """The files of a commit, where the cache keeps their list."""
    from huggingface_hub import errors, get_cached_repo_tree

    try:
        return [file.path for file in get_cached_repo_tree(hub_id, revision=commit)]
    except errors.CachedRepoTreeNotFoundError:
        return []


def _download(source: Source, components: _Names, ignore: Sequence[str]) -> Path:
    """Bring the components to the cache. Raises what huggingface_hub raises."""
    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download

    # Asked first, since it is the one call that does not turn a failure into whatever the cache holds.
    info = HfApi().model_info(source.name, revision=source.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    index = next((name for name in _INDEXES if name in {file.rfilename for file in info.siblings or ()}), None)
    if index is None:
        raise UserError(f"{source.name} on the hub holds no {_INDEXES[0]}", "pass the hub id of a diffusers pipeline")
    first = hf_hub_download(source.name, index, revision=info.sha or source.revision)
    allow = [*_INDEXES, *(f"{folder}/*" for folder, _, _ in _parts(Path(first).parent, components))]
    deny = [*ignore, *_UNREAD]
    # By the revision's own name, so that the cache learns its commit and serves without network.
    return Path(snapshot_download(source.name, revision=source.revision, allow_patterns=allow, ignore_patterns=deny))


def _bring(source: Source) -> str:
    command = f"hf download {source.name}" + (f" --revision {source.revision}" if source.revision else "")
    return f"run `{command} --local-dir FOLDER` on another machine, bring the folder here and pass --weights FOLDER"


def _explain(error: BaseException, source: Source, state: str) -> UserError | None:
    """What a failed download means, or None; in a chain of errors the outermost that tells a cause decides."""
    from huggingface_hub import constants

    hub_id, revision, cache = source.name, source.revision or "main", constants.HF_HUB_CACHE
    link = f"https://huggingface.co/{hub_id}"
    home = "set HF_HOME to a folder" + (" (and unset HF_HUB_CACHE)" if os.environ.get("HF_HUB_CACHE") else "")
    told = {
        "GatedRepoError": (f"{hub_id} is gated", f"accept its licence at {link}, run `hf auth login`, and start again"),
        "RevisionNotFoundError": (f"{hub_id} has no revision {revision}", f"pick one at {link}/commits"),
        "RepositoryNotFoundError": (f"the hub shows no {hub_id}", "check its name; if private, run `hf auth login`"),
        "disk full": (f"the disk of the cache {cache} is full", f"free space there, or {home} on a larger one"),
        "read-only": (f"{state}, and the cache cannot be written", f"{home} that can be"),
        "network": (f"{state}, and there is no network to the hub", _bring(source)),
    }
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    for one in chain:
        kinds = {cls.__name__ for cls in type(one).__mro__}
        number = one.errno if isinstance(one, OSError) else None
        if number in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(one):
            kinds.add("disk full")
        if number in (errno.EROFS, errno.EACCES, errno.EPERM):
            kinds.add("read-only")
        if kinds & _NETWORK or ("LocalEntryNotFoundError" in kinds and len(chain) == 1):
            kinds.add("network")
        for kind, (problem, fix) in told.items():
            if kind in kinds:
                return UserError(problem, fix)
    if isinstance(error, (OSError, RuntimeError)):
        said = f"{type(chain[-1]).__name__}: {str(chain[-1])[:200]}"
        return UserError(f"{hub_id} could not be downloaded: {said}", f"start again, or {_bring(source)}")
    return None
