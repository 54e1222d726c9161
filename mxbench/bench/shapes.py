"""Attention shapes: what the command line writes, and those of the video models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mxbench.errors import UserError, unknown_name

__all__ = ["MODEL_SHAPES", "ModelShape", "Shape", "chosen_shapes", "parse_shape"]

_WRITTEN = re.compile(r"([0-9]+)[x×]([0-9]+)[x×]([0-9]+)[x×]([0-9]+)(?::([0-9]+))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Shape:
    """One attention call: Q ``[batch,heads,queries,dim]``, K and V ``[batch,heads,keys,dim]``, not causal."""

    batch: int
    heads: int
    queries: int
    keys: int
    dim: int

    def __str__(self) -> str:
        tail = f":{self.keys}" if self.keys != self.queries else ""
        return f"{self.batch}x{self.heads}x{self.queries}x{self.dim}{tail}"

    @property
    def title(self) -> str:
        """As tables print it, such as ``1×40×75600×128``."""
        return str(self).replace("x", "×")

    @property
    def flop(self) -> int:
        """Operations of the two matrix products: 4·B·H·Nq·Nk·D."""
        return 4 * self.batch * self.heads * self.queries * self.keys * self.dim


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The self-attention of a model at one size of clip.

    Attributes:
        model: the name on the command line.
        label: model and clip, as tables print it.
        shape: of one call, one guidance branch.
        source: where the numbers come from.
    """

    model: str
    label: str
    shape: Shape
    source: str


def _self(heads: int, tokens: int, dim: int = 128) -> Shape:
    return Shape(1, heads, tokens, tokens, dim)


_CARD = "heads and head dimension of the published configuration; tokens: latent frames × height/16 × width/16"
_PACKED = "heads of the published configuration; video, sound and text packed in one sequence"

MODEL_SHAPES: tuple[ModelShape, ...] = (
    ModelShape("nano", "nano, 17 frames of 128×128", _self(2, 1_280), "mxbench's built-in model"),
    ModelShape("wan2.2", "Wan2.2-T2V-A14B, 81 frames of 1280×720", _self(40, 75_600), f"{_CARD}, 21 × 45 × 80"),
    ModelShape(
        "hunyuanvideo",
        "HunyuanVideo, 129 frames of 1280×720",
        _self(24, 119_056),
        f"{_CARD}, 33 × 45 × 80, and 256 of text in the joint attention",
    ),
    ModelShape(
        "hunyuanvideo-1.5",
        "HunyuanVideo-1.5, 121 frames of 1280×720",
        _self(16, 113_585),
        f"{_CARD}, 31 × 45 × 80, and 1,985 of text in the joint attention",
    ),
    ModelShape(
        "minimax-h3",
        "MiniMax-H3, 243 frames of 1344×768",
        _self(56, 73_486),
        f"{_PACKED}, 72 × 24 × 42, 810 and 100",
    ),
    ModelShape(
        "minimax-h3",
        "MiniMax-H3, 124 frames of 1344×768",
        _self(56, 37_810),
        f"{_PACKED}, 37 × 24 × 42, 414 and 100",
    ),
    ModelShape("longcat-video", "LongCat-Video, 93 frames of 832×480", _self(32, 37_440), f"{_CARD}, 24 × 30 × 52"),
)


def parse_shape(text: str) -> Shape:
    """A shape as the command line writes it: ``BxHxNxD``, or ``BxHxNqxD:Nk`` for keys of another length.

    Raises:
        UserError: it is written otherwise, or a number is zero.
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        raise UserError(f"--shape {text!r} is no shape", "write BxHxNxD or BxHxNqxD:Nk, such as 1x40x75600x128")
    batch, heads, queries, dim = (int(found[i]) for i in range(1, 5))
    keys = queries if found[5] is None else int(found[5])
    if min(batch, heads, queries, keys, dim) < 1:
        raise UserError(f"--shape {text!r} has nothing in it", "use numbers from 1 on")
    return Shape(batch, heads, queries, keys, dim)


def chosen_shapes(models: Sequence[str], written: Sequence[str]) -> list[tuple[str, Shape]]:
    """Titles and shapes of a run: those of the models, then those written; nano's if neither is given.

    Raises:
        UserError: no such model, or a shape that cannot be read.
    """
    known = {each.model for each in MODEL_SHAPES}
    found: dict[Shape, str] = {}
    for model in models or ([] if written else ["nano"]):
        if model.lower() not in known:
            raise unknown_name("model", model, known)
        for each in MODEL_SHAPES:
            if each.model == model.lower():
                found.setdefault(each.shape, each.label)
    for text in written:
        shape = parse_shape(text)
        same = next((each.label for each in MODEL_SHAPES if each.shape == shape), "")
        found.setdefault(shape, same)
    return [(label, shape) for shape, label in found.items()]
