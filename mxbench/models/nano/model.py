"""``Nano``: the built-in model behind the ``VideoModel`` protocol."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mxbench.models.base import ModelFacts
from mxbench.models.nano import weights
from mxbench.models.nano.build import ARCHITECTURE, SAMPLING, SEED, pipeline, trained
from mxbench.models.placement import placed
from mxbench.models.render import PipelineModel
from mxbench.models.wan import KINDS, experts_at

__all__ = ["Nano", "RandomNano"]


def _facts(said: str, architecture: Mapping[str, Any], **identity: Any) -> ModelFacts:
    return ModelFacts(
        weights=said,
        identity={"name": "nano", **identity, "architecture": architecture},
        n_layers=architecture["transformer"]["num_layers"],
        n_experts=2,
        dtypes={"cpu": "float32", "cuda": "float16"},
        sampling=SAMPLING,
        kinds=KINDS,
        spread=architecture["transformer"]["num_attention_heads"],
        experts_at=partial(experts_at, architecture["scheduler"], architecture["pipeline"]["boundary_ratio"]),
    )


def _placed(pipe: Any, device: str, facts: ModelFacts) -> Any:
    return placed(pipe, device, half=facts.dtype_on(device) == "float16")


class RandomNano(PipelineModel):
    """Wan2.2's pipeline at small size with random weights: it tests the seam, and draws noise.

    Args:
        device: ``cpu``, or a CUDA device as ``mxbench.models.device.resolve`` returns it.
    """

    FACTS = _facts(f"random weights, seed {SEED}", ARCHITECTURE, weights="random", seed=SEED)

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(_placed(pipeline(SEED), device, self.FACTS))


_SHIPPED = weights.manifest(weights.SHIPPED)
_DIGEST = weights.digest(_SHIPPED)


class Nano(PipelineModel):
    """Wan2.2's pipeline at small size, trained on captioned clips of moving shapes.

    Without its weights it is an error and never a random model: the table would speak of something else.

    Args:
        device: ``cpu``, or a CUDA device as ``mxbench.models.device.resolve`` returns it.
    """

    FACTS = _facts(f"trained, {_DIGEST[:12]}", _SHIPPED["architecture"], weights=_DIGEST)

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(_placed(trained(), device, self.FACTS))
