"""What each path of the kernel family holds a method's operands in, and why it cannot hold one. Needs no Triton."""

from __future__ import annotations

import torch

from mxbench.attention.spec import AttentionSpec, Hadamard, KMean, QBlockMean
from mxbench.errors import unknown_name
from mxbench.kernels.held import Hold

__all__ = ["E5M2_LIFT", "E5M2_TOP", "PATHS", "holds", "reason"]

PATHS = ("conformance", "fast", "float32")

E5M2_TOP = 13  # exponent e of the largest blocks E2M1·2^e in E5M2: 6·2^13 is 49152 of 57344
E5M2_LIFT = 96  # the largest power of two that lifts tiny operands; its inverse is a normal FP32

_FAST: dict[str, Hold] = {"mxfp4": "e5m2", "e4m3": "e4m3", "int8": "int8"}


def holds(spec: AttentionSpec, path: str) -> tuple[Hold, Hold]:
    """The types of Q and K, and of P and V. Means something where ``reason`` is None.

    Hopper's FP8 units keep about 14 bits of a sum. That is enough for scores of rotated MXFP4; where large channels
    stand beside small ones, or elements have the bits of E4M3, codes of P would move: there Q and K are held in BF16,
    and P and V in 8 bits.
    """
    if path == "fast":
        assert spec.q is not None and spec.v is not None
        exact = spec.q.format == "int8" or (spec.q.format == "mxfp4" and spec.stage(Hadamard) is not None)
        return _FAST[spec.q.format] if exact else "bfloat16", _FAST[spec.v.format]
    hold: Hold = "float32" if path == "float32" else "bfloat16"
    return hold, hold


def reason(spec: AttentionSpec, path: str, dtype: torch.dtype) -> str | None:
    """Why ``path`` cannot hold the operands of ``spec``, in a clause; None where it can.

    Args:
        spec: the method.
        path: ``conformance``, ``fast`` or ``float32``, which holds everything.
        dtype: of q, k and v.

    Raises:
        UserError: no such path.
    """
    if path not in PATHS:
        raise unknown_name("path", path, PATHS)
    if path == "float32":
        return None
    for name in ("q", "k"):
        quantizer = getattr(spec, name)
        if quantizer is not None and quantizer.granularity == "channel":
            return f"a scale per channel of {name} cannot be taken out of the scores"
    return _fast(spec) if path == "fast" else _conformance(spec, dtype)


def _conformance(spec: AttentionSpec, dtype: torch.dtype) -> str | None:
    changed = {
        "q": spec.stage(QBlockMean) is not None or spec.stage(Hadamard) is not None,
        "k": spec.stage(KMean) is not None or spec.stage(Hadamard) is not None,
        "v": False,
    }
    for name, is_changed in changed.items():
        if getattr(spec, name) is None and (is_changed or dtype != torch.bfloat16):
            return f"{name} is not quantised, and bfloat16 would round it"
    return "p is not quantised, and bfloat16 would round it" if spec.p is None else None


def _fast(spec: AttentionSpec) -> str | None:
    for pair in ("qk", "pv"):
        first, second = (getattr(spec, name) for name in pair)
        for name, quantizer in zip(pair, (first, second), strict=True):
            if quantizer is None:
                return f"{name} is not quantised"
            if quantizer.format not in _FAST:
                return f"no 8-bit type of the matrix units holds the {quantizer.format} values of {name}"
        if first.format != second.format:
            return f"{pair[0]} is {first.format} and {pair[1]} is {second.format}, and the matrix units take one type"
    return None
