"""The protocol of a video model, and what a model family tells the seam."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch

from mxbench.models.memory import Need
from mxbench.policy import Schedule

__all__ = ["AttentionSite", "Family", "Frames", "Layout", "ModelFacts", "Render", "Sampling", "VideoModel", "Work"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a clip is sampled; all of it is part of a cell's identity.

    Attributes:
        height: pixels.
        width: pixels.
        frames: number of frames, see ``Frames``.
        fps: frames per second of the clip.
        steps: denoising steps.
        guidance: classifier-free guidance scale of each expert.
        negative_prompt: of the unconditional branch.
        max_sequence_length: text tokens, padded or cut to this.
    """

    height: int
    width: int
    frames: int
    fps: int
    steps: int
    guidance: tuple[float, ...]
    negative_prompt: str = ""
    max_sequence_length: int = 512


@dataclass(frozen=True, slots=True)
class Frames:
    """Which numbers of frames a VAE decodes: ``step``·k + ``first``, within bounds.

    Attributes:
        step: frames of a chunk.
        first: those that are left over.
        least: the fewest.
        most: the most; None for any.
    """

    step: int = 4
    first: int = 1
    least: int = 1
    most: int | None = None

    def near(self, frames: int) -> int:
        """The number nearest to ``frames`` that is decoded; of two, the larger."""
        nearest = (2 * (frames - self.first) + self.step) // (2 * self.step) * self.step + self.first
        most = nearest if self.most is None else self.most
        return max(self.least, min(nearest, most))

    def __contains__(self, frames: int) -> bool:
        return self.near(frames) == frames


@dataclass(frozen=True, slots=True)
class Render:
    """One rendered clip.

    Attributes:
        frames: uint8 ``[F,H,W,3]`` RGB.
        latents: FP32 final latents ``[C,F',H',W']``.
        fps: of the clip.
        denoise_s: seconds from the call to the last denoising step, text encoding included.
        decode_s: seconds of VAE decoding.
        calls: attention calls that the method computed.
        nonfinite_calls: those among them that were handed a NaN or an infinity.
        widened_calls: those that ``fast`` could not hold and ``conformance`` computed.
    """

    frames: np.ndarray
    latents: np.ndarray
    fps: Fraction
    denoise_s: float
    decode_s: float
    calls: int
    nonfinite_calls: int
    widened_calls: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What rendering a clip takes.

    Attributes:
        tokens: of a call of a transformer's self-attention.
        attention: floating-point operations of self-attention in a forward.
        linear: those of the transformer's other products.
        forwards: of transformers in a clip.
    """

    tokens: int
    attention: float
    linear: float
    forwards: int

    @property
    def flops(self) -> float:
        """Of a clip, its texts and its decoding left out."""
        return self.forwards * (self.attention + self.linear)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model before it is loaded.

    Attributes:
        weights: what the weights are, as tables print it, such as ``random weights, seed 0``.
        identity: everything about the model that changes pixels: architecture, weights, revision.
        n_layers: DiT blocks of a transformer.
        n_experts: transformers.
        dtypes: of its activations, as torch names it, by the type of the device: ``{"cpu": "float32"}``. On a type that
            is not named it does not run.
        sampling: how it samples unless a recipe says otherwise.
        ignores: fields of ``Sampling`` that it makes nothing of.
        tiles: whether its VAE decodes in tiles however it is placed.
        frames: numbers of frames that it renders.
        multiple: what height and width are multiples of.
        spread: attention heads that context parallelism deals out to GPUs; 0 where diffusers has no plan for it.
        uneven: whether the length of its sequences differs from prompt to prompt.
        kinds: of attention that a schedule may name.
        experts_at: the transformer that computes each of so many steps; None where there is one.
        need: bytes that it takes on a device at a sampling; None for one that is placed whole wherever it runs.
        work: what a clip of a sampling takes; None where nobody needs to be warned.
    """

    weights: str
    identity: Mapping[str, Any]
    n_layers: int
    n_experts: int
    dtypes: Mapping[str, str]
    sampling: Sampling
    ignores: tuple[str, ...] = ()
    tiles: bool = False
    frames: Frames = Frames()
    multiple: int = 16
    spread: int = 0
    uneven: bool = False
    kinds: tuple[str, ...] = ("self",)
    experts_at: Callable[[int], Sequence[int]] | None = None
    need: Callable[[Sampling], Need] | None = None
    work: Callable[[Sampling], Work] | None = None

    def dtype_on(self, device: str) -> str:
        """The dtype of the activations on a device such as ``cuda:1``, which must be of a type in ``dtypes``."""
        return self.dtypes[device.partition(":")[0]]

    def experts(self, steps: int) -> Sequence[int]:
        """The transformer that computes each of so many steps."""
        return (0,) * steps if self.experts_at is None else self.experts_at(steps)


class VideoModel(Protocol):
    """A loaded model that renders prompts.

    The class of one that brings its weights along carries ``FACTS``, and is called with the device to load it. That of
    any other has class methods ``facts(weights, revision)`` and ``load(device, weights, revision, memory)``.
    """

    def render(
        self,
        prompt: str,
        seed: int,
        sampling: Sampling,
        schedule: Schedule,
        impl: str,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Render:
        """Render one prompt; ``on_step(done, total)`` is called after each denoising step."""
        ...

    def self_test(self) -> None:
        """See that the seam with an identity kernel changes no bit of the model's output.

        Raises:
            UserError: it does.
        """
        ...


@dataclass(frozen=True, slots=True)
class AttentionSite:
    """An attention module of a transformer: its layer, its kind, and the module whose processor dispatches."""

    layer: int
    kind: str
    module: torch.nn.Module


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tokens of a transformer call lie in its self-attention.

    Attributes:
        grid: the video's tokens: frames, rows, columns.
        first: index of its first one. Joint attention has text, and perhaps sound, before or behind it.
        valid: how many tokens of each batch element are real, where padding follows them; None where all are.
    """

    grid: tuple[int, int, int]
    first: int = 0
    valid: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """What the seam knows of a model family.

    Attributes:
        name: of the family.
        pipelines: names of the diffusers pipeline classes.
        experts: attributes of the pipeline that hold its transformers, in the order of their index.
        sites: the attention modules of a transformer; text refiners are left out.
        layout: of a transformer call, from its keyword arguments.
        inputs: keyword arguments of a small transformer call, for the self-test; with padding in it where the family
            has any.
        take: has a module's attention computed by a function, and returns what undoes that; None where the module's
            processor dispatches to diffusers' registry. The function takes q, k and v ``[B,N,H,D]``, options as the
            registry has them, and the module's own computation ``f(q, k, v)``.
        hides: attention modules of it build a mask of their own, of every token against every other, from their
            argument ``attention_mask``: the seam cuts padding off and keeps them from it.
    """

    name: str
    pipelines: tuple[str, ...]
    experts: tuple[str, ...]
    sites: Callable[[Any], Sequence[AttentionSite]]
    layout: Callable[[Any, dict[str, Any]], Layout]
    inputs: Callable[[Any], dict[str, Any]]
    hides: bool = False
    take: Callable[[Any, Callable[..., torch.Tensor]], Callable[[], None]] | None = None
