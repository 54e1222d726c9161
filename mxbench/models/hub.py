"""Pipelines of the hub: from its cache without asking the network, else by a download whose failure is one line."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from mxbench.errors import UserError
from mxbench.models.pipeline_folder import INDEXES, UNINDEXED, UNREAD, Names, components_of, lacking, says_lacking
from mxbench.models.source import Located, Source

__all__ = ["NotFetched", "from_hub", "not_fetching"]

# By name: between versions of huggingface_hub the classes move, and the HTTP library below them has changed twice.
_NETWORK = {"TransportError", "ConnectionError", "Timeout", "TimeoutException", "TimeoutError", "gaierror"}


_fetches = ContextVar("fetches", default=True)


class NotFetched(UserError):
    """Weights that a run would fetch."""


@contextmanager
def not_fetching() -> Iterator[None]:
    """Within, weights that are not here are a ``NotFetched`` and no download."""
    token = _fetches.set(False)
    try:
        yield
    finally:
        _fetches.reset(token)


def from_hub(source: Source, components: Names, ignore: Sequence[str]) -> Located:
    """A hub id's pipeline, from the cache where that holds it whole, else downloaded; see ``pretrained.locate``.

    Raises:
        UserError: something is missing, or cannot be downloaded; it says what, and what to do.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    names = (*INDEXES, *UNINDEXED)
    found = ((try_to_load_from_cache(source.name, name, revision=source.revision), name) for name in names)
    root = next((_above(Path(file).absolute(), name) for file, name in found if isinstance(file, str)), None)
    state = f"{source.name} is not in the cache {constants.HF_HUB_CACHE}"
    if source.revision is not None:
        there = _revisions(source.name)
        state = f"revision {source.revision} of {state}" + (f", which has {', '.join(there)}" if there else "")
    if root is not None:
        missing = lacking(root, components, ignore, _listed(source.name, root.name))
        if not missing:
            return Located(root, root.name)
        state = f"{source.name} in the cache {constants.HF_HUB_CACHE} {says_lacking(missing)}"
    if not _fetches.get():
        raise NotFetched(f"{state}: the run fetches it", f"or {_bring(source)}")
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{state}, and HF_HUB_OFFLINE is set", f"unset it, or {_bring(source)}")
    try:
        root = _download(source, components, ignore)
    except Exception as error:
        known = None if isinstance(error, UserError) else _explain(error, source, state)
        if known is None:
            raise
        raise known from error
    if missing := lacking(root, components, ignore, _listed(source.name, root.name)):
        raise UserError(
            f"{source.name} {says_lacking(missing)} even after its download", f"start again, or {_bring(source)}"
        )
    return Located(root, root.name)


def _above(file: Path, name: str) -> Path:
    """The folder in which a file has a name."""
    return file.parents[name.count("/")]


def _revisions(hub_id: str) -> list[str]:
    """The branches and tags of a repository that are in the cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    refs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=hub_id, repo_type="model") / "refs"
    return sorted(str(file.relative_to(refs)) for file in refs.rglob("*") if file.is_file())


def _listed(hub_id: str, commit: str) -> list[str]:
    """The files of a commit, where the cache keeps their list."""
    from huggingface_hub import errors, get_cached_repo_tree

    try:
        return [file.path for file in get_cached_repo_tree(hub_id, revision=commit)]
    except errors.CachedRepoTreeNotFoundError:
        return []


def _download(source: Source, components: Names, ignore: Sequence[str]) -> Path:
    """Bring the components to the cache. Raises what huggingface_hub raises."""
    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download

    # Asked first, since it is the one call that does not turn a failure into whatever the cache holds.
    info = HfApi().model_info(source.name, revision=source.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    there = {file.rfilename for file in info.siblings or ()}
    index = next((name for name in (*INDEXES, *UNINDEXED) if name in there), None)
    if index is None:
        raise UserError(f"{source.name} on the hub holds no {INDEXES[0]}", "pass the hub id of a diffusers pipeline")
    first = hf_hub_download(source.name, index, revision=info.sha or source.revision)
    allow = [*INDEXES, *(f"{folder}/*" for folder, _, _ in components_of(_above(Path(first), index), components))]
    deny = [*ignore, *UNREAD]
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
