"""What a run found: a row for each candidate and shape, as plain data too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mxbench.bench.failures import Status
from mxbench.bench.shapes import Shape
from mxbench.bench.timing import Spread

__all__ = ["Compared", "Result", "Row", "ShapeResult"]


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate at one shape. Without the status ``measured`` there is no time.

    Attributes:
        method: name of the method; empty for a peer.
        impl: name of the implementation, or of the peer.
        label: how tables print the method or the peer.
        version: of a peer's package.
        includes: what ``call`` is the time of.
        fp4: whether 4-bit values are ``emulated`` in a wider type, whose time is then the emulation's own.
        status: see ``Status``.
        reason: why there is no time.
        against: what the output was compared with: ``exact`` attention or the method's ``reference``.
        error: relative L2, see ``mxbench.bench.check.distance``; None where nothing was compared, or not finite.
        allowed: the largest error that is not red.
        own_error: the method's own error against exact attention.
        prepass: milliseconds of statistics, transforms and quantisation; None where there are none, or not by
            themselves.
        kernel: milliseconds of the kernel alone; None where it cannot be split off.
        call: milliseconds of all of it.
        grouping: milliseconds of making a grouping of tokens, which most calls of a render do not.
        tflops: 4·B·H·Nq·Nk·D over the kernel's median, or over the call's without one.
        ratio_kernel: how many times as fast as the base the kernel is; of paired rounds.
        ratio_call: likewise of the call.
        ratio_cudnn: how many times as fast as cuDNN's attention by torch the kernel is, where that is not the base.
        prepass_share: of the call.
        prepass_gb_s: operands read once and results written once, over the pre-pass's median; 1e9 bytes a second.
        prepass_of_copy: that over the bandwidth of a copy.
        goal: what the kernel's ratio is meant to reach here, or None; likewise ``floor``.
        floor: under which it is not done.
    """

    method: str
    impl: str
    label: str
    version: str
    includes: str
    fp4: Literal["", "emulated", "hardware"]
    status: Status
    reason: str = ""
    against: str = ""
    error: float | None = None
    allowed: float | None = None
    own_error: float | None = None
    prepass: Spread | None = None
    kernel: Spread | None = None
    call: Spread | None = None
    grouping: Spread | None = None
    tflops: float | None = None
    ratio_kernel: Spread | None = None
    ratio_call: Spread | None = None
    ratio_cudnn: Spread | None = None
    prepass_share: float | None = None
    prepass_gb_s: float | None = None
    prepass_of_copy: float | None = None
    goal: float | None = None
    floor: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data: spreads as ``{median, low, high, n}``."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: value.to_dict() if isinstance(value, Spread) else value for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class Compared:
    """How much of each output was compared."""

    heads: int
    rows: int
    whole: bool


@dataclass(frozen=True, slots=True)
class ShapeResult:
    """All rows of one shape.

    Attributes:
        title: model and clip; empty for a shape that was written.
        shape: of the call.
        base: key of the row that ratios are taken to, and its label; None without any.
        copy_gb_s: bandwidth of a copy, bytes read and written; None where no pre-pass was timed.
        compared: how much of each output was compared; None where the operands found no room.
        rows: peers, then methods.
    """

    title: str
    shape: Shape
    base: tuple[str, str] | None
    copy_gb_s: Spread | None
    compared: Compared | None
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        shape = self.shape
        return {
            "title": self.title,
            "shape": str(shape),
            "batch": shape.batch,
            "heads": shape.heads,
            "queries": shape.queries,
            "keys": shape.keys,
            "dim": shape.dim,
            "flop": shape.flop,
            "base": self.base[0] if self.base else None,
            "copy_gb_s": self.copy_gb_s.to_dict() if self.copy_gb_s else None,
            "compared": {"heads": self.compared.heads, "rows": self.compared.rows, "whole": self.compared.whole}
            if self.compared
            else None,
            "rows": [row.to_dict() for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Result:
    """A run: where and with what, and what each shape gave."""

    provenance: Mapping[str, str]
    settings: Mapping[str, Any]
    shapes: tuple[ShapeResult, ...] = field(default=())

    @property
    def measured(self) -> bool:
        """Whether there is a time at all."""
        return any(row.status == "measured" for shape in self.shapes for row in shape.rows)

    @property
    def failed(self) -> bool:
        """Whether any candidate that could run here was wrong, broke or found no room."""
        bad = ("red", "failed", "out of memory")
        return any(row.status in bad for shape in self.shapes for row in shape.rows)
