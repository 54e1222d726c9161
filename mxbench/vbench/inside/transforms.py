"""The transforms of torchvision that VBench's seven dimensions call on float tensors ``[T,C,H,W]``, to the bit.

For environments whose torchvision does not import. What is not used there is refused, not guessed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

__all__ = ["CenterCrop", "Compose", "InterpolationMode", "Lambda", "Normalize", "Resize"]


class InterpolationMode(enum.Enum):
    """How pixels between pixels are made."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class Compose:
    """One after the other."""

    def __init__(self, transforms: Sequence[Callable[[torch.Tensor], torch.Tensor]]) -> None:
        self.transforms = transforms

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Of a tensor that ends in ``[C,H,W]``."""
        for transform in self.transforms:
            x = transform(x)
        return x


class Lambda:
    """A function."""

    def __init__(self, lambd: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.lambd = lambd

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Of a tensor that ends in ``[C,H,W]``."""
        return self.lambd(x)


class Resize:
    """To a size, or the shorter side to a length. Without antialiasing, as VBench asks for."""

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: InterpolationMode = InterpolationMode.BILINEAR,
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        if max_size is not None:
            raise NotImplementedError("max_size")
        self.size, self.mode, self.antialias = size, interpolation, bool(antialias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Of a tensor that ends in ``[C,H,W]``."""
        _floats(x)
        height, width = x.shape[-2:]
        if isinstance(self.size, int):
            short, long = sorted((height, width))
            other = int(self.size * long / short)
            size = (self.size, other) if height <= width else (other, self.size)
        else:
            size = (self.size[0], self.size[1])
        if size == (height, width):
            return x
        aligned = None if self.mode is InterpolationMode.NEAREST else False
        return functional.interpolate(
            x, size=size, mode=self.mode.value, align_corners=aligned, antialias=self.antialias
        )


class CenterCrop:
    """The middle, which must be there."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Of a tensor that ends in ``[C,H,W]``."""
        height, width = x.shape[-2:]
        if height < self.size or width < self.size:
            raise NotImplementedError("padding")
        top, left = round((height - self.size) / 2.0), round((width - self.size) / 2.0)
        return x[..., top : top + self.size, left : left + self.size]


class Normalize:
    """Minus a mean, over a deviation, each a channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        if inplace:
            raise NotImplementedError("inplace")
        self.mean, self.std = mean, std

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Of a tensor that ends in ``[C,H,W]``."""
        _floats(x)
        mean, std = (torch.as_tensor(v, dtype=x.dtype, device=x.device).view(-1, 1, 1) for v in (self.mean, self.std))
        return (x - mean) / std


def _floats(x: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        raise NotImplementedError("a picture, or a tensor of integers")
