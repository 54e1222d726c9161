"""The kernel family: every method by one pair of Triton kernels, pre-pass and fused attention.

``attend()`` hands out the paths that are in ``mxbench.kernels.FAMILY``; ``float32`` is for tests.

Imports Triton: import this module where a kernel is asked for, never on the way to something else.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable

import torch

from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState
from mxbench.errors import UserError
from mxbench.kernels import Tally
from mxbench.kernels.fused import fused
from mxbench.kernels.native import hold_native, native
from mxbench.kernels.prepass import hold
from mxbench.kernels.quantise_jit import INTERPRETED

__all__ = ["compute"]

_WIDER = "conformance"
"""The path of a call that ``fast`` cannot hold: BF16 holds it."""


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
    tally: Tally | None = None,
) -> torch.Tensor:
    """Attention by ``spec`` on a path of the family.

    A call of ``fast`` that E5M2 cannot hold (29 powers of two a head) is computed by ``conformance`` and counted: an
    element that vanishes would make a method of its own.

    Args:
        q: ``[B,H,Nq,D]``, any strides; not changed. Likewise ``k`` and ``v``, ``[B,H,Nk,D]``.
        k: keys.
        v: values.
        spec: the method.
        path: ``conformance``, ``fast``, ``native`` or ``float32``.
        key_mask: bool ``[B,Nk]``, True for real keys, which are all that the method sees; without any, zeros.
        site: where in a render this call happens, for methods with state.
        state: the render's groupings.
        tally: counts the calls that were widened.

    Returns:
        ``[B,H,Nq,Dv]`` in q's dtype.

    Raises:
        UserError: the path cannot hold or compute the method.
    """
    known = dict(state.groupings) if state is not None else {}
    out = _masked(q, k, v, spec, path, key_mask, site, state)
    if out is None:
        if state is not None:  # a grouping made twice would start from its own centres
            state.groupings = known
        if tally is not None:
            tally.widened += 1
        else:
            warnings.warn(
                f"impl {path!r} cannot hold this call, whose operands span more powers of two than E5M2 has: "
                f"{_WIDER} computes it (pass a Tally to count such calls)",
                stacklevel=3,
            )
        out = _masked(q, k, v, spec, _WIDER, key_mask, site, state)
        assert out is not None
    return out


def _masked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    path: str,
    key_mask: torch.Tensor | None,
    site: Site | None,
    state: GroupingState | None,
) -> torch.Tensor | None:
    """The call on one path; None where the path loses an element."""
    if key_mask is None:
        return _whole(q, k, v, spec, path, site, state, None)
    if path == "native" and spec.v_smooth is not None and site is not None:
        raise UserError("impl 'native' keeps no groupings under a key mask", "use impl 'reference'")
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    for b in range(q.shape[0]):
        keys = key_mask[b]
        if bool(keys.any()):
            one = slice(b, b + 1)
            found = _whole(q[one], k[one][:, :, keys], v[one][:, :, keys], spec, path, site, state, b)
            if found is None:
                return None
            out[one] = found
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
) -> torch.Tensor | None:
    """Attention over all keys; None where the path loses an element."""
    if path == "native":
        return native(hold_native(q, k, v, spec, site=site, state=state), spec, q.dtype)
    if path == "conformance" and INTERPRETED:
        raise UserError("Triton's interpreter does not multiply bfloat16", "use the path float32")
    held = hold(q, k, v, spec, path, site=site, state=state, tag=tag)
    if held.lost is not None and int(held.lost):
        return None
    return fused(held, spec, q.dtype)
