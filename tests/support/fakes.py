"""A model that renders at once: noise made from the prompt, the seed and the method."""

import hashlib
import os
from fractions import Fraction
from pathlib import Path

import numpy as np

from mxbench.errors import CellFailed
from mxbench.models import facts
from mxbench.models.base import Render


class FakeModel:
    """Renders 32×32 clips; the prompt decides what goes wrong. Each render is noted in $RENDERS."""

    FACTS = facts("nano")

    def __init__(self, fail=None):
        self.fail = fail or {}
        self.rendered = []

    def self_test(self):
        pass

    def render(self, prompt, seed, sampling, schedule, impl, on_step=None):
        key = f"{prompt}|{seed}|{schedule.id}|{impl}"
        self.rendered.append((schedule.name, prompt, seed))
        if log := os.environ.get("RENDERS"):
            with Path(log).open("a") as handle:
                handle.write(key + "\n")
        problem = self.fail.get(schedule.name)
        if problem == "nan":
            raise CellFailed("NaN or infinity in the latents from step 1")
        if isinstance(problem, BaseException):
            raise problem
        for step in range(sampling.steps):
            if on_step is not None:
                on_step(step + 1, sampling.steps)
        base = np.random.default_rng(int(hashlib.sha256(f"{prompt}{seed}".encode()).hexdigest()[:8], 16))
        noise = np.random.default_rng(int(hashlib.sha256(key.encode()).hexdigest()[:8], 16))
        frames = base.integers(40, 200, (sampling.frames, 32, 32, 3))
        frames = np.clip(frames + noise.integers(-9, 10, frames.shape), 0, 255).astype(np.uint8)
        if problem == "black":
            frames[:] = 0
        latents = base.normal(size=(4, 2, 4, 4)).astype(np.float32)
        return Render(frames, latents, Fraction(sampling.fps), 0.01, 0.001, 8, 0)
