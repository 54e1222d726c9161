"""What the kernels are meant to reach, and the floor under which they are not done; only where they were set."""

from __future__ import annotations

from dataclasses import dataclass

from mxbench.attention.methods import METHODS
from mxbench.bench.check import four_bit
from mxbench.bench.shapes import Shape

__all__ = ["BASE", "PREPASS_FLOORS", "SHAPE", "Target", "target"]

SHAPE = Shape(1, 40, 75_600, 75_600, 128)
"""Wan2.2 at 720p, 81 frames."""

BASE = "fa4"

PREPASS_FLOORS = (0.04, 0.65)
"""Of every method there: at most this share of the call, at least this share of a copy's bandwidth."""


@dataclass(frozen=True, slots=True)
class Target:
    """A kernel's speed as a multiple of FlashAttention-4's in BF16 on an H200."""

    goal: float
    floor: float


_FAST = {"vc8": Target(1.60, 1.46), "mxattn": Target(1.20, 1.00)}
_CONFORMANCE = Target(0.75, 0.60)


def target(method: str, impl: str, shape: Shape, *, base: str | None, device: str, dtype: str) -> Target | None:
    """The target of a row, or None where none was set.

    Args:
        method: name of the method.
        impl: name of the implementation.
        shape: of the call.
        base: what ratios are taken to.
        device: what the device calls itself.
        dtype: as torch names it.
    """
    if shape != SHAPE or base != BASE or "H200" not in device or dtype != "bfloat16":
        return None
    if impl == "fast":
        return _FAST.get(method)
    if impl == "conformance" and method in METHODS and four_bit(METHODS[method].spec):
        return _CONFORMANCE
    return None
