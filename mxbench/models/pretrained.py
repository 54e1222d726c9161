"""Where a model's weights come from: a folder, the hub's cache, the hub itself, or a seed. All is seen before loading.

``locate`` finds a diffusers pipeline and proves it whole, so that a gated licence, a missing shard or a file that was
cut short is one line before any GPU time is spent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from mxbench.errors import UserError
from mxbench.models.hub import from_hub
from mxbench.models.pipeline_folder import WORD, lacking, says_lacking
from mxbench.models.source import Located, Source

__all__ = ["locate", "parse_source"]


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
    if ".." in revision or not all(WORD.fullmatch(word) for word in revision.split("/")):
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
    lawful = weights.count("/") == 1 and len(weights) <= 96 and all(WORD.fullmatch(w) for w in weights.split("/"))
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
        return from_hub(source, components, ignore)
    root = _existing(source.name)
    if root is None or not root.is_dir():
        raise _no_folder(source.name)
    if missing := lacking(root, components, ignore):
        raise UserError(f"{root} {says_lacking(missing)}", f"bring it all, as by `hf download ID --local-dir {root}`")
    return Located(root, None)
