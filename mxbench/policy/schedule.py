"""``Schedule``: which method computes which attention call of a render."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from mxbench.attention.methods import METHODS, Method, method
from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec
from mxbench.errors import UserError
from mxbench.policy.selector import ALL, Selector

__all__ = ["Rule", "Schedule", "Use", "as_schedule"]

AttentionFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
KINDS = ("self", "cross")


@dataclass(frozen=True, slots=True)
class Use:
    """What computes a call: a spec, or a user's own function (which nothing here has verified).

    Attributes:
        name: how it is called in tables and messages.
        spec: the method; None for a function.
        function: ``f(q, k, v) -> out`` on ``[B,H,N,D]``; None for a spec.
        identity: what stands for a function in ids: its import path.
    """

    name: str
    spec: AttentionSpec | None = None
    function: AttentionFunction | None = field(default=None, compare=False)
    identity: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The canonical description: equal computations give equal ones."""
        if self.spec is not None:
            return {"spec": self.spec.canonical().to_dict()}
        return {"function": self.identity}


@dataclass(frozen=True, slots=True)
class Rule:
    """Where ``use`` applies.

    Attributes:
        use: what computes the calls.
        layers: which DiT blocks; negative numbers count from the end.
        steps: which denoising steps, likewise.
        experts: which transformers.
        kind: ``self`` (joint attention of text and video included) or ``cross``.
    """

    use: Use
    layers: Selector = ALL
    steps: Selector = ALL
    experts: Selector = ALL
    kind: str = "self"

    def matches(self, site: Site, n_experts: int) -> bool:
        """Whether the rule names the site."""
        return (
            site.kind == self.kind
            and (site.layer, site.n_layers) in self.layers
            and (site.step, site.n_steps) in self.steps
            and (site.expert, n_experts) in self.experts
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with selectors in their one spelling."""
        return {
            "layers": str(self.layers),
            "steps": str(self.steps),
            "experts": str(self.experts),
            "kind": self.kind,
            "use": self.use.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rules in order; the first that names a site decides; where none does, the model's own attention runs."""

    name: str
    rules: tuple[Rule, ...]

    def at(self, site: Site, n_experts: int) -> Use | None:
        """What computes the call at ``site``; None for the model's own attention."""
        for rule in self.rules:
            if rule.matches(site, n_experts):
                return rule.use
        return None

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of attention that some rule names."""
        return frozenset(rule.kind for rule in self.rules)

    @property
    def uses(self) -> tuple[Use, ...]:
        """What the rules use, in order."""
        return tuple(rule.use for rule in self.rules)

    @property
    def unverified(self) -> bool:
        """Whether a user's own function takes part."""
        return any(use.spec is None for use in self.uses)

    @property
    def main(self) -> Use:
        """The last rule's: what a hybrid policy falls back to, the method that a table row is about."""
        return self.rules[-1].use

    def share(self, n_layers: int, experts: Sequence[int], n_experts: int) -> float:
        """How much of a render's self-attention ``main`` computes; ``experts`` are those that compute each step."""
        sites = [
            Site(expert=expert, layer=layer, n_layers=n_layers, kind="self", step=step, n_steps=len(experts))
            for (step, expert), layer in product(enumerate(experts), range(n_layers))
        ]
        return sum(self.at(site, n_experts) == self.main for site in sites) / len(sites)

    def check(self, n_layers: int, n_steps: int, n_experts: int, kinds: Collection[str] = KINDS) -> None:
        """See that every rule can match in a model of that size, whose attention is of these kinds.

        Raises:
            UserError: a rule names a layer, step, expert or kind that does not exist.
        """
        for rule in self.rules:
            if rule.kind not in kinds:
                raise UserError(
                    f"method {self.name!r}: the model has no {rule.kind}-attention that can be taken over",
                    f"use kind: {' or '.join(kinds)}",
                )
            try:
                rule.layers.indices(n_layers, "layer")
                rule.steps.indices(n_steps, "step")
                rule.experts.indices(n_experts, "expert")
            except UserError as error:
                raise UserError(f"method {self.name!r}: {error.problem}", error.fix) from None

    def to_dict(self) -> dict[str, Any]:
        """Canonical plain data; the name is no part of it."""
        return {"rules": [rule.to_dict() for rule in self.rules]}

    @property
    def id(self) -> str:
        """First 12 hex digits of the SHA-256 of ``to_dict()``."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def as_schedule(what: str | Method | AttentionSpec | Schedule | AttentionFunction) -> Schedule:
    """A schedule of anything that names a method: one rule, for all self-attention.

    Args:
        what: a name in ``METHODS``, an entry of it, a spec, a schedule, or a function ``f(q, k, v) -> out``.

    Raises:
        UserError: an unknown name, or something else altogether.
    """
    if isinstance(what, Schedule):
        return what
    if isinstance(what, str):
        return Schedule(what, (Rule(Use(what, method(what).spec)),))
    if isinstance(what, Method):
        name = next((n for n, m in METHODS.items() if m is what), what.label)
        return Schedule(name, (Rule(Use(name, what.spec)),))
    if isinstance(what, AttentionSpec):
        known = (n for n, m in METHODS.items() if m.spec.canonical() == what.canonical())
        name = next(known, f"spec-{what.id}")
        return Schedule(name, (Rule(Use(name, what)),))
    if callable(what):
        identity = f"{getattr(what, '__module__', '?')}:{getattr(what, '__qualname__', repr(what))}"
        return Schedule(identity, (Rule(Use(identity, None, what, identity)),))
    raise UserError(
        f"{type(what).__name__} is no attention method",
        "pass a method's name, an AttentionSpec, a Schedule or a function f(q, k, v)",
    )
