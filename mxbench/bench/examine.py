"""Check candidates before any is timed: the whole call, and its halves put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from mxbench.attention.spec import VSmooth
from mxbench.bench.candidates import Bound, Candidate
from mxbench.bench.check import Judge, Verdict, poisoned
from mxbench.bench.failures import Failure, guarded
from mxbench.bench.operands import Operands, Seat, draw, seat
from mxbench.bench.shapes import Shape
from mxbench.errors import UserError

__all__ = ["Checked", "check_all", "nbytes"]


@dataclass(frozen=True, slots=True)
class Checked:
    """A candidate that ran.

    Attributes:
        bound: with its operands.
        verdict: on its output.
        moved: bytes that its pre-pass reads and writes, at least: the operands once, and what it made once.
    """

    bound: Bound
    verdict: Verdict
    moved: int


def check_all(
    candidates: Iterable[Candidate],
    operands: Operands,
    judge: Judge,
    shape: Shape,
    seed: int,
    on_step: Callable[[str], None],
) -> dict[str, Checked | Failure]:
    """Check every candidate that can run here.

    Args:
        candidates: of the run.
        operands: of the shape; drawn anew in place if a candidate writes to them.
        judge: of these operands.
        shape: of the call.
        seed: that the operands were drawn with.
        on_step: called before each candidate.

    Returns:
        By key: what it is bound to and its verdict, or why there is none.
    """
    found: dict[str, Checked | Failure] = {}
    seats: dict[VSmooth, Seat] = {}
    before = operands.fingerprint()
    for candidate in candidates:
        if candidate.missing is not None:
            continue
        on_step(f"checking {candidate.key}")
        outcome = guarded(lambda each=candidate: _examine(each, operands, judge, seats))  # type: ignore[misc]
        if operands.fingerprint() != before:  # whoever comes next gets what was meant for it
            _restore(candidate, operands, shape, seed)
            if isinstance(outcome, Checked):
                outcome = replace(outcome, verdict=replace(outcome.verdict, problem="it wrote to its operands"))
        found[candidate.key] = outcome
    return found


def _restore(candidate: Candidate, operands: Operands, shape: Shape, seed: int) -> None:
    fresh = guarded(lambda: draw(shape, operands.q.device, operands.q.dtype, seed))
    if isinstance(fresh, Failure):
        raise UserError(
            f"{candidate.key} wrote to its operands, and there is no room to draw them again", "leave it out"
        )
    for old, new in zip((operands.q, operands.k, operands.v), (fresh.q, fresh.k, fresh.v), strict=True):
        old.copy_(new)


def _examine(candidate: Candidate, operands: Operands, judge: Judge, seats: dict[VSmooth, Seat]) -> Checked:
    """The whole call, and its halves put together, against what they must equal; the worse of the two counts."""
    spec, where = candidate.spec, Seat()
    if spec is not None and spec.v_smooth is not None:
        if spec.v_smooth not in seats:
            seats[spec.v_smooth] = seat(operands, spec)
        where = seats[spec.v_smooth]

    def verdict(out: torch.Tensor) -> Verdict:
        if spec is None:
            return judge.of_peer(out, candidate.allowed)
        return judge.of_method(out, spec, candidate.impl, where)

    # What is due is computed first: a candidate that writes to its operands must not change it.
    judge.expect(spec, where)
    bound = candidate.bind(operands, where)
    found, moved = verdict(poisoned(operands.q, bound.call)), 0
    if bound.prepare is not None and bound.run is not None and not found.red:
        prepared, run = bound.prepare(), bound.run
        moved = operands.nbytes + nbytes(prepared)
        halves = verdict(poisoned(operands.q, lambda: run(prepared)))
        found = halves if halves.red or halves.error > found.error else found
    return Checked(bound, found, moved)


def nbytes(prepared: Any) -> int:
    """Bytes of all tensors in a dataclass, a mapping or a sequence, each counted once."""
    seen: dict[int, int] = {}
    waiting = [prepared]
    while waiting:
        each = waiting.pop()
        if isinstance(each, torch.Tensor):
            seen[each.data_ptr()] = each.numel() * each.element_size()
        elif is_dataclass(each):
            waiting += [getattr(each, field.name) for field in fields(each)]
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
    return sum(seen.values())
