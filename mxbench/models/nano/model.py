"""``Nano``: the built-in model behind the ``VideoModel`` protocol."""

from __future__ import annotations

from mxbench.models.base import ModelFacts, Sampling
from mxbench.models.nano.build import ARCHITECTURE, SEED, pipeline
from mxbench.models.render import PipelineModel

__all__ = ["Nano"]


class Nano(PipelineModel):
    """Wan2.2's pipeline at small size. In this version its weights are random: it compares methods, and draws noise."""

    FACTS = ModelFacts(
        weights=f"random weights, seed {SEED}",
        identity={"name": "nano", "weights": "random", "seed": SEED, "architecture": ARCHITECTURE},
        n_layers=ARCHITECTURE["transformer"]["num_layers"],
        n_experts=2,
        device="cpu",
        dtype="float32",
        sampling=Sampling(
            height=128, width=128, frames=17, fps=8, steps=8, guidance=(4.0, 3.0), max_sequence_length=64
        ),
    )

    def __init__(self) -> None:
        super().__init__(pipeline(SEED))
