"""Clips while they are needed: sampled on the CPU in a thread, drawn on the device, their latents kept in a pool."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
import torch

from mxbench.models.nano import tokenizer
from mxbench.models.nano.layout import Clips, sample

__all__ = ["TEXT", "Feeder", "Pool", "tokens"]

TEXT = 64
"""Text tokens; the sampling's ``max_sequence_length``."""


def tokens(words: object, texts: Sequence[str]) -> torch.Tensor:
    """Token ids ``[B,64]`` as the pipeline makes them; ids of 0 are padding."""
    found = words(list(texts), padding="max_length", max_length=TEXT, truncation=True, return_tensors="pt")  # type: ignore[operator]
    ids: torch.Tensor = found.input_ids
    return ids


class Feeder:
    """Batches of sampled clips, made ahead in a thread.

    Args:
        seed: everything that tells this stream from others.
        batch: clips a batch.
        device: where the geometry goes.
        captions: whether token ids are needed.
    """

    def __init__(self, seed: Sequence[int], batch: int, device: torch.device, *, captions: bool) -> None:
        self._rng = np.random.default_rng(list(seed))
        self._batch, self._device = batch, device
        self._words = tokenizer.build() if captions else None
        self._ready: queue.Queue[tuple[torch.Tensor | None, dict[str, torch.Tensor]] | BaseException] = queue.Queue(6)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _make(self) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
        texts, clips = sample(self._rng, self._batch)
        params = {f.name: torch.from_numpy(getattr(clips, f.name)) for f in fields(Clips)}
        ids = None if self._words is None else tokens(self._words, texts)
        if self._device.type == "cuda":
            params = {k: v.pin_memory() for k, v in params.items()}
        return ids, params

    def _work(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while not self._closed.is_set():
            try:
                made: tuple[torch.Tensor | None, dict[str, torch.Tensor]] | BaseException = self._make()
            except Exception as error:  # noqa: BLE001 - handed to the thread that waits for a batch
                made = error
            while not self._closed.is_set():
                try:
                    self._ready.put(made, timeout=0.2)
                    break
                except queue.Full:
                    continue

    def next(self) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
        """Token ids on the CPU, and the geometry on the device."""
        made = self._ready.get()
        if isinstance(made, BaseException):
            raise made
        ids, params = made
        return ids, {k: v.to(self._device, non_blocking=True) for k, v in params.items()}

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()


class Pool:
    """Normalised latents and token ids on the device, of which the oldest are replaced while training.

    Args:
        feeder: where clips come from.
        encode: geometry to latents ``[b,16,5,16,16]``.
        size: clips held.
    """

    def __init__(self, feeder: Feeder, encode: Callable[[dict[str, torch.Tensor]], torch.Tensor], size: int) -> None:
        self._feeder, self._encode, self._next = feeder, encode, 0
        ids, latents = self._new()
        self.size = -(-size // len(ids)) * len(ids)
        self.ids = torch.zeros((self.size, *ids.shape[1:]), dtype=torch.int32, device=latents.device)
        self.latents = torch.zeros((self.size, *latents.shape[1:]), dtype=torch.bfloat16, device=latents.device)
        self._put(ids, latents)
        while self._next:
            self.renew()

    def _new(self) -> tuple[torch.Tensor, torch.Tensor]:
        ids, params = self._feeder.next()
        assert ids is not None
        return ids, self._encode(params)

    def _put(self, ids: torch.Tensor, latents: torch.Tensor) -> None:
        rows = slice(self._next, self._next + len(ids))
        self.ids[rows] = ids.to(self.ids.device, torch.int32, non_blocking=True)
        self.latents[rows] = latents.to(torch.bfloat16)
        self._next = rows.stop % self.size

    def renew(self) -> None:
        """Replace the oldest batch by a new one."""
        self._put(*self._new())

    def take(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids ``[n,64]`` and FP32 latents of random clips."""
        rows = torch.randint(self.size, (n,), device=self.latents.device)
        return self.ids[rows].long(), self.latents[rows].float()
