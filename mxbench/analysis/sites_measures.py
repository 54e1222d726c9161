"""What is measured of one attention call: its operands, the rows of P, and the block means of V.

Everything is per head and then averaged over heads. Elements are upcast to FP64 where they are summed; scores and their
softmax are FP32, as in the reference. Undefined values (the kurtosis of a constant) are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from mxbench.attention.methods import METHODS
from mxbench.attention.qk import contiguous_fp32
from mxbench.attention.site import Site
from mxbench.attention.value import GroupingState, arrange
from mxbench.formats.block import quantise
from mxbench.formats.element import E2M1
from mxbench.formats.groups import ROWS
from mxbench.formats.quantizer import Quantizer

__all__ = [
    "HIGH_ENTROPY",
    "Measures",
    "block_mean_share",
    "channel_outlier",
    "kurtosis",
    "measure",
    "row_measures",
    "sampled_rows",
    "token_outlier",
]

HIGH_ENTROPY = 5.0
"""Nats. MXAttention, section 5.5.2, speaks of "entropy above 5"; that these are nats is our reading."""

_TILE = 1 << 22  # probabilities held at once
_TILE_ROWS = 512


@dataclass(frozen=True, slots=True)
class Measures:
    """Statistics of attention, means over heads.

    Attributes:
        q_kurtosis: Pearson kurtosis (3 for a Gaussian) of the elements of Q. Likewise ``k_kurtosis``, ``v_kurtosis``.
        k_kurtosis: of K.
        v_kurtosis: of V.
        q_channels: channel outliers of Q: the largest over channels of a channel's RMS over tokens, divided by the
            median over channels. Likewise ``k_channels``, ``v_channels``.
        k_channels: of K.
        v_channels: of V.
        v_tokens: token outliers of V: the largest over tokens of a token's largest magnitude, divided by the median
            over tokens.
        entropy: of the rows of P = softmax(QK^T/sqrt(D)), nats; mean over rows.
        entropy_above_5: share of the rows whose entropy exceeds 5 nats.
        row_sum: sum of a row of P after the *normalised* P was quantised as the method ``mxfp4`` quantises (OCP MXFP4,
            blocks of 32 along keys in sequence order); mean over rows. A diagnostic (MXAttention, section 5.5.2): no
            method materialises P, and Q, K are exact here.
        row_sum_below_1: share of the rows whose sum is below 1.
        zeroing: what elements rounded to zero add to ``row_sum - 1``, which is the sum of the four parts.
        saturation: what elements above 6 times their block's scale add to it.
        rounded_down: what the other elements that became smaller add.
        rounded_up: what elements that became larger add.
        v_energy_sequence: share of the energy of V (sum of squares) that lies in the means of its blocks of 128 tokens
            in sequence order, so what subtracting the means removes; the last block may be shorter.
        v_energy_grouped: the same after V-Smooth's grouping, as the method ``vc8`` groups at step 0: afresh in every
            call, at every step. (The method itself keeps a grouping for some steps and then drops the means.)
    """

    q_kurtosis: float
    k_kurtosis: float
    v_kurtosis: float
    q_channels: float
    k_channels: float
    v_channels: float
    v_tokens: float
    entropy: float
    entropy_above_5: float
    row_sum: float
    row_sum_below_1: float
    zeroing: float
    saturation: float
    rounded_down: float
    rounded_up: float
    v_energy_sequence: float
    v_energy_grouped: float

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The statistics in the order of the fields."""
        return tuple(each.name for each in fields(cls))


def kurtosis(x: torch.Tensor) -> torch.Tensor:
    """Pearson kurtosis of all elements of a tensor, FP64: mean (x - mean)^4 over squared variance."""
    centred = x.double()
    squares = (centred - centred.mean()).square_()
    return squares.square().mean() / squares.mean().square()


def channel_outlier(x: torch.Tensor) -> torch.Tensor:
    """Largest RMS of a channel of ``[N,D]`` over the median of the channels' RMS, FP64."""
    return _peak(x.double().square().mean(0).sqrt())


def token_outlier(x: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of a token of ``[N,D]`` over the median of the tokens' largest magnitudes, FP64."""
    return _peak(x.abs().amax(-1).double())


def _peak(sizes: torch.Tensor) -> torch.Tensor:
    ordered = sizes.sort().values
    middle = ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]].mean()
    return ordered[-1] / middle


