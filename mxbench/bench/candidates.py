"""Who is measured: implementations of methods, and peers, in one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mxbench.attention.methods import METHODS, method
from mxbench.attention.reference import prepare, walk
from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState
from mxbench.bench.check import four_bit
from mxbench.bench.operands import Operands, Seat
from mxbench.dispatch import IMPLS, Tally, attend, unsupported
from mxbench.errors import UserError, unknown_name
from mxbench.kernels import EXACT

__all__ = ["SPLITS", "Bound", "Candidate", "Prepare", "Run", "Split", "method_candidates", "of_method"]

Prepare = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, AttentionSpec, Site | None, GroupingState | None],
    Any,
]
"""``(q, k, v, spec, site, state)`` to whatever ``Run`` reads."""

Run = Callable[[Any, AttentionSpec, torch.dtype], torch.Tensor]
"""``(prepared, spec, dtype)`` to ``[B,H,Nq,Dv]`` in that dtype."""


@dataclass(frozen=True, slots=True)
class Split:
    """An implementation in its two halves, which together are what ``attend`` does with it.

    Attributes:
        prepare: the pre-pass: statistics, transforms, quantisation.
        run: the kernel.
    """

    prepare: Prepare
    run: Run


def _path(name: str) -> Split:
    """A path of the kernel family, whose modules import Triton."""

    def prepare_path(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        spec: AttentionSpec,
        site: Site | None,
        state: GroupingState | None,
    ) -> Any:
        from mxbench.kernels.prepass import hold

        return hold(q, k, v, spec, name, site=site, state=state)

    def run_path(held: Any, spec: AttentionSpec, dtype: torch.dtype) -> torch.Tensor:
        from mxbench.kernels.fused import fused

        return fused(held, spec, dtype)

    return Split(prepare_path, run_path)


SPLITS: dict[str, Split] = {
    "reference": Split(
        lambda q, k, v, spec, site, state: prepare(q, k, v, spec, site=site, state=state),
        lambda operands, spec, dtype: walk(operands, spec).to(dtype),
    ),
    "conformance": _path("conformance"),
    "fast": _path("fast"),
}
"""Implementations whose halves are timed one by one. One that is not here is timed as a whole call."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A candidate with its operands.

    Attributes:
        call: all of it, as a user calls it.
        prepare: its pre-pass, or None where it has none or cannot be split.
        run: its kernel, on what ``prepare`` returned.
    """

    call: Callable[[], torch.Tensor]
    prepare: Callable[[], Any] | None = None
    run: Callable[[Any], torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something to check and to time.

    Attributes:
        method: name of the method; empty for a peer.
        impl: name of the implementation or the peer.
        label: how tables print it.
        includes: what its call is, in a clause.
        exact: whether it quantises nothing, so that its call is its kernel.
        spec: the method; None for a peer.
        allowed: of a peer, the relative L2 error against exact attention.
        fp4: whether 4-bit values are ``emulated`` in a wider type or the ``hardware``'s own; empty without any.
        version: of a peer's package.
        missing: why it cannot run here, in a clause, or None.
        bind: gives it its operands; may compile or plan.
    """

    method: str
    impl: str
    label: str
    includes: str
    exact: bool
    bind: Callable[[Operands, Seat], Bound]
    spec: AttentionSpec | None = None
    allowed: float = 0.0
    fp4: Literal["", "emulated", "hardware"] = ""
    version: str = ""
    missing: str | None = None

    @property
    def key(self) -> str:
        """Its name in the run, such as ``mxattn/fast`` or ``fa4``."""
        return f"{self.method}/{self.impl}" if self.method else self.impl


def of_method(name: str, impl: str, device: torch.device, dtype: torch.dtype) -> Candidate:
    """An implementation of a method.

    Raises:
        UserError: no such method or implementation.
    """
    entry, spec, split = method(name), method(name).spec, SPLITS.get(impl)
    exact = not spec.canonical().quantised

    def bind(operands: Operands, seat: Seat) -> Bound:
        q, k, v = operands.q, operands.k, operands.v

        def call() -> torch.Tensor:
            tally = Tally()
            out = attend(q, k, v, spec, impl=impl, site=seat.site, state=seat.state, tally=tally)
            if tally.widened:  # its time is another implementation's
                raise UserError("E5M2 cannot hold these operands, and conformance computed them", "time that one")
            return out

        if split is None or exact:
            return Bound(call)
        return Bound(
            call,
            lambda: split.prepare(q, k, v, spec, seat.site, seat.state),
            lambda prepared: split.run(prepared, spec, q.dtype),
        )

    fp4: Literal["", "emulated", "hardware"] = ""
    if four_bit(spec):
        fp4 = "hardware" if impl == "native" else "emulated"
    includes = "an exact kernel, through attend()" if exact else "attend(): the pre-pass and the kernel"
    if spec.v_smooth is not None:
        includes += ", at a step that keeps its grouping"
    return Candidate(
        name,
        impl,
        entry.label,
        includes,
        exact,
        bind,
        spec=spec,
        fp4=fp4,
        missing=unsupported(spec, impl, device, dtype),
    )


def method_candidates(
    methods: Sequence[str], impls: Sequence[str], device: torch.device, dtype: torch.dtype
) -> list[Candidate]:
    """The pairs of a run.

    Args:
        methods: by name. None named: all that an implementation computes here; of an implementation that was named and
            computes none, one method for each reason.
        impls: by name. None named: all that compute quantised methods; on a CPU the reference alone, and elsewhere
            without it: it is an oracle, and slow.
        device: where to run.
        dtype: of the operands.

    Raises:
        UserError: a name that does not exist.
    """
    for name in impls:
        if name not in IMPLS:
            raise unknown_name("impl", name, IMPLS)
    chosen = list(dict.fromkeys(impls)) or [
        name for name in IMPLS if name not in EXACT and (name == "reference") == (device.type == "cpu")
    ]
    found = []
    for impl in chosen:
        pairs = [of_method(name, impl, device, dtype) for name in dict.fromkeys(methods or METHODS)]
        if not methods:
            here = [pair for pair in pairs if pair.missing is None]
            reasons = {pair.missing: pair for pair in reversed(pairs)}
            pairs = here or (list(reversed(reasons.values())) if impls else [])
        found += pairs
    return found
