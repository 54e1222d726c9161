"""``attend``: the one entry from a method to the code that computes it.

It computes with the implementation that was asked for, or raises. One rule of ``fast`` is counted (``Tally``): a call
that E5M2 cannot hold is computed by ``conformance``.
"""

from __future__ import annotations

import torch

from mxbench.attention.methods import Method, method
from mxbench.attention.reference import reference
from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState
from mxbench.attention.value import lloyd as plain_lloyd
from mxbench.errors import UserError, unknown_name
from mxbench.kernels import EXACT, FAMILY, Tally, groups, supports

__all__ = ["IMPLS", "Tally", "attend", "default_impl", "lloyd", "unsupported"]

IMPLS: dict[str, str] = {
    "reference": "the tiled reference in plain torch, on any device",
    **FAMILY,
    **{name: f"exact attention by {kernel.label}" for name, kernel in EXACT.items()},
}


def default_impl(
    spec: AttentionSpec, device: torch.device, dtype: torch.dtype, dims: tuple[int, int] | None = None
) -> str:
    """What ``auto`` stands for.

    For a method that quantises nothing torch SDPA. For the others on a CUDA device the first of ``fast`` and
    ``conformance`` that computes the method there; the reference where neither does, and on any other device.
    """
    if not spec.canonical().quantised:
        return "sdpa"
    if device.type == "cuda":
        for impl in ("fast", "conformance"):
            if supports(spec, impl, device, dtype, dims) is None:
                return impl
    return "reference"


def lloyd(
    v: torch.Tensor, clusters: int, iterations: int, centres: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """V-Smooth's clusters, as ``mxbench.attention.value.lloyd``: by a kernel on a CUDA device, whatever impl computes.

    The reference and the kernels then work on one grouping: one made with other roundings is another.
    """
    if groups(v.device):
        from mxbench.kernels import grouping

        if grouping.suits(v, clusters):
            return grouping.lloyd(v, clusters, iterations, centres)
    return plain_lloyd(v, clusters, iterations, centres)


def unsupported(
    spec: AttentionSpec, impl: str, device: torch.device, dtype: torch.dtype, dims: tuple[int, int] | None = None
) -> str | None:
    """Why ``impl`` cannot compute ``spec`` there, in a clause; None where it can.

    Args:
        spec: the method.
        impl: a name in ``IMPLS``.
        device: where q, k and v lie.
        dtype: of q, k and v.
        dims: head dimensions of q and k, and of v, where they are known.

    Raises:
        UserError: no such implementation.
    """
    if impl not in IMPLS:
        raise unknown_name("impl", impl, [*IMPLS, "auto"])
    return None if impl == "reference" else supports(spec, impl, device, dtype, dims)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec | Method | str,
    *,
    impl: str = "auto",
    key_mask: torch.Tensor | None = None,
    site: Site | None = None,
    state: GroupingState | None = None,
    tally: Tally | None = None,
) -> torch.Tensor:
    """Attention by a method.

    Args:
        q: ``[B,H,Nq,D]``, any strides, float16, bfloat16 or float32; never written to.
        k: ``[B,H,Nk,D]``, same dtype and device.
        v: ``[B,H,Nk,Dv]``, same dtype and device.
        spec: an ``AttentionSpec``, an entry of ``METHODS`` or its name.
        impl: a name in ``IMPLS``, or ``auto`` (see ``default_impl``). ``fast`` holds MXFP4 in E5M2; a call whose
            operands that cannot hold is computed by ``conformance``: ``tally`` counts it, or a warning says so.
        key_mask: bool ``[B,Nk]``, True for real keys.
        site: where in a render the call happens; without it a method with state groups afresh.
        state: the render's groupings, for methods with state at a site.
        tally: counts what befalls the calls that it is passed to.

    Returns:
        ``[B,H,Nq,Dv]`` in q's dtype.

    Raises:
        UserError: operands that do not fit together, or an implementation that cannot compute the method there.
    """
    if isinstance(spec, str):
        spec = method(spec)
    if isinstance(spec, Method):
        spec = spec.spec
    if not isinstance(spec, AttentionSpec):
        raise UserError(f"{type(spec).__name__} is no method", "pass an AttentionSpec, an entry of METHODS or its name")
    _check(q, k, v, key_mask)
    dims = (q.shape[-1], v.shape[-1])
    if impl == "auto":
        impl = default_impl(spec, q.device, q.dtype, dims)
    reason = unsupported(spec, impl, q.device, q.dtype, dims)
    if reason is not None:
        raise UserError(f"impl {impl!r} cannot run here: {reason}", "use impl 'reference', which computes every method")
    if impl not in EXACT and torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        raise UserError(f"an operand asks for a gradient, and impl {impl!r} has none", "call inside torch.no_grad()")
    with torch.autocast(q.device.type, enabled=False):  # it would take matrix products of FP32 to 16 bits
        if impl == "reference":
            return reference(q, k, v, spec, key_mask=key_mask, site=site, state=state)
        if impl in EXACT:
            return EXACT[impl].run(q, k, v, key_mask)
        from mxbench.kernels.family import compute  # imports Triton

        return compute(q, k, v, spec, impl, key_mask=key_mask, site=site, state=state, tally=tally)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None) -> None:
    for given in (q, k, v, *([key_mask] if key_mask is not None else [])):
        if not isinstance(given, torch.Tensor):
            raise UserError(f"an operand is {type(given).__name__}", "pass torch tensors")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if any(t.dim() != 4 for t in (q, k, v)) or not (
        q.shape[:2] == k.shape[:2] == v.shape[:2] and q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2]
    ):
        raise UserError(f"operands do not fit together: {shapes}", "pass q [B,H,Nq,D], k [B,H,Nk,D] and v [B,H,Nk,D]")
    if min(*q.shape, *k.shape, *v.shape) < 1:
        raise UserError(
            f"an operand is empty: {shapes}", "pass at least one batch element, head, query, key and channel"
        )
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        raise UserError(
            f"operands differ: {q.dtype} on {q.device}, {k.dtype} on {k.device}, {v.dtype} on {v.device}",
            "bring them to one dtype and device",
        )
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise UserError(f"operands are {q.dtype}", "use float16, bfloat16 or float32")
    if key_mask is not None and (
        key_mask.dtype != torch.bool or key_mask.shape != (k.shape[0], k.shape[-2]) or key_mask.device != k.device
    ):
        raise UserError(
            f"key_mask is {key_mask.dtype} {tuple(key_mask.shape)} on {key_mask.device}",
            f"pass a bool mask of shape ({k.shape[0]}, {k.shape[-2]}) on {k.device}, True for real keys",
        )
