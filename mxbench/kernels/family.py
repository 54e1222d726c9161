"""The kernel family: every method by one pair of Triton kernels, pre-pass and fused attention.

``attend()`` does not hand it out yet: it was checked in Triton's interpreter, and on no GPU.

Imports Triton: import this module where a kernel is asked for, never on the way to something else.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState
from mxbench.errors import UserError
from mxbench.kernels.fused import fused
from mxbench.kernels.held import Held
from mxbench.kernels.prepass import hold

__all__ = ["compute"]


def compute(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    path: str,
    *,
    key_mask: torch.Tensor | None = None,
    site: Site | None = None,
    state: GroupingState | None = None,
) -> torch.Tensor:
    """Attention by ``spec`` on a path of the family.

    Args:
        q: ``[B,H,Nq,D]``, any strides; not changed. Likewise ``k`` and ``v``, ``[B,H,Nk,D]``.
        k: keys.
        v: values.
        spec: the method.
        path: ``conformance``, ``fast`` or ``float32``.
        key_mask: bool ``[B,Nk]``, True for real keys, which are all that the method sees; without any, zeros.
        site: where in a render this call happens, for methods with state.
        state: the render's groupings.

    Returns:
        ``[B,H,Nq,Dv]`` in q's dtype.

    Raises:
        UserError: operands whose range the path's types do not span.
    """
    if key_mask is None:
        return _whole(q, k, v, spec, path, site, state, None)
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    for b in range(q.shape[0]):
        keys = key_mask[b]
        if bool(keys.any()):
            one = slice(b, b + 1)
            out[one] = _whole(q[one], k[one][:, :, keys], v[one][:, :, keys], spec, path, site, state, b)
    return out


def _whole(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    path: str,
    site: Site | None,
    state: GroupingState | None,
    tag: Hashable,
) -> torch.Tensor:
    held = hold(q, k, v, spec, path, site=site, state=state, tag=tag)
    _refuse_loss(held)
    return fused(held, spec, q.dtype)


def _refuse_loss(held: Held) -> None:
    """A value that its type cannot keep would make a method of its own."""
    if held.lost is not None and (lost := int(held.lost)):
        raise UserError(
            f"{lost} quantised elements lie below the range of E5M2, which holds 29 powers of two a head",
            "use impl 'conformance', which holds them in BF16",
        )
