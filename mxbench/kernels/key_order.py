"""Orders in which keys are stored, so that a thread of the matrix units has what it needs of P in its own registers.

Of a tile of scores a thread has two columns of every eight: column (j, t, p) is the thread's whose number ends in t.
"""

from __future__ import annotations

import math

import torch

__all__ = ["interleaved", "quartered", "quartered_columns"]

_INTERLEAVE = 32  # keys that change places among themselves


def interleaved(k: torch.Tensor) -> torch.Tensor:
    """K with the keys of each 32 in the order in which FP8 operands lie in registers.

    Stored row (j1, j0, t1, t0, i), as bits, is key (j1, t1, t0, j0, i). It keeps every block of 16 keys or more.

    Args:
        k: ``[B,H,N,D]``, contiguous, any type.

    Returns:
        ``[B,H,N',D]``, N' being N rounded up to a multiple of 32; rows of missing keys are zero.
    """
    return _reordered(k, _INTERLEAVE, (2, 4, 2, 2), (0, 2, 1, 3))


def quartered(x: torch.Tensor, tile: int) -> torch.Tensor:
    """K or V with a quarter of every tile's keys in each of four threads: a block of P is then a thread's own.

    Stored row (j, t, p) of a tile, p of 2 and t of 4, is key (t, j, p).

    Args:
        x: ``[B,H,N,D]``, contiguous, any type.
        tile: keys of a tile, a multiple of 8.

    Returns:
        ``[B,H,N',D]``, N' being N rounded up to a multiple of ``tile``; rows of missing keys are zero.
    """
    return _reordered(x, tile, (4, tile // 8, 2), (1, 0, 2))


def quartered_columns(v: torch.Tensor, tile: int) -> torch.Tensor:
    """V in 8 bits beside K as ``quartered`` stores it: as P's bytes lie in registers, four keys of a thread at a time.

    Stored column (j, t, i) of a tile, i of 4 and t of 4, is key (t, j, i).

    Args:
        v: ``[B,H,D,N]``, contiguous, of one byte an element; N a multiple of ``tile``.
        tile: keys of a tile, a multiple of 16.
    """
    b, h, d, n = v.shape
    words = v.flatten().view(torch.int32).view(b, h, d, n // tile, 4, tile // 16)
    return words.transpose(4, 5).contiguous().view(v.dtype).view(v.shape)


def _reordered(x: torch.Tensor, group: int, fields: tuple[int, ...], order: tuple[int, ...]) -> torch.Tensor:
    """Rows of every group, seen as ``fields``, in another order of the fields; zeros behind the last row."""
    b, h, n, d = x.shape
    size = math.gcd(d * x.element_size(), x.storage_offset() * x.element_size(), 8)
    wide = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]  # a copy in few words
    word = x.flatten().view(wide).view(b, h, n, -1)  # flat: a size of 1 may come with any stride
    width = word.shape[-1]
    whole = n // group * group
    out = word.new_empty(b, h, -(-n // group) * group, width)
    parts = [(word[:, :, :whole], out[:, :, :whole])]
    if whole < n:
        rest = word.new_zeros(b, h, group, width)
        rest[:, :, : n - whole] = word[:, :, whole:]
        parts.append((rest, out[:, :, whole:]))
    places = [3 + i for i in order]
    for source, target in parts:
        moved = source.unflatten(2, (-1, *fields)).permute(0, 1, 2, *places, 3 + len(fields))
        target.unflatten(2, (-1, *(fields[i] for i in order))).copy_(moved)
    return out.view(x.dtype)
