"""Which video models there are. Each entry names the class that loads it; nothing heavy is imported before that."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mxbench.errors import unknown_name

if TYPE_CHECKING:
    from mxbench.models.base import ModelFacts, VideoModel

__all__ = ["MODELS", "ModelEntry", "facts", "load", "model_entry"]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model.

    Attributes:
        label: how tables print it.
        home: ``module:class`` of the ``VideoModel``; the class carries ``FACTS``.
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


def facts(name: str) -> ModelFacts:
    """What is known of the model before it is loaded."""
    known: ModelFacts = _home(name).FACTS  # type: ignore[attr-defined]
    return known


def load(name: str, device: str = "cpu") -> VideoModel:
    """Load a model; takes seconds to minutes.

    Args:
        name: in MODELS.
        device: see ``mxbench.models.device.resolve``.

    Raises:
        UserError: no such model or device, or no room there.
    """
    from mxbench.models.device import fits, resolve

    where = resolve(device, facts(name).dtypes)
    with fits(where):
        model: VideoModel = _home(name)(where)
    return model
