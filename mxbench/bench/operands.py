"""The operands of a shape, and the part of the output that is compared: whole up to a size, then heads and rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec, VSmooth
from mxbench.attention.value import GroupingState, arrange
from mxbench.bench.shapes import Shape
from mxbench.dispatch import lloyd

__all__ = ["ABOUT", "BLOCK", "Operands", "Sample", "Seat", "draw", "grouped", "sample", "seat"]

ABOUT = "Gaussian; K with a mean of its own in every channel, V with a small one"

BLOCK = 128  # query rows that share a scale or a mean, at most
_SCORES = {"cpu": 1 << 27, "cuda": 1 << 29}  # compared at most: seconds on a core of a CPU
_HEADS = 4
# A step between two groupings of V-Smooth, inside its window: tokens reordered as before, block means made afresh.
_SITE = Site(expert=0, layer=0, n_layers=1, kind="self", step=1, n_steps=40)


@dataclass(frozen=True, slots=True)
class Operands:
    """Q ``[B,H,Nq,D]``, K and V ``[B,H,Nk,D]``, on one device and of one dtype."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Of all three."""
        return sum(t.numel() * t.element_size() for t in (self.q, self.k, self.v))

    def fingerprint(self) -> tuple[int, ...]:
        """Changes when somebody writes to them."""
        whole = torch.int16 if self.q.element_size() == 2 else torch.int32
        return tuple(int(t.view(whole).sum(dtype=torch.int64)) for t in (self.q, self.k, self.v))


def draw(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int) -> Operands:
    """Operands on which a kernel that leaves something out is wrong.

    K has a mean in every channel, which softmax does not see and quantisation does. V has one too, of the size of the
    output's own fluctuation: the sum of the wrong exponentials then shows, and does not drown the rest.

    Args:
        shape: of the call.
        device: where to.
        dtype: of all three.
        seed: of the device's generator.
    """
    dice = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=dice, device=device, dtype=dtype)

    lead, d = (shape.batch, shape.heads), shape.dim
    q = normal(*lead, shape.queries, d)
    k = normal(*lead, shape.keys, d)
    v = normal(*lead, shape.keys, d)
    k += normal(*lead, 1, d)
    v += normal(*lead, 1, d) * (2.0 / shape.keys**0.5)
    return Operands(q, k, v)


@dataclass(frozen=True, slots=True)
class Seat:
    """Where in a render the call of a method with state happens; nowhere, for the others."""

    site: Site | None = None
    state: GroupingState | None = None


def seat(operands: Operands, spec: AttentionSpec) -> Seat:
    """A step of a render for a method with V-Smooth, its grouping already made: most calls of a render are such."""
    if spec.v_smooth is None:
        return Seat()
    return Seat(_SITE, grouped(operands.v, spec.v_smooth))


def grouped(v: torch.Tensor, smooth: VSmooth) -> GroupingState:
    """V's grouping as the first step of a render makes it."""
    state = GroupingState(lloyd=lloyd)
    arrange(v, smooth, replace(_SITE, step=0), state)
    return state


@dataclass(frozen=True, slots=True)
class Sample:
    """Which heads and query rows of an output are compared, over all keys.

    Attributes:
        heads: int64 indices into batch × heads.
        rows: int64 indices of query rows, in whole blocks of 128.
        whole: whether these are all.
    """

    heads: torch.Tensor
    rows: torch.Tensor
    whole: bool

    def of_heads(self, x: torch.Tensor) -> torch.Tensor:
        """The heads of ``[B,H,N,D]``, all rows: ``[1,heads,N,D]``."""
        b, h = self.heads // x.shape[1], self.heads % x.shape[1]
        return x if self.whole else x[b, h][None]

    def of_rows(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of ``[1,heads,N,D]``."""
        return x if self.whole else x[..., self.rows, :]


def sample(shape: Shape, device: torch.device, scores: int | None = None) -> Sample:
    """What to compare: everything if it has few enough scores, else some heads and evenly spaced blocks of rows.

    Args:
        shape: of the call.
        device: of the indices.
        scores: so many at most, unless one block of one head already has more; by the device unless given.
    """
    scores = _SCORES[device.type] if scores is None else scores
    count = shape.batch * shape.heads
    if count * shape.queries * shape.keys <= scores:
        return Sample(torch.arange(count, device=device), torch.arange(shape.queries, device=device), True)
    n_heads = max(1, min(count, _HEADS, scores // (BLOCK * shape.keys)))
    blocks = -(-shape.queries // BLOCK)
    n_blocks = max(1, min(blocks, scores // (n_heads * BLOCK * shape.keys)))
    rows = torch.cat([torch.arange(i * BLOCK, min((i + 1) * BLOCK, shape.queries)) for i in _spread(blocks, n_blocks)])
    return Sample(torch.tensor(_spread(count, n_heads), device=device), rows.to(device), False)


def _spread(n: int, count: int) -> list[int]:
    """``count`` of 0..n-1, evenly spaced, the first and the last among them; the last alone, where it is one."""
    if count == 1:
        return [n - 1]
    return [i * (n - 1) // (count - 1) for i in range(count)]
