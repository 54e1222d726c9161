"""Quantise tensors: shared scales from groups of elements, elements from scales, and both as packed bytes.

Every step is FP32: the scale comes from the group's largest magnitude, elements are divided by it (a true division)
and rounded. A non-finite input makes its whole scale group NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mxbench.formats.element import E2M1, E4M3, E8M0, decode, encode, round_to, round_to_
from mxbench.formats.groups import Groups, Role, grouping
from mxbench.formats.quantizer import Quantizer
from mxbench.formats.scale import mx_exponent, power_of_two

__all__ = ["Packed", "Quantised", "divided", "largest", "pack_nibbles", "quantise", "unpack", "unpack_nibbles"]

NVFP4_RANGE = 2688.0  # 448 · 6: what an E4M3 scale and an E2M1 element reach together


@dataclass(frozen=True, slots=True)
class Quantised:
    """A quantised tensor: x̂ = (elements · scale) · tensor_scale.

    Attributes:
        elements: FP32 values of the element format, in groups.
        scale: FP32, broadcasts against ``elements``.
        tensor_scale: FP32 second-level scale that broadcasts likewise, or None.
        quantizer: how it was quantised.
        groups: how the groups lie in the input.
    """

    elements: torch.Tensor
    scale: torch.Tensor
    tensor_scale: torch.Tensor | None
    quantizer: Quantizer
    groups: Groups

    def dequantise(self) -> torch.Tensor:
        """The represented values, FP32 in the shape of the input."""
        x = self.elements * self.scale
        if self.tensor_scale is not None:
            x = x * self.tensor_scale
        return self.groups.restore(x)

    def pack(self) -> Packed:
        """Codes as bytes (two 4-bit codes a byte, the first in the low half) and scales in their own format."""
        form = self.quantizer.form
        codes = encode(self.elements, form.element)
        return Packed(
            codes=pack_nibbles(codes) if form.element.bits == 4 else codes,
            scale=self.scale if form.scale is None else encode(self.scale, form.scale),
            tensor_scale=self.tensor_scale,
            quantizer=self.quantizer,
            groups=self.groups,
        )


@dataclass(frozen=True, slots=True)
class Packed:
    """What would lie in memory: uint8 ``codes``, ``scale`` (uint8, or FP32 for 8-bit formats), ``tensor_scale``."""

    codes: torch.Tensor
    scale: torch.Tensor
    tensor_scale: torch.Tensor | None
    quantizer: Quantizer
    groups: Groups

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales together, tail padding included."""
        tensors = [self.codes, self.scale, *([] if self.tensor_scale is None else [self.tensor_scale])]
        return sum(t.numel() * t.element_size() for t in tensors)


def unpack(packed: Packed) -> Quantised:
    """The inverse of ``Quantised.pack``, exactly."""
    form = packed.quantizer.form
    codes = unpack_nibbles(packed.codes) if form.element.bits == 4 else packed.codes
    return Quantised(
        elements=decode(codes, form.element),
        scale=packed.scale if form.scale is None else decode(packed.scale, form.scale),
        tensor_scale=packed.tensor_scale,
        quantizer=packed.quantizer,
        groups=packed.groups,
    )


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """uint8 ``[..., 2n]`` of 4-bit codes to uint8 ``[..., n]``: code 2i in the low half of byte i."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of ``pack_nibbles``."""
    return torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)


def quantise(x: torch.Tensor, quantizer: Quantizer, *, axis: int = -1, role: Role = "q") -> Quantised:
    """Quantise a tensor.

    MXFP4: OCP MX v1.0 section 6.3 with the rule of ``quantizer.scale_rule``. NVFP4: s = E4M3(min(amax/6/g, 448)),
    elements x/(s·g), g = amax/2688 per leading index where ``tensor_scale`` asks for it, else 1; s = 0 gives zeros.
    E4M3 and INT8: scale amax/max + eps; a group without any scale is divided by 1.

    Args:
        x: ``[..., N, D]``, any float dtype; upcast to FP32 and not changed.
        quantizer: what to do; its ``prescale`` belongs to the caller.
        axis: -1 for blocks along D (Q and K), -2 for blocks along tokens (V).
        role: the operand, for granularities that differ between Q and K.
    """
    form = quantizer.form
    groups = grouping(x.shape, quantizer, axis, role)
    view = groups.split(x.float())
    work = view.abs()
    amax = largest(work, groups.dims)
    sick = ~amax.isfinite()
    tensor_scale = None
    if form.scale is E8M0:
        scale = divisor = power_of_two(mx_exponent(amax, quantizer.scale_rule))
    elif form.scale is E4M3:
        exact = divided(amax, E2M1.max)
        if quantizer.tensor_scale:
            lead = tuple(range(amax.dim() - 3, amax.dim()))
            g = divided(amax.amax(lead, keepdim=True), NVFP4_RANGE)
            sick = sick | ~g.isfinite()
            tensor_scale = torch.where(g == 0, torch.ones_like(g), g)
            exact = exact / tensor_scale
        exact = exact.clamp(max=E4M3.max)
        scale = round_to(exact, E4M3)
        divisor = scale if quantizer.divide_by == "stored" else exact
        if tensor_scale is not None:
            divisor = divisor * tensor_scale
    else:
        scale = divided(amax, form.element.max) + quantizer.eps
        scale = divisor = torch.where(scale == 0, torch.ones_like(scale), scale)
    # Anything divided by infinity is the zero that a scale of zero asks for.
    quotient = torch.div(view, divisor.masked_fill(divisor == 0, float("inf")), out=work)
    elements = round_to_(quotient, form.element, quantizer.rounding)
    if bool(sick.any()):
        elements.masked_fill_(sick, 0.0)
        scale = scale.masked_fill(sick, float("nan"))
    return Quantised(elements, scale, tensor_scale, quantizer, groups)


def largest(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """``x.amax(dims, keepdim=True)``, by what torch does fast: one dimension at a time, and no reduction of 16."""
    if dims == (-1,) and x.shape[-1] == 16:
        # The maximum of a window of 8 starting anywhere, from shifted copies; a block's stands at its start.
        flat = torch.maximum(x[..., :8], x[..., 8:])
        if not flat.is_contiguous():
            return flat.amax(-1, keepdim=True)
        flat = flat.view(-1)
        for shift in (4, 2):
            flat = torch.maximum(flat[:-shift], flat[shift:])
        return torch.maximum(flat[0::8], flat[1::8]).view(*x.shape[:-1], 1)
    for dim in sorted(dims, reverse=True):
        x = x.amax(dim, keepdim=True)
    return x


def divided(x: torch.Tensor, by: float) -> torch.Tensor:
    """``x / by``, rounded once: CUDA multiplies by the reciprocal when a divisor is a Python number."""
    return x / x.new_full((), by)
