"""Launchers of the pre-pass kernels: tensors in, tensors out.

Imports Triton: import this module where a kernel is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from mxbench.attention.qk import hadamard_matrix
from mxbench.attention.spec import Hadamard
from mxbench.formats.groups import ROWS
from mxbench.formats.quantizer import Quantizer
from mxbench.kernels.held import Hold
from mxbench.kernels.owed_jit import endless_kernel, owed_kernel, pieces_kernel
from mxbench.kernels.prepass_config import Pass, owed_for, pass_for
from mxbench.kernels.prepass_jit import largest_kernel, prepared_kernel, sums_kernel
from mxbench.kernels.prepass_quantise_jit import quantise_kernel
from mxbench.kernels.quantise_jit import mx_addend, tile_fields

__all__ = ["TILE", "Source", "apart", "is_apart", "largest", "owed", "quantised", "sums"]

TILE = ROWS  # tokens of a tile: every group of rows, and every block of V-Smooth, lies in one
_SUM_TILE = 64
_NARROW = 128  # channels of a tile that a rotation leaves registers for

_DTYPES: dict[Hold, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
    "int8": torch.int8,
}
_BITS = {1: torch.int8, 2: torch.int16}


@dataclass(frozen=True, slots=True)
class Source:
    """An operand before its quantiser, as kernels read it.

    Attributes:
        x: ``[B,H,N,D]``, float16, bfloat16 or float32, any strides.
        order: int64 ``[B,H,N]``, contiguous: the token that stands at each place; None for the order as it is.
        mean: FP32 ``[B,H,G,D]`` to subtract, or None.
        mean_rows: tokens that share a row of ``mean``.
        rotate: the rotation, after the mean; or None.
        own_mean: subtract the mean of each tile of 128 tokens, and keep it.
    """

    x: torch.Tensor
    order: torch.Tensor | None = None
    mean: torch.Tensor | None = None
    mean_rows: int = 1
    rotate: Hadamard | None = None
    own_mean: bool = False


def _padded(d: int) -> int:
    """Channels of a tile: a power of two, and at least a block of MXFP4."""
    return max(32, 1 << (d - 1).bit_length())


def _tiles(n: int, rows: int) -> int:
    return -(-n // rows)


def _launch(kernel: Any, per_head: int, shape: Pass, tensors: list[torch.Tensor | None], **constants: Any) -> None:
    """Run ``per_head`` programs of a kernel for every head of the first tensor, on tiles of ``TILE`` by ``BD``."""
    x = tensors[0]
    assert x is not None
    kernel[(per_head * x.shape[0] * x.shape[1],)](
        *tensors,
        *x.stride(),
        x.shape[1],
        HEADS_FIRST=x.stride(1) < x.stride(2),
        num_warps=max(1, constants["TILE"] * constants["BD"] // (32 * shape.thread)),
        maxnreg=shape.registers,
        **constants,
    )


def sums(x: torch.Tensor, rows: int) -> torch.Tensor:
    """FP64 sums over groups of ``rows`` tokens: ``[B,H,N,D]`` to ``[B,H,ceil(N/rows),D]``, the same at every call."""
    b, h, n, d = x.shape
    groups, padded = _tiles(n, rows), _padded(d)
    out = torch.empty(b, h, groups, d, dtype=torch.float64, device=x.device)
    _launch(
        sums_kernel, groups, Pass(), [x, out],
        N=n, groups=groups, GROUP=rows, D=d, BD=padded, TILE=_SUM_TILE,
    )  # fmt: skip
    return out


def is_apart(source: Source) -> bool:
    """Whether it is rotated in a pass of its own: more channels than 128 leave a thread too few registers."""
    return source.rotate is not None and _padded(source.x.shape[-1]) > _NARROW


def apart(source: Source) -> Source:
    """The operand as it is, or prepared already, in FP32, where ``is_apart``; not with means of its own."""
    if not is_apart(source):
        return source
    assert not source.own_mean
    b, h, n, d = source.x.shape
    shape = pass_for(rotated=True, hold="", whole=False)
    tile = min(shape.tile, TILE * _NARROW // _padded(d))
    out = torch.empty(b, h, n, d, dtype=torch.float32, device=source.x.device)
    tensors, constants = _tile_arguments(source, None, tile)
    tiles = _tiles(n, tile)
    _launch(prepared_kernel, tiles, shape, [*tensors, out], tiles=tiles, **constants)
    return Source(out)


def owed(k: Source, q_mean: torch.Tensor, order: int = 0) -> torch.Tensor:
    """What means of Q owe the scores: FP32 ``[B,H,G,D]`` times K, neither rotated nor quantised: ``[B,H,G,N]``.

    Args:
        k: the operand; its mean is one of all tokens.
        q_mean: the means.
        order: keys of a tile, a multiple of 16, that stand as ``key_order.quartered_columns`` stores them, with zeros
            up to a whole tile; 0 for keys in their order.
    """
    assert k.mean is None or k.mean.shape[-2] == 1
    b, h, n, d = k.x.shape
    groups, padded, device = q_mean.shape[-2], _padded(d), k.x.device
    every = b * h * groups
    pieces = torch.empty(4, every, padded, dtype=torch.float16, device=device)
    top = torch.empty(every, dtype=torch.float32, device=device)
    q_mean = q_mean.contiguous()
    pieces_kernel[(_tiles(every, 16),)](q_mean, pieces, top, every, D=d, BD=padded, ROWS=16)
    n_out = _tiles(n, order) * order if order else n
    out = torch.empty(b, h, groups, n_out, dtype=torch.float32, device=device)
    shape = owed_for(padded)
    of_tile = Pass(shape.tile, shape.tile * padded // (32 * shape.warps), shape.registers)
    tensors, constants = _tile_arguments(replace(k, rotate=None, mean_rows=n_out), None, shape.tile)
    tiles = _tiles(n_out, shape.tile)
    described: Any = TensorDescriptor.from_tensor(pieces.flatten(0, 1), [shape.groups, padded])
    flags = torch.empty(b * h * tiles, dtype=torch.int32, device=device)
    constants |= {"tiles": tiles, "groups": groups, "NO": n_out, "ORDER": order}
    _launch(
        owed_kernel, tiles, of_tile, [*tensors, described, top, out, flags],
        GROUPS=shape.groups, STAGES=shape.stages, **constants,
    )  # fmt: skip
    _launch(endless_kernel, tiles, of_tile, [*tensors, q_mean, out, flags], **constants)
    return out


def largest(source: Source, *, finite: bool = False) -> tuple[torch.Tensor, Source]:
    """Bits of the largest magnitude of each channel over all tokens, as the quantiser will see them.

    Args:
        source: the operand.
        finite: leave out what is not finite; otherwise infinity and NaN are the largest.

    Returns:
        int32 ``[B,H,D]``, and the source with its own means made.
    """
    b, h, n, d = source.x.shape
    shape = pass_for(rotated=source.rotate is not None, hold="", whole=source.own_mean)
    tiles = _tiles(n, shape.tile)
    made = _own_means(source)
    out = torch.empty(b, h, tiles, d, dtype=torch.int32, device=source.x.device)
    tensors, constants = _tile_arguments(source, made, shape.tile)
    _launch(largest_kernel, tiles, shape, [*tensors, out], tiles=tiles, FINITE=finite, **constants)
    if made is not None:
        source = replace(source, mean=made, mean_rows=TILE, own_mean=False)
    return out.amax(-2), source


def quantised(
    source: Source,
    quantizer: Quantizer | None,
    role: Literal["q", "k", "v"],
    hold: Hold,
    *,
    pad: int = 1,
    scale: torch.Tensor | None = None,
    power: torch.Tensor | None = None,
    lift: bool = False,
    dequantise: bool = False,
    lost: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Quantise an operand and write it in the type of its hold.

    Args:
        source: the operand.
        quantizer: None writes it as it is.
        role: the operand's name; V has its blocks along tokens, and its 8-bit holds have tokens contiguous.
        hold: what to write.
        pad: those holds of V are padded with zeros to a multiple of ``pad`` tokens.
        scale: FP32 scales made before: ``[B,H,1]`` of the tensor (of NVFP4: the second level) or ``[B,H,D]``.
        power: FP32 ``[B,H,D]`` powers of two that MXFP4 is moved by in E5M2; None for one a row, where ``lift``.
        lift: move it at all.
        dequantise: multiply the scales in.
        lost: int32 ``[1]``, to which the elements are added that E5M2 does not hold.

    Returns:
        The values; FP32 ``[B,H,N]`` factors of the rows, where the kernel makes them; the means that were subtracted.
    """
    b, h, n, d = source.x.shape
    device = source.x.device
    turned = role == "v" and hold in ("e5m2", "e4m3", "int8")
    n_out = _tiles(n, pad) * pad if turned else n
    values = torch.empty((b, h, d, n_out) if turned else (b, h, n, d), dtype=_DTYPES[hold], device=device)
    grain = "none" if quantizer is None else quantizer.granularity
    if grain == "sage_threads":
        grain = f"sage_{role}"
    by_groups = grain in ("rows", "sage_q", "sage_k")
    by_rows = by_groups or (hold == "e5m2" and lift and power is None)
    rows = torch.empty(b, h, n, dtype=torch.float32, device=device) if by_rows else None
    made = _own_means(source)
    shape = pass_for(rotated=source.rotate is not None, hold=hold, whole=by_groups or source.own_mean)
    tensors, constants = _tile_arguments(source, made, shape.tile)
    tiles = _tiles(n_out, shape.tile)
    _launch(
        quantise_kernel,
        tiles,
        shape,
        # Codes are made from bits, and written as integers.
        [*tensors, scale, power, values.view(_BITS.get(values.itemsize, values.dtype)), rows, lost],
        n_out=n_out,
        tiles=tiles,
        FORMAT="none" if quantizer is None else quantizer.format,
        GRAIN=grain,
        ALONG_TOKENS=role == "v",
        MX_ADD=0 if quantizer is None else mx_addend(quantizer.scale_rule),
        SATURATE=quantizer is not None and bool(tile_fields(quantizer)["SATURATE"]),
        HALF_AWAY=quantizer is not None and quantizer.rounding == "half_away",
        EPS=0.0 if quantizer is None else quantizer.eps,
        DEQUANTISE=dequantise,
        HOLD=hold,
        LIFT=lift,
        **constants,
    )
    return values, rows, made if source.own_mean else source.mean


