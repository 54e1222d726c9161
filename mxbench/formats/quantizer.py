"""``Quantizer``: how one operand is quantised, as data; and ``FORMATS``, the table of number formats."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from mxbench.errors import UserError, unknown_name
from mxbench.formats.element import E2M1, E4M3, E8M0, INT8, Element
from mxbench.formats.scale import canonical_rule

__all__ = ["FORMATS", "GRANULARITIES", "Format", "Quantizer"]


@dataclass(frozen=True, slots=True)
class Format:
    """A number format: elements, and the scale that a group of them shares.

    Attributes:
        element: the element format.
        block: elements that share a scale along the quantised axis; None where the group is the method's choice.
        scale: format of the shared scale; None for an FP32 scale.
        source: where it is specified.
    """

    element: Element
    block: int | None
    scale: Element | None
    source: str


FORMATS: dict[str, Format] = {
    "mxfp4": Format(E2M1, 32, E8M0, "OCP Microscaling Formats (MX) Specification v1.0"),
    "nvfp4": Format(E2M1, 16, E4M3, "NVIDIA, Introducing NVFP4 (2025); SageAttention3, arXiv:2505.11594"),
    "e4m3": Format(E4M3, None, None, "OCP 8-bit Floating Point Specification"),
    "int8": Format(INT8, None, None, "SageAttention2, arXiv:2411.10958"),
}

GRANULARITIES: dict[str, str] = {
    "block": "the format's own block along the quantised axis",
    "tensor": "one scale per (batch, head)",
    "channel": "one scale per (batch, head, channel), over all tokens",
    "rows": "one scale per 128 tokens, over all channels",
    "sage_threads": "SageAttention2's per-thread groups of Q and K",
    "unit": "no scale: the exponentials times prescale, as they are (P alone)",
}


@dataclass(frozen=True, slots=True)
class Quantizer:
    """How one operand is quantised.

    Attributes:
        format: a name in ``FORMATS``.
        granularity: a name in ``GRANULARITIES``: which elements share a scale.
        scale_rule: rule of the MX scale, a name or a boundary q (``mxbench.formats.scale``); MXFP4 alone has one.
        rounding: ``rne`` or, for INT8, ``half_away``.
        eps: added to a group's scale, as SageAttention2 does (8-bit formats).
        tensor_scale: NVFP4's second-level FP32 scale amax/2688 per (batch, head).
        prescale: factor on the exponentials before they are quantised (the P operand alone; 1 elsewhere).
        divide_by: the elements are divided by the scale as ``stored``, or by the ``exact`` one before it was rounded.
    """

    format: str
    granularity: str = "block"
    scale_rule: str = "ocp"
    rounding: Literal["rne", "half_away"] = "rne"
    eps: float = 0.0
    tensor_scale: bool = False
    prescale: float = 1.0
    divide_by: Literal["stored", "exact"] = "stored"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise unknown_name("format", self.format, FORMATS)
        if self.granularity not in GRANULARITIES:
            raise unknown_name("granularity", self.granularity, GRANULARITIES)
        object.__setattr__(self, "scale_rule", canonical_rule(self.scale_rule))
        form = FORMATS[self.format]
        if (form.block is None) == (self.granularity == "block"):
            raise UserError(
                f"{self.format} cannot have the granularity {self.granularity!r}",
                "use 'block'" if form.block else f"use one of {', '.join(g for g in GRANULARITIES if g != 'block')}",
            )
        if self.rounding not in ("rne", "half_away"):
            raise unknown_name("rounding", self.rounding, ["rne", "half_away"])
        if self.divide_by not in ("stored", "exact"):
            raise unknown_name("divide_by", self.divide_by, ["stored", "exact"])
        if self.rounding == "half_away" and form.element is not INT8:
            raise UserError(f"{self.format} cannot round half away from zero", "use rounding 'rne'")
        if not 0 < self.prescale < math.inf:
            raise UserError(f"prescale {self.prescale} is no positive number", "use a positive factor")
        if not 0 <= self.eps < math.inf:
            raise UserError(f"eps {self.eps} is not a scale", "use 0 or a small positive number")
        for name in ("eps", "prescale"):  # 256 and 256.0 are one quantiser and have one id
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def form(self) -> Format:
        """The format's entry in ``FORMATS``."""
        return FORMATS[self.format]

    @property
    def bits(self) -> float:
        """Bits per element with the shared block scale: MXFP4 4.25, NVFP4 4.5, 8-bit formats 8."""
        form = self.form
        shared = form.scale.bits / form.block if form.scale and form.block else 0.0
        return form.element.bits + shared

    def canonical(self) -> Quantizer:
        """The same quantiser with every field that changes nothing at its default."""
        form = self.form
        changes: dict[str, object] = {}
        if form.scale is not E8M0:
            changes["scale_rule"] = "ocp"
        if form.scale is not E4M3:
            changes["tensor_scale"] = False
            changes["divide_by"] = "stored"
        if form.block is not None or self.granularity == "unit":
            changes["eps"] = 0.0
        return replace(self, **changes)  # type: ignore[arg-type]
