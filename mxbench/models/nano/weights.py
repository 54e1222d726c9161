"""Weights in a folder: safetensors in FP16, in files of a size that travels, and a JSON with their checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mxbench.errors import UserError

__all__ = ["MANIFEST", "SHIPPED", "Weights", "digest", "fill", "load", "manifest", "save"]

SHIPPED = Path(__file__).parent / "weights"
"""The folder of the weights that come with mxbench."""
MANIFEST = "nano.json"
_LIMIT = 15 << 20
_FIX = "install mxbench again, or train the weights with `python -m mxbench.models.nano.train`"


@dataclass(frozen=True, slots=True)
class Weights:
    """What a folder holds.

    Attributes:
        architecture: of the networks, as ``build.modules`` takes it.
        parts: the state of each network, FP32.
        training: facts about the training.
        digest: SHA-256 over the checksums of all files.
    """

    architecture: Mapping[str, Mapping[str, Any]]
    parts: Mapping[str, Mapping[str, torch.Tensor]]
    training: Mapping[str, Any]
    digest: str


def _own(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a state, tied ones once."""
    found: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in state.items():
        if (key := (tensor.data_ptr(), tensor.shape)) not in seen:
            seen.add(key)
            found[name] = tensor
    return found


def save(
    folder: Path,
    parts: Mapping[str, Mapping[str, torch.Tensor]],
    architecture: Mapping[str, Mapping[str, Any]],
    training: Mapping[str, Any],
) -> None:
    """Write the states of networks in FP16, in files of at most 15 MiB, and the manifest last.

    Raises:
        UserError: a weight that FP16 cannot hold.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, torch.Tensor]] = [{}]
    room = _LIMIT
    for part, state in parts.items():
        for name, tensor in _own(state).items():
            half = tensor.detach().to("cpu", torch.float16).contiguous().clone()
            if not bool(torch.isfinite(half).all()):
                raise UserError(
                    f"{part}/{name} holds a number that FP16 cannot", "lower the learning rate and train on"
                )
            if half.nbytes > room:
                shards.append({})
                room = _LIMIT
            shards[-1][f"{part}/{name}"] = half
            room -= half.nbytes
    for old in folder.glob("weights-*.safetensors"):
        old.unlink()
    files = {}
    for number, shard in enumerate(shards, 1):
        path = folder / f"weights-{number}.safetensors"
        save_file(shard, path)
        files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    text = json.dumps({"architecture": architecture, "files": files, "training": training}, indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of weights.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not found["files"] or not found["architecture"]:
            raise KeyError("files")
    except FileNotFoundError:
        raise UserError(f"there are no weights of the nano model in {folder}", _FIX) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged", _FIX) from error
    return dict(found)


def digest(found: Mapping[str, Any]) -> str:
    """SHA-256 over the checksums of a manifest's files."""
    return hashlib.sha256("".join(sorted(found["files"].values())).encode()).hexdigest()


def load(folder: Path = SHIPPED) -> Weights:
    """Read a folder of weights. No network is asked.

    Raises:
        UserError: a file is missing, or its checksum is not the manifest's.
    """
    from safetensors.torch import load as parse

    found = manifest(folder)
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, checksum in found["files"].items():
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            raise UserError(f"the nano model's weights {folder / name} cannot be read", _FIX) from error
        if hashlib.sha256(data).hexdigest() != checksum:
            raise UserError(f"the nano model's weights {folder / name} are damaged (their checksum differs)", _FIX)
        for key, tensor in parse(data).items():
            part, _, inner = key.partition("/")
            parts.setdefault(part, {})[inner] = tensor.float()
    return Weights(found["architecture"], parts, found.get("training", {}), digest(found))


def fill(module: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Load a saved state; only a tied tensor may be missing from it.

    Raises:
        UserError: the state is another network's.
    """
    mine = module.state_dict()
    missing = set(_own(mine)) - set(state)
    if missing or set(state) - set(mine) or any(mine[k].shape != v.shape for k, v in state.items()):
        raise UserError("the nano model's weights do not fit its architecture", _FIX)
    module.load_state_dict(state, strict=False)
