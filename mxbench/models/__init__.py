"""Which video models there are. Each entry names the class that loads it; nothing heavy is imported before that."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mxbench.errors import UserError, unknown_name

if TYPE_CHECKING:
    from mxbench.models.base import ModelFacts, VideoModel

__all__ = ["MODELS", "ModelEntry", "chooses", "facts", "load", "model_entry"]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model.

    Attributes:
        label: how tables print it.
        home: ``module:class`` of the ``VideoModel``.
        about: one sentence.
        prompts: the prompt set that suits it.
    """

    label: str
    home: str
    about: str
    prompts: str


MODELS: dict[str, ModelEntry] = {
    "nano": ModelEntry(
        "nano (Wan2.2 classes)",
        "mxbench.models.nano.model:Nano",
        "Wan2.2's pipeline at small size (two experts, guidance, UMT5, Wan VAE), trained on clips of moving shapes",
        "nano",
    ),
    "wan2.2": ModelEntry(
        "Wan2.2-T2V-A14B",
        "mxbench.models.wan22:Wan22",
        "two experts of 14 billion parameters, 81 frames of 720p in 40 steps; weights from the hub or a folder",
        "general",
    ),
    "hunyuanvideo": ModelEntry(
        "HunyuanVideo",
        "mxbench.models.hunyuanvideo:HunyuanVideo",
        "13 billion parameters, 129 frames of 720p in 50 steps; weights from the hub or a folder",
        "general",
    ),
    "hunyuanvideo-1.5": ModelEntry(
        "HunyuanVideo-1.5",
        "mxbench.models.hunyuanvideo15:HunyuanVideo15",
        "8 billion parameters, 121 frames of 720p in 50 steps of two forwards; weights from the hub or a folder",
        "general",
    ),
    "minimax-h3": ModelEntry(
        "MiniMax-H3",
        "mxbench.models.minimaxh3:MiniMaxH3",
        "33 billion parameters over text, sound and video, 243 frames of 768p in 49 steps; from the hub or a folder",
        "general",
    ),
    "longcat-video": ModelEntry(
        "LongCat-Video",
        "mxbench.models.longcatvideo:LongCatVideo",
        "14 billion parameters, 93 frames of 480p in 50 steps; needs its own package, weights from the hub or a folder",
        "general",
    ),
}


def model_entry(name: str) -> ModelEntry:
    """The entry of a name.

    Raises:
        UserError: no such model; the nearest names are offered.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS, hint="mxbench list models")
    return MODELS[name]


def _home(name: str) -> type:
    module, cls = model_entry(name).home.split(":")
    home: type = getattr(importlib.import_module(module), cls)
    return home


def chooses(name: str) -> bool:
    """Whether a model takes weights of the user's choice, rather than bring its own along."""
    return hasattr(_home(name), "facts")


def facts(name: str, weights: str | None = None, revision: str | None = None) -> ModelFacts:
    """What is known of the model before it is loaded; weights of a hub are fetched for it.

    Args:
        name: in MODELS.
        weights: a folder, a hub id, ``random`` or ``random:tiny``; None for the model's own.
        revision: of a hub id.

    Raises:
        UserError: no such model, or weights that are not to be had.
    """
    home = _home(name)
    if chooses(name):
        chosen: ModelFacts = home.facts(weights, revision)  # type: ignore[attr-defined]
        return chosen
    if weights is not None or revision is not None:
        raise UserError(f"{name} brings its own weights along", "leave --weights and --revision out")
    known: ModelFacts = home.FACTS  # type: ignore[attr-defined]
    return known


def load(
    name: str,
    device: str = "cpu",
    weights: str | None = None,
    revision: str | None = None,
    memory: str | None = None,
) -> VideoModel:
    """Load a model; takes seconds to minutes.

    Args:
        name: in MODELS.
        device: see ``mxbench.models.device.resolve``.
        weights: see ``facts``.
        revision: see ``facts``.
        memory: a name in ``mxbench.models.memory.MEMORY``; None for all of it on the device.

    Raises:
        UserError: no such model or device, no room there, or a diffusers that the models were not tested with.
    """
    from mxbench.models.device import fits, resolve
    from mxbench.models.tested import check_diffusers

    check_diffusers()
    home = _home(name)
    where = resolve(device, facts(name, weights, revision).dtypes)
    with fits(where, memory, loading=True):
        if hasattr(home, "load"):
            chosen: VideoModel = home.load(where, weights, revision, memory)
            return chosen
        model: VideoModel = home(where)
    return model
