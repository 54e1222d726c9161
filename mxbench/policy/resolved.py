"""What a schedule comes to, call by call: for people who want to see it, and for rules that never apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from mxbench.attention.site import Site
from mxbench.policy.schedule import Schedule, Use

__all__ = ["idle", "resolved"]

_OWN = "the model's own"


def idle(schedule: Schedule, n_layers: int, experts: Sequence[int], n_experts: int) -> list[str]:
    """The rules that decide no call, since those before them do.

    Args:
        schedule: the rules.
        n_layers: DiT blocks.
        experts: which transformer computes each step.
        n_experts: transformers.
    """
    sites = list(_sites(n_layers, experts, schedule.kinds))
    found = []
    for index, rule in enumerate(schedule.rules):
        before = Schedule(schedule.name, schedule.rules[:index])
        if not any(rule.matches(site, n_experts) and before.at(site, n_experts) is None for site in sites):
            found.append(f"rule {index + 1} of {len(schedule.rules)} ({rule.use.name}) decides no call")
    return found


def resolved(schedule: Schedule, n_layers: int, experts: Sequence[int], n_experts: int) -> list[str]:
    """Which method at which layer and step, a line for steps that are alike; arguments as ``idle`` takes them."""
    lines = []
    for kind in sorted(schedule.kinds, reverse=True):  # self before cross
        steps = [
            (
                expert,
                tuple(schedule.at(_site(expert, layer, n_layers, kind, step, len(experts)), n_experts)
                      for layer in range(n_layers)),
            )
            for step, expert in enumerate(experts)
        ]  # fmt: skip
        first = 0
        for (expert, uses), group in groupby(steps):
            count = len(list(group))
            of = f" (expert {expert})" if n_experts > 1 else ""
            where = f"{kind}-attention, {_span('step', first, count)}{of}: "
            lines.append(where + "; ".join(f"{span} {name}" for span, name in _layers(uses)))
            first += count
    return lines


def _layers(uses: Sequence[Use | None]) -> Iterator[tuple[str, str]]:
    first = 0
    for use, group in groupby(uses):
        count = len(list(group))
        yield _span("layer", first, count), _OWN if use is None else use.name
        first += count


def _span(word: str, first: int, count: int) -> str:
    return f"{word} {first}" if count == 1 else f"{word}s {first}-{first + count - 1}"


def _sites(n_layers: int, experts: Sequence[int], kinds: frozenset[str]) -> Iterator[Site]:
    for step, expert in enumerate(experts):
        for layer in range(n_layers):
            for kind in kinds:
                yield _site(expert, layer, n_layers, kind, step, len(experts))


def _site(expert: int, layer: int, n_layers: int, kind: str, step: int, n_steps: int) -> Site:
    return Site(expert=expert, layer=layer, n_layers=n_layers, kind=kind, step=step, n_steps=n_steps)
