"""How attention is computed fast. One file a kernel family; ``exact`` holds the kernels that quantise nothing.

Nothing here imports Triton before a kernel of its family is asked about on a CUDA device.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from mxbench.attention.spec import AttentionSpec
from mxbench.errors import unknown_name
from mxbench.kernels.exact import EXACT
from mxbench.kernels.prepass_plan import reason

__all__ = ["EXACT", "FAMILY", "Tally", "groups", "supports"]

FAMILY: dict[str, str] = {
    "conformance": "quantised methods by Triton kernels on BF16 matrix units, which hold every value",
    "fast": "quantised methods by Triton kernels on 8-bit matrix units",
    "native": "4-bit methods by Triton kernels on FP4 matrix units",
}
"""Paths of the kernel family that are implementations, and what each is."""

_CAPABILITY = (9, 0)  # the instructions that packed P is made of
_DIMS = (128, 128)  # head dimensions that every kernel takes


@dataclass(slots=True)
class Tally:
    """What befell calls: one object for as many as its owner likes, such as a render.

    Attributes:
        widened: calls of ``fast`` that ``conformance`` computed: their operands span more than the 29 powers of two
            that E5M2 holds of a head.
    """

    widened: int = 0


def supports(
    spec: AttentionSpec, impl: str, device: torch.device, dtype: torch.dtype, dims: tuple[int, int] | None = None
) -> str | None:
    """Why a kernel cannot compute ``spec`` on ``device``, in a clause; None where it can.

    Args:
        spec: the method.
        impl: a name in ``EXACT`` or ``FAMILY``.
        device: where q, k and v lie.
        dtype: of q, k and v.
        dims: head dimensions of q and k, and of v; None where they are not known, and then they are no reason.

    Raises:
        UserError: no such kernel.
    """
    if impl not in EXACT and impl not in FAMILY:
        raise unknown_name("kernel", impl, [*EXACT, *FAMILY])
    if impl in EXACT:
        if spec.canonical().quantised:
            return f"{impl} is an exact kernel and the method quantises"
        return EXACT[impl].missing(device, dtype)
    try:
        clause = _missing(impl, device)
    except (AssertionError, RuntimeError):  # torch was built without CUDA, or finds no driver
        clause = "its kernels need a CUDA device"
    if clause is not None:
        return clause
    if not spec.canonical().quantised:
        return "the method quantises nothing, which impl 'auto' leaves to sdpa"
    if impl == "native":
        from mxbench.kernels.native import native_unsuited

        if torch.version.hip is not None and "nvfp4" in {x.format for x in (spec.q, spec.k, spec.v, spec.p) if x}:
            return "AMD's matrix units multiply MXFP4 alone"
        return native_unsuited(spec, *(dims or _DIMS))
    from mxbench.kernels.fused import unsuited

    return reason(spec, impl, dtype) or unsuited(spec, max(dims or _DIMS))


def groups(device: torch.device) -> bool:
    """Whether the kernel of V-Smooth's grouping runs there; it needs BF16 matrix units."""
    if device.type != "cuda" or torch.version.hip is not None or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0) and not _interpreted()


def _missing(impl: str, device: torch.device) -> str | None:
    """What the kernels of an implementation lack there, whatever the method."""
    if device.type != "cuda":
        return "its kernels need a CUDA device"
    if importlib.util.find_spec("triton") is None:
        return "its kernels need Triton, which is not installed"
    if _interpreted():
        return "TRITON_INTERPRET is set, and the interpreter computes on the CPU"
    if impl == "native":
        return None if _has_fp4(device) else "its kernels need FP4 matrix units: compute capability 10, or gfx950"
    if torch.version.hip is not None:
        return "its kernels need an NVIDIA GPU"
    found = torch.cuda.get_device_capability(device)
    if found < _CAPABILITY:
        wanted, got = (".".join(map(str, version)) for version in (_CAPABILITY, found))
        return f"its kernels need compute capability {wanted}, and this device has {got}"
    return None


def _interpreted() -> bool:
    from mxbench.kernels.quantise_jit import INTERPRETED

    return bool(INTERPRETED)


def _has_fp4(device: torch.device) -> bool:
    """Whether its matrix units are among those that the native kernels were compiled for."""
    if torch.version.hip is not None:
        return torch.cuda.get_device_properties(device).gcnArchName.startswith("gfx950")
    return torch.cuda.get_device_capability(device)[0] == 10