def _own_means(source: Source) -> torch.Tensor | None:
    b, h, n, d = source.x.shape
    if not source.own_mean:
        return None
    return torch.empty(b, h, _tiles(n, TILE), d, dtype=torch.float32, device=source.x.device)


def _tile_arguments(
    source: Source, made: torch.Tensor | None, tile: int
) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
    """The arguments that ``prepared_tile`` takes: pointers, and the others by name."""
    x, mean = source.x, source.mean
    d = x.shape[-1]
    padded = _padded(d)
    if source.rotate is None:
        rotation, pieces = None, 0
    else:
        changed = mean is not None or made is not None
        pieces = 3 if changed or x.dtype == torch.float32 else 2
        rotation = _signs(d, padded, source.rotate.sign_seed, x.device)
    constants = {
        "N": x.shape[-2],
        "mean_rows": source.mean_rows,
        "mean_groups": mean.shape[-2] if mean is not None else 0,
        "TILE_MEAN": mean is None or mean.shape[-2] == 1 or source.mean_rows % tile == 0,
        "NORM": d**-0.5,
        "PIECES": pieces,
        "D": d,
        "BD": padded,
        "TILE": tile,
    }
    return [x, source.order, mean, rotation, made], constants


@cache
def _signs(d: int, padded: int, seed: int | None, device: torch.device) -> torch.Tensor:
    """The rotation's signs, FP16 ``[padded, padded]``, zero outside ``[d, d]``; its columns as ``rotated`` takes them.

    A thread of the matrix units has two columns of every eight. Those of one thread are made neighbours.
    """
    out = torch.zeros(padded, padded)
    out[:d, :d] = hadamard_matrix(d, seed).sign()
    out = out.view(padded, 4, padded // 8, 2).transpose(1, 2).reshape(padded, padded)
    return out.to(device, torch.float16)
