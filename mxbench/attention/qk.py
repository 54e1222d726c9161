"""What happens to Q and K before they are quantised: means and the Hadamard rotation, in FP32 from exact sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from mxbench.attention.spec import AttentionSpec, Hadamard, KMean, QBlockMean
from mxbench.errors import UserError

__all__ = ["Prepared", "contiguous_fp32", "hadamard_matrix", "mean_of", "prepare_qk"]


@cache
def hadamard_matrix(d: int, sign_seed: int | None = None) -> torch.Tensor:
    """The rotation R of ``x @ R``: signs, then Sylvester's matrix over sqrt(D).

    Args:
        d: head dimension.
        sign_seed: None, or the seed of the channel signs (drawn as {0, 1}·2 - 1 from a CPU generator).

    Returns:
        FP32 ``[D, D]`` on the CPU, orthogonal.

    Raises:
        UserError: D is not a power of two.
    """
    if d < 1 or d & (d - 1):
        raise UserError(
            f"a Hadamard rotation needs a power of two, and D is {d}", "use a method without it (hadamard: false)"
        )
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < d:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    h = h / math.sqrt(d)
    if sign_seed is not None:
        generator = torch.Generator("cpu").manual_seed(sign_seed)
        h = (torch.randint(0, 2, (d,), generator=generator) * 2 - 1).double()[:, None] * h
    return h.float()


def mean_of(x: torch.Tensor, count: int | torch.Tensor) -> torch.Tensor:
    """The mean of rows, rounded to FP32 once: summed in FP64, so that it depends on no order of the sum.

    Args:
        x: FP32 ``[...,N,D]``; rows that are not counted are zero.
        count: how many are; an integer, or FP32 that broadcasts against ``[...,D]``.

    Returns:
        FP32 ``[...,D]``.
    """
    return (x.sum(-2, dtype=torch.float64) / count).float()


def _product(mean: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """FP32 ``mean @ k.mT``, summed in FP64 and rounded once; a head at a time, for FP64 needs room."""
    out = mean.new_empty(*mean.shape[:-1], k.shape[-2])
    for b in range(k.shape[0]):
        for h in range(k.shape[1]):
            out[b, h] = mean[b, h].double() @ k[b, h].double().mT
    return out


@dataclass(frozen=True, slots=True)
class Prepared:
    """Q and K as they enter the quantisers, and the term that Q smoothing owes the scores.

    Attributes:
        q: FP32 ``[B,H,Nq,D]``.
        k: FP32 ``[B,H,Nk,D]``.
        owed: FP32 ``[B,H,ceil(Nq/rows),Nk]``, to be added to the unscaled scores of each block of rows, or None.
        owed_rows: rows that share a row of ``owed``.
    """

    q: torch.Tensor
    k: torch.Tensor
    owed: torch.Tensor | None = None
    owed_rows: int = 1


def contiguous_fp32(x: torch.Tensor) -> torch.Tensor:
    """``x`` in FP32 and in one order of memory, so that no sum depends on the strides it came with."""
    return x.to(torch.float32, memory_format=torch.contiguous_format).contiguous()  # to() keeps the strides of FP32


def prepare_qk(q: torch.Tensor, k: torch.Tensor, spec: AttentionSpec) -> Prepared:
    """Apply the stages of ``spec.qk``.

    Args:
        q: ``[B,H,Nq,D]``, any float dtype, only real rows (padding would enter the block means).
        k: ``[B,H,Nk,D]``, only real keys.
        spec: the method.
    """
    q, k = contiguous_fp32(q), contiguous_fp32(k)
    owed, rows = None, 1
    if spec.stage(KMean) is not None:
        k = k - mean_of(k, k.shape[-2])[..., None, :]
    smooth = spec.stage(QBlockMean)
    if smooth is not None:
        n, rows = q.shape[-2], smooth.rows
        padded = torch.nn.functional.pad(q, (0, 0, 0, -n % rows)).unflatten(-2, (-1, rows))
        counts = q.new_full((padded.shape[-3],), float(rows))
        counts[-1] = n - rows * (len(counts) - 1)
        mean = mean_of(padded, counts[:, None])
        q = (padded - mean[..., None, :]).flatten(-3, -2)[..., :n, :]
        owed = _product(mean, k)
    rotate = spec.stage(Hadamard)
    if rotate is not None:
        d = q.shape[-1]
        # The exact sum, rounded once, then one factor: a code that lies beside a tie depends on no order of a sum.
        signs = hadamard_matrix(d, rotate.sign_seed).sign().to(q.device, torch.float64)
        q, k = ((x.double() @ signs).float().mul_(d**-0.5) for x in (q, k))
    return Prepared(q, k, owed, rows)