def block_mean_share(v: torch.Tensor) -> torch.Tensor:
    """Share of the sum of squares of ``[N,D]`` in the means of blocks of 128 rows, FP64; the last may be short."""
    n = len(v)
    padded = torch.nn.functional.pad(v.double(), (0, 0, 0, -n % ROWS)).unflatten(0, (-1, ROWS))
    counts = torch.full((len(padded), 1), float(ROWS), dtype=torch.float64, device=v.device)
    counts[-1] = n - ROWS * (len(padded) - 1)
    share: torch.Tensor = (padded.sum(1).square() / counts).sum() / padded.square().sum()
    return share


def sampled_rows(n: int, rows: int) -> torch.Tensor:
    """Indices of at most ``rows`` of ``n`` rows, evenly spaced from 0: floor(i·n/rows)."""
    count = min(n, rows)
    return torch.arange(count) * n // count


def row_measures(q: torch.Tensor, k: torch.Tensor, rows: int, quantizer: Quantizer) -> dict[str, torch.Tensor]:
    """The statistics of the rows of P, for one head.

    Args:
        q: FP32 ``[Nq,D]``.
        k: FP32 ``[Nk,D]``.
        rows: at most so many query rows are looked at, see ``sampled_rows``. P is held for some of them at a time.
        quantizer: MXFP4, of the normalised P.

    Returns:
        FP64 scalars by their names in ``Measures``.
    """
    taken = q[sampled_rows(len(q), rows).to(q.device)]
    keys, scale = k.transpose(-1, -2), q.shape[-1] ** -0.5
    tile = max(1, min(_TILE_ROWS, _TILE // len(k)))
    columns = [_rows_of((part @ keys).mul_(scale).softmax(-1), quantizer) for part in taken.split(tile)]
    row = {name: torch.cat([each[name] for each in columns]) for name in columns[0]}
    return {name: value.mean() for name, value in row.items()}


def _rows_of(p: torch.Tensor, quantizer: Quantizer) -> dict[str, torch.Tensor]:
    """The statistics of each row of P ``[R,Nk]``, FP64 ``[R]``."""
    entropy = torch.special.entr(p).sum(-1, dtype=torch.float64)
    quantised = quantise(p, quantizer, role="p")
    kept = quantised.elements * quantised.scale
    blocks = quantised.groups.split(p)
    error = kept - blocks

    def part(where: torch.Tensor) -> torch.Tensor:
        return torch.where(where, error, 0.0).sum((-2, -1), dtype=torch.float64)

    zero, full = quantised.elements == 0, blocks > quantised.scale * E2M1.max
    row_sum = kept.sum((-2, -1), dtype=torch.float64)
    return {
        "entropy": entropy,
        "entropy_above_5": (entropy > HIGH_ENTROPY).double(),
        "row_sum": row_sum,
        "row_sum_below_1": (row_sum < 1).double(),
        "zeroing": part(zero),
        "saturation": part(full),
        "rounded_down": part((error < 0) & ~zero & ~full),
        "rounded_up": part(error > 0),
    }


def measure(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, site: Site, rows: int) -> Measures:
    """All statistics of one call.

    Args:
        q: ``[B,H,Nq,D]``, any float dtype; not changed. Likewise ``k`` and ``v``, ``[B,H,Nk,D]``.
        k: keys.
        v: values.
        site: where the call happens; V-Smooth's grouping reads the latent grid from it.
        rows: at most so many query rows a head enter the statistics of P.
    """
    smooth, p = METHODS["vc8"].spec.v_smooth, METHODS["mxfp4"].spec.p
    assert smooth is not None and p is not None
    v = contiguous_fp32(v)
    order, _ = arrange(v, smooth, replace(site, step=0), GroupingState())
    assert order is not None  # step 0 groups
    heads = []
    with torch.autocast(q.device.type, enabled=False):  # it would take the scores to 16 bits
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                heads.append(_head(q[b, h].float(), k[b, h].float(), v[b, h], order[b, h], rows, p))
    return Measures(*torch.stack(heads).mean(0).tolist())


def _head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, order: torch.Tensor, rows: int, p: Quantizer
) -> torch.Tensor:
    """The statistics of one head in the order of ``Measures``, FP64 on the head's device."""
    found = {f"{name}_kurtosis": kurtosis(x) for name, x in (("q", q), ("k", k), ("v", v))}
    found |= {f"{name}_channels": channel_outlier(x) for name, x in (("q", q), ("k", k), ("v", v))}
    found |= row_measures(q, k, rows, p)
    found["v_tokens"] = token_outlier(v)
    found["v_energy_sequence"] = block_mean_share(v)
    found["v_energy_grouped"] = block_mean_share(v[order])
    return torch.stack([found[name] for name in Measures.names()])
