"""``Site``: where in a render one attention call happens."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Site"]


@dataclass(frozen=True, slots=True)
class Site:
    """One attention call of a denoising loop.

    Attributes:
        expert: index of the transformer (Wan2.2: 0 high noise, 1 low noise).
        layer: index of the DiT block, counted through the whole transformer.
        n_layers: number of DiT blocks.
        kind: ``self``, which joint attention over video and text is too, or ``cross``.
        step: index of the denoising step, from 0.
        n_steps: number of denoising steps.
        branch: index of the guidance branch inside the step (0 conditional, 1 unconditional).
        grid: latent grid (frames, height, width) in tokens, or None where it is not known.
        first: index of the grid's first token.
    """

    expert: int
    layer: int
    n_layers: int
    kind: str
    step: int
    n_steps: int
    branch: int = 0
    grid: tuple[int, int, int] | None = None
    first: int = 0
