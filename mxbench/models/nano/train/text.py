"""The stage ``text``: the text encoder learns, word by word, which object a word is of and what else is said of it.

A large model takes its text encoder from elsewhere, trained, and leaves it as it is; so does this one. Trained with the
DiT alone it did not learn whose colour a colour is, and objects exchanged shapes and sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from mxbench.models.nano import heldout, tokenizer
from mxbench.models.nano.scene import (
    BACKGROUNDS,
    BEHIND,
    COLOURS,
    DIRECTIONS,
    MOTIONS,
    PAN,
    PATTERNS,
    SHAPES,
    SIZES,
    Scene,
    random_scene,
    spoken,
)
from mxbench.models.nano.train.data import TEXT
from mxbench.models.nano.train.loop import Log
from mxbench.models.nano.train.optimise import adamw
from mxbench.models.nano.train.options import Options
from mxbench.models.nano.train.state import Session
from mxbench.models.nano.train.trainee import Task, Trainee

__all__ = ["CLASSES", "Heads", "embed", "labelled", "run"]

_OBJECT: dict[str, tuple[Any, ...]] = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "motion": MOTIONS,
    "size": (*SIZES, None),
    "striped": (False, True),
}
_GROUND: dict[str, tuple[Any, ...]] = {"background": tuple(BACKGROUNDS), "pattern": PATTERNS}
CLASSES = {**_OBJECT, **_GROUND, "pan": (*DIRECTIONS, None), "count": (1, 2)}
"""What is told from a word's embedding, and its values."""
_NOT_SAID = -100
_CAPTIONS = 65536


def embed(text_encoder: Any, ids: torch.Tensor) -> torch.Tensor:
    """FP32 embeddings ``[B,64,C]``, zero beyond each prompt as the pipeline makes them."""
    mask = (ids != 0).long()
    with torch.autocast(ids.device.type, enabled=False):
        # A lookup as a matrix product, whose gradient needs no sorting.
        table = text_encoder.get_input_embeddings().weight
        words = (ids[..., None] == torch.arange(len(table), device=ids.device)).to(table.dtype) @ table
        found: torch.Tensor = text_encoder(inputs_embeds=words, attention_mask=mask).last_hidden_state
    return found.float() * mask[..., None]


def _said(scene: Scene, owner: int | None) -> dict[str, Any]:
    """What the embedding of a word must tell: all of its object, or of what it is part of, and how many objects."""
    told: dict[str, Any] = {"count": len(scene.things)}
    if owner == BEHIND:
        told |= {name: getattr(scene, name) for name in _GROUND}
    elif owner == PAN:
        told["pan"] = scene.pan
    elif owner is not None:
        told |= {name: getattr(scene.things[owner], name) for name in _OBJECT}
        told["pan"] = scene.pan
    return told


def labelled(
    words: Any, scenes: Sequence[Scene], rng: np.random.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Captions as token ids ``[B,64]``, and what each token tells ``[B,64,9]``: indices into ``CLASSES``, or -100."""
    pieces = [spoken(scene, rng) for scene in scenes]
    texts = ["".join(text for text, _ in each) for each in pieces]
    found = words(texts, padding="max_length", max_length=TEXT, truncation=True, return_offsets_mapping=True)
    labels = np.full((len(scenes), TEXT, len(CLASSES)), _NOT_SAID, np.int64)
    for row, (scene, each) in enumerate(zip(scenes, pieces, strict=True)):
        owners = [owner for text, owner in each for _ in text]
        known = {
            owner: [
                values.index(told[name]) if name in told else _NOT_SAID
                for told in [_said(scene, owner)]
                for name, values in CLASSES.items()
            ]
            for owner in set(owners)
        }
        for at, (start, end) in enumerate(found["offset_mapping"][row]):
            if end > start:
                labels[row, at] = known[owners[end - 1]]
    return torch.tensor(found["input_ids"]), torch.from_numpy(labels)


class Heads(torch.nn.Module):
    """What is read off each embedding: the classes, and the word itself."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.sizes = [len(values) for values in CLASSES.values()]
        self.classes = torch.nn.Linear(width, sum(self.sizes))
        self.word = torch.nn.Linear(width, vocabulary)

    def forward(
        self, x: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Cross-entropy over embeddings ``[B,64,C]``, and the share of classes that are told right."""
        loss = functional.cross_entropy(self.word(x).flatten(0, 1), torch.where(ids == 0, _NOT_SAID, ids).flatten())
        right, of = torch.zeros_like(loss), torch.zeros_like(loss)
        for index, scores in enumerate(self.classes(x).split(self.sizes, -1)):
            truth = labels[..., index]
            loss = loss + functional.cross_entropy(scores.flatten(0, 1), truth.flatten())
            right = right + (scores.detach().argmax(-1) == truth).sum()
            of = of + (truth != _NOT_SAID).sum()
        return loss, {"told": right / of}


def run(options: Options, session: Session, log: Log) -> None:
    """Train the text encoder and measure it on the held-out prompts."""
    world, text_encoder = session.world, session.parts["text_encoder"]
    torch.manual_seed(options.seed)
    heads = Heads(text_encoder.config.d_model, len(tokenizer.VOCABULARY)).to(world.device)
    trainee = Trainee(
        {"text_encoder": text_encoder.requires_grad_(True), "heads": heads},
        [adamw([([*text_encoder.parameters(), *heads.parameters()], options.rate["text"])], world.device)],
    )
    path = session.resume("text", trainee)
    words = tokenizer.build()
    if fresh := not trainee.done:
        rng = np.random.default_rng((options.seed, 7, world.rank, trainee.step))
        total = 64 if options.toy else _CAPTIONS
        ids, labels = (t.to(world.device) for t in labelled(words, [random_scene(rng) for _ in range(total)], rng))
        longest = int((ids != 0).sum(1).max())
        ids, labels = ids[:, :longest], labels[:, :longest]  # Positions are relative: padding changes nothing.
        torch.manual_seed(options.seed * 1000 + 300 + world.rank + trainee.step)

        def loss() -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
            rows = torch.randint(total, (options.batch["text"],), device=world.device)
            found: tuple[torch.Tensor, dict[str, torch.Tensor]] = heads(
                embed(text_encoder, ids[rows]), ids[rows], labels[rows]
            )
            return found

        seconds = options.minutes["text"] * 60 / world.size
        session.train("text", trainee, Task(lambda _: None, loss), path, log, seconds=seconds)
    for name, state in trainee.averaged().items():
        {"text_encoder": text_encoder, "heads": heads}[name].load_state_dict(state)
    text_encoder.eval().requires_grad_(False)
    if fresh:
        ids, labels = (t.to(world.device) for t in labelled(words, heldout.scenes()))
        with torch.no_grad():
            told = heads(embed(text_encoder, ids), ids, labels)[1]["told"]
        session.note("text", trainee, log, processes=world.size, told_of_held_out=float(told))
