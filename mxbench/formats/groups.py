"""Which elements share a scale: a zero-padded view of a tensor, and the dimensions that one group spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mxbench.formats.quantizer import Quantizer

__all__ = ["ROWS", "Groups", "Role"]

ROWS = 128  # tokens of a `rows` group

Role = Literal["q", "k", "v", "p"]


@dataclass(frozen=True, slots=True)
class Groups:
    """A grouping of tensors ``[..., N, D]``.

    Attributes:
        transposed: the view is made of the transpose (blocks that run along tokens).
        length: length of the padded dimension before padding.
        padded: that dimension of the (transposed) tensor, -1 or -2.
        pad: zeros appended to it; they never change a largest magnitude.
        view: trailing dimensions of the view, in place of the tensor's last two.
        dims: dimensions of the view that a group spans.
    """

    transposed: bool
    length: int
    padded: int
    pad: int
    view: tuple[int, ...]
    dims: tuple[int, ...]

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """The view of ``x``, padded."""
        if self.transposed:
            x = x.transpose(-1, -2)
        if self.pad:
            widths = (0, self.pad) if self.padded == -1 else (0, 0, 0, self.pad)
            x = torch.nn.functional.pad(x, widths)
        return x.reshape(*x.shape[:-2], *self.view)

    def restore(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of ``split``: padding cut off, shape and order of the input."""
        lead = x.shape[: x.dim() - len(self.view)]
        padded_length = self.length + self.pad
        x = x.reshape(*lead, -1, padded_length) if self.padded == -1 else x.reshape(*lead, padded_length, x.shape[-1])
        x = x.narrow(self.padded, 0, self.length)
        return x.transpose(-1, -2) if self.transposed else x


def grouping(shape: torch.Size, quantizer: Quantizer, axis: int, role: Role) -> Groups:
    """The groups of a tensor.

    Args:
        shape: of the tensor, ``[..., N, D]``.
        quantizer: its granularity decides.
        axis: -1 (along D: Q and K) or -2 (along tokens: V); only block formats read it.
        role: the operand; only SageAttention2's per-thread groups read it.
    """
    n, d = shape[-2:]
    if quantizer.granularity == "block":
        block = quantizer.form.block
        assert block is not None
        rows, length = (n, d) if axis == -1 else (d, n)
        pad = -length % block
        return Groups(axis == -2, length, -1, pad, (rows, (length + pad) // block, block), (-1,))
    if quantizer.granularity in ("tensor", "channel"):
        dims = (-2, -1) if quantizer.granularity == "tensor" else (-2,)
        return Groups(False, n, -2, 0, (n, d), dims)
    if quantizer.granularity == "unit":
        raise ValueError("unit granularity has no groups")
    if quantizer.granularity == "rows":
        pad = -n % ROWS
        return Groups(False, n, -2, pad, ((n + pad) // ROWS, ROWS, d), (-2, -1))
    if role == "q":  # rows r and r + 8 of every 16
        pad = -n % 16
        return Groups(False, n, -2, pad, ((n + pad) // 16, 2, 8, d), (-3, -1))
    pad = -n % 128  # token pairs (8i + 2t, 8i + 2t + 1) of every 128, for each t of 0..3
    return Groups(False, n, -2, pad, ((n + pad) // 128, 16, 4, 2, d), (-4, -2, -1))
