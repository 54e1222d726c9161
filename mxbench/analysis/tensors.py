"""The error of every method on a user's own Q, K and V: no video needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mxbench.attention.axes import apply
from mxbench.attention.methods import method
from mxbench.attention.reference import prepare, walk
from mxbench.attention.spec import AttentionSpec
from mxbench.errors import UserError

__all__ = ["MethodError", "TensorSet", "exact", "load_tensors", "study"]

OPERANDS = ("q", "k", "v", "p")


@dataclass(frozen=True, slots=True)
class TensorSet:
    """Q, K and V of one attention call, FP32 ``[B,H,N,D]``, and the name they have in the file."""

    name: str
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True, slots=True)
class MethodError:
    """How a method errs on one set of tensors.

    Attributes:
        tensors: name of the set.
        method: name of the method.
        relative_l2: |out - exact| / |exact|, against softmax attention in float64.
        cosine: between the two outputs, flattened.
        row_sum_bias: mean over rows of the sum of the induced attention weights, minus 1.
        shares: part of the squared error that each operand causes when it alone is quantised, of the sum of the four.
        bits: bits per element of each operand, block scales included.
    """

    tensors: str
    method: str
    relative_l2: float
    cosine: float
    row_sum_bias: float
    shares: dict[str, float]
    bits: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        return {
            "tensors": self.tensors,
            "method": self.method,
            "relative_l2": self.relative_l2,
            "cosine": self.cosine,
            "row_sum_bias": self.row_sum_bias,
            "share": self.shares,
            "bits": self.bits,
        }


def load_tensors(path: str | Path) -> list[TensorSet]:
    """The sets in a safetensors file: ``q``, ``k``, ``v``, or any number of ``<name>.q``, ``<name>.k``, ``<name>.v``.

    Tensors are ``[B,H,N,D]``; ``[H,N,D]`` and ``[N,D]`` get leading ones.

    Raises:
        UserError: no such file, no safetensors, an incomplete set, or shapes that do not fit together.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(str(path))
    except FileNotFoundError:
        raise UserError(f"there is no file {path}", "pass a .safetensors file that holds q, k and v") from None
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is no safetensors file: {error}", "save q, k and v with safetensors.torch.save_file"
        ) from None
    prefixes = sorted({name[:-1] for name in found if name == "q" or name.endswith(".q")})
    if not prefixes:
        names = ", ".join(sorted(found)[:8]) or "nothing"
        raise UserError(f"{path} holds {names}, and no q", "name the tensors q, k and v, or NAME.q, NAME.k and NAME.v")
    return [_set(path, prefix, found) for prefix in prefixes]


def _set(path: str | Path, prefix: str, found: dict[str, torch.Tensor]) -> TensorSet:
    name = prefix.rstrip(".") or Path(path).stem
    q, k, v = (found.get(f"{prefix}{part}") for part in "qkv")
    if q is None or k is None or v is None:
        missing = " and ".join(f"{prefix}{part}" for part in "qkv" if f"{prefix}{part}" not in found)
        raise UserError(f"the set {name!r} of {path} is incomplete", f"add {missing}")
    tensors = []
    for tensor in (q, k, v):
        if not tensor.is_floating_point() or not 2 <= tensor.dim() <= 4:
            raise UserError(
                f"{name} holds a {tensor.dtype} tensor of shape {tuple(tensor.shape)}", "use floats of shape [B,H,N,D]"
            )
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{name} holds a NaN or an infinity", "capture the tensors before they overflow")
        tensors.append(tensor.float().reshape(*(1,) * (4 - tensor.dim()), *tensor.shape))
    q, k, v = tensors
    if not (q.shape[:2] == k.shape[:2] == v.shape[:2] and q.shape[3] == k.shape[3] and k.shape[2] == v.shape[2]):
        raise UserError(
            f"{name}: q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit together",
            "use q [B,H,Nq,D], k [B,H,Nk,D] and v [B,H,Nk,D]",
        )
    return TensorSet(name, q, k, v)


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: int = 1024) -> torch.Tensor:
    """Softmax attention in float64, ``rows`` queries at a time: the measuring stick."""
    k64, v64 = k.double().transpose(-1, -2), v.double()
    scale = q.shape[-1] ** -0.5
    parts = [((part.double() @ k64) * scale).softmax(-1) @ v64 for part in q.split(rows, dim=-2)]
    return torch.cat(parts, dim=-2)


def study(
    tensors: TensorSet, names: Sequence[str], on_method: Callable[[str], None] | None = None
) -> list[MethodError]:
    """The error of some methods on one set.

    Raises:
        UserError: an unknown method, or one that the tensors do not suit (a Hadamard needs a power-of-two D).
    """
    stick = exact(tensors.q, tensors.k, tensors.v)
    found = []
    for name in names:
        if on_method is not None:
            on_method(name)
        found.append(_study(tensors, name, method(name).spec, stick))
    return found


def _study(tensors: TensorSet, name: str, spec: AttentionSpec, stick: torch.Tensor) -> MethodError:
    operands = prepare(tensors.q, tensors.k, tensors.v, spec)
    out = walk(operands, spec).double()
    ones = replace(operands, v=torch.ones_like(operands.v[..., :1]), mean=None)
    alone = {operand: _relative(_with_only(tensors, spec, operand), stick) ** 2 for operand in OPERANDS}
    whole = sum(alone.values())
    return MethodError(
        tensors=tensors.name,
        method=name,
        relative_l2=_relative(out, stick),
        cosine=float((out * stick).sum() / (out.norm() * stick.norm())),
        row_sum_bias=float(walk(ones, spec).double().mean() - 1),
        shares={operand: error / whole if spec.quantised else 0.0 for operand, error in alone.items()},
        bits=spec.bits,
    )


def _with_only(tensors: TensorSet, spec: AttentionSpec, operand: str) -> torch.Tensor:
    """The output with one operand quantised as the method does it, and the three others exact."""
    for other in OPERANDS:
        if other == operand:
            continue
        if other == "p":
            # With an exact P the denominator and the exponential are exact too.
            spec = replace(spec, p=None, row_sum="exact", exponential="exp2")
        else:
            spec = apply(spec, f"{other}.format", "none")
    return walk(prepare(tensors.q, tensors.k, tensors.v, spec), spec).double()


def _relative(out: torch.Tensor, stick: torch.Tensor) -> float:
    return float((out - stick).norm() / stick.norm())
