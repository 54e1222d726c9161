"""What an output must equal, and how nearly: no time is given for a kernel whose output is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from mxbench.analysis.tensors import exact
from mxbench.attention.reference import prepare, walk
from mxbench.attention.spec import AttentionSpec
from mxbench.bench.operands import Operands, Sample, Seat

__all__ = ["EXACT_TOLERANCE", "Judge", "Verdict", "distance", "four_bit", "poisoned", "tolerance"]

EXACT_TOLERANCE: dict[torch.dtype, float] = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 1e-5}
"""Relative L2 error of a kernel that quantises nothing, by dtype of the operands: P is rounded to it."""

_CONFORMANCE = 1e-3
_EXACT_ROWS = 1 << 25  # float64 scores at once


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an output compares with what it must equal.

    Attributes:
        against: ``exact`` attention in float64, or the ``reference`` of the method.
        error: relative L2 distance, beyond what rounding the output to its dtype explains; infinite where the output
            is not finite.
        allowed: the largest error that is not red.
        own: the method's own error, its reference against exact attention; None for an exact kernel or a peer.
        problem: what else is wrong, in a clause.
    """

    against: Literal["exact", "reference"]
    error: float
    allowed: float
    own: float | None = None
    problem: str = ""

    @property
    def red(self) -> bool:
        """Whether no time may be given."""
        return bool(self.problem) or not self.error <= self.allowed

    @property
    def reason(self) -> str:
        """Why it is red, in a clause."""
        if self.problem:
            return self.problem
        if not math.isfinite(self.error):
            return "the output holds a NaN or an infinity"
        return f"the output is {self.error:.1e} from the {self.against} one, and {self.allowed:.1e} is allowed"


def four_bit(spec: AttentionSpec) -> bool:
    """Whether any operand is in a 4-bit format."""
    return any(bits < 8 for bits in spec.bits.values())


def tolerance(spec: AttentionSpec, impl: str, dtype: torch.dtype, own: float) -> float:
    """The error that an implementation of a method may have.

    Exact methods by dtype; others must equal their reference to 1e-3. The fast path accumulates in about 14 bits and
    is held to a share of the method's own error: 1/50 in 4-bit formats, but not less than 1e-3, and 1/20 in 8-bit ones,
    but not less than 2e-3.

    Args:
        spec: the method.
        impl: which implementation.
        dtype: of the operands.
        own: the method's own error.
    """
    if not spec.canonical().quantised:
        return EXACT_TOLERANCE[dtype]
    if impl != "fast":
        return _CONFORMANCE
    return max(_CONFORMANCE, own / 50) if four_bit(spec) else max(2e-3, own / 20)


class Judge:
    """Knows what the outputs of one shape must equal, on the sample that is compared.

    Args:
        operands: of the shape.
        part: heads and rows to compare.
    """

    def __init__(self, operands: Operands, part: Sample) -> None:
        self._operands, self._part = operands, part
        self._exact: torch.Tensor | None = None
        self._references: dict[str, tuple[torch.Tensor, float]] = {}

    def exact(self) -> torch.Tensor:
        """Softmax attention in float64, ``[1,heads,rows,D]``."""
        if self._exact is None:
            q, k, v = (self._part.of_heads(x) for x in (self._operands.q, self._operands.k, self._operands.v))
            rows = max(1, _EXACT_ROWS // (k.shape[0] * k.shape[1] * k.shape[2]))
            self._exact = exact(self._part.of_rows(q), k, v, rows)
        return self._exact

    def reference(self, spec: AttentionSpec, seat: Seat) -> tuple[torch.Tensor, float]:
        """The reference of a method in FP32, ``[1,heads,rows,D]``, and its error against exact attention."""
        if spec.id not in self._references:
            out = self._walk(spec, seat)
            self._references[spec.id] = out, _relative(out.double(), self.exact())
        return self._references[spec.id]

    def expect(self, spec: AttentionSpec | None, seat: Seat) -> None:
        """Compute what is due to a method, or to a peer, before its output exists."""
        self.exact()
        if spec is not None and spec.canonical().quantised:
            self.reference(spec, seat)

    def _walk(self, spec: AttentionSpec, seat: Seat) -> torch.Tensor:
        """All rows and keys enter the statistics; the tiles are walked for the sample alone."""
        part, operands = self._part, self._operands
        if seat.state is None:
            q, k, v = (part.of_heads(x) for x in (operands.q, operands.k, operands.v))
            ready = prepare(q, k, v, spec)
        else:  # a grouping belongs to all heads
            whole = prepare(operands.q, operands.k, operands.v, spec, site=seat.site, state=seat.state)
            q, k, v = (part.of_heads(x) for x in (whole.q, whole.k, whole.v))
            q_scale, k_scale, mean, owed = (
                part.of_heads(x) if x is not None else None
                for x in (whole.q_scale, whole.k_scale, whole.mean, whole.owed)
            )
            ready = replace(whole, q=q, k=k, v=v, q_scale=q_scale, k_scale=k_scale, mean=mean, owed=owed)
        if part.whole:
            return walk(ready, spec)
        owed = ready.owed[..., part.rows // ready.owed_rows, :] if ready.owed is not None else None
        scale = part.of_rows(ready.q_scale) if ready.q_scale is not None else None
        return walk(replace(ready, q=part.of_rows(ready.q), q_scale=scale, owed=owed, owed_rows=1), spec)

    def of_method(self, out: torch.Tensor, spec: AttentionSpec, impl: str, seat: Seat) -> Verdict:
        """The verdict on an implementation of a method."""
        dtype = self._operands.q.dtype
        if not spec.canonical().quantised:
            return self.of_peer(out, tolerance(spec, impl, dtype, 0.0))
        want, own = self.reference(spec, seat)
        return self._verdict(out, want, "reference", tolerance(spec, impl, dtype, own), own)

    def of_peer(self, out: torch.Tensor, allowed: float) -> Verdict:
        """The verdict on a kernel of somebody else, against exact attention."""
        return self._verdict(out, self.exact(), "exact", allowed, None)

    def _verdict(
        self,
        out: torch.Tensor,
        want: torch.Tensor,
        against: Literal["exact", "reference"],
        allowed: float,
        own: float | None,
    ) -> Verdict:
        q, v = self._operands.q, self._operands.v
        shape = (*q.shape[:-1], v.shape[-1])
        if tuple(out.shape) != shape or out.dtype != q.dtype or out.device != q.device:
            found = f"{out.dtype} {tuple(out.shape)} on {out.device}"
            return Verdict(against, math.inf, allowed, own, f"the output is {found}, where {q.dtype} {shape} is due")
        if not bool(out.isfinite().all()):  # wherever it is
            return Verdict(against, math.inf, allowed, own)
        return Verdict(against, distance(self._part.of_rows(self._part.of_heads(out)), want), allowed, own)


def distance(out: torch.Tensor, want: torch.Tensor) -> float:
    """|out - want| / |want|, less the part that rounding ``want`` to out's dtype alone would make.

    The two parts are independent, so that their squares add: in BF16 the rounding is 1.6e-3, more than a kernel errs.
    """
    want = want.double()
    error = float((out.double() - want).norm())
    rounding = float((want.to(out.dtype).double() - want).norm())
    return math.sqrt(max(0.0, error**2 - rounding**2)) / (float(want.norm()) or 1.0)


def _relative(out: torch.Tensor, stick: torch.Tensor) -> float:
    return float((out - stick).norm() / stick.norm())


def poisoned(like: torch.Tensor, work: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The output of some work that finds NaN, and not an older output, in the memory that it is given."""
    torch.full_like(like, math.nan)
    return work()
