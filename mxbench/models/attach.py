"""``attach``: run a diffusers pipeline with another attention, for the length of a ``with`` block.

The seam has three parts and replaces no processor: a backend function in diffusers' registry, hooks on each attention
module that say which site is running, and hooks on each transformer that read the step from the scheduler and count
the guidance branch. A family whose attention does not go through the registry says how it is taken over instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from mxbench.attention.methods import Method
from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState
from mxbench.dispatch import Tally, attend, lloyd
from mxbench.errors import UserError
from mxbench.models.base import AttentionSite, Family, Layout
from mxbench.models.hunyuan import HUNYUAN, HUNYUAN15
from mxbench.models.longcat import LONGCAT
from mxbench.models.minimax import MINIMAX
from mxbench.models.tested import check_diffusers
from mxbench.models.wan import WAN
from mxbench.policy import Schedule, Use, as_schedule

__all__ = ["FAMILIES", "attach", "family_of"]

FAMILIES: tuple[Family, ...] = (WAN, HUNYUAN, HUNYUAN15, MINIMAX, LONGCAT)

_attached: list[attach] = []


def family_of(pipe: Any) -> Family:
    """The family of a pipeline.

    Raises:
        UserError: a pipeline class that no family names.
    """
    name = type(pipe).__name__
    for family in FAMILIES:
        if name in family.pipelines:
            return family
    known = ", ".join(p for family in FAMILIES for p in family.pipelines)
    raise UserError(f"mxbench has no seam for {name}", f"use a pipeline of a known class: {known}")


class attach:  # noqa: N801 - used like a function
    """Compute a pipeline's attention by a method.

    Self-attention only, unless a rule of a schedule names ``kind="cross"``. It knows layer, step, guidance branch and
    expert, touches the DiT alone, and is usable by itself::

        with mxbench.attach(pipe, "mxattn"):
            video = pipe(prompt)

    Args:
        pipe: a diffusers pipeline of a known family.
        method: a name in ``METHODS``, an entry of it, an ``AttentionSpec``, a ``Schedule``, or a function
            ``f(q, k, v) -> out`` on ``[B,H,N,D]``.
        impl: a name in ``mxbench.dispatch.IMPLS``, or ``auto``.

    Attributes:
        calls: counter of (expert, layer, kind, step, branch) that the method computed.
        nonfinite: how many of these calls were handed a NaN or an infinity (read it after the block).
        widened: how many of them ``fast`` could not hold and ``conformance`` computed, see ``attend``.
        site: of the call that the method is computing, for a function that asks where it is; outside of a call the
            last one, and None before the first.

    Raises:
        UserError: on entry, a pipeline that cannot be attached to or a rule that cannot match; inside, an argument that
            the seam does not handle or an attention call that did not come; on exit, when nothing was intercepted.
    """

    def __init__(
        self,
        pipe: Any,
        method: str | Method | AttentionSpec | Schedule | Callable[..., torch.Tensor],
        *,
        impl: str = "auto",
    ) -> None:
        self.family = family_of(pipe)
        self.schedule = as_schedule(method)
        self.calls: Counter[tuple[int, int, str, int, int]] = Counter()
        self.site: Site | None = None
        self._pipe, self._impl = pipe, impl
        self._state = GroupingState(lloyd=lloyd)
        self._tally = Tally()
        self._nonfinite: torch.Tensor | None = None
        self._experts = [t for a in self.family.experts if (t := getattr(pipe, a, None)) is not None]
        self._n_layers = [1 + max(s.layer for s in self.family.sites(t)) for t in self._experts]
        self._undo: list[Callable[[], None]] = []
        self._site: AttentionSite | None = None
        self._forward: tuple[int, int, int, Layout] | None = None  # expert, step, branch, layout
        self._last: tuple[int, int, int] | None = None  # expert, step, branch of the last forward
        self._seen: Counter[tuple[int, str]] = Counter()

    @property
    def nonfinite(self) -> int:
        """Calls that were handed a NaN or an infinity."""
        return 0 if self._nonfinite is None else int(self._nonfinite)

    @property
    def widened(self) -> int:
        """Calls whose operands E5M2 could not hold."""
        return self._tally.widened

    def __enter__(self) -> attach:
        check_diffusers()
        from mxbench.models import backend

        if _attached:
            raise UserError(
                "a pipeline is attached already", "leave the first `with attach(...)` block before the next"
            )
        try:
            for index, transformer in enumerate(self._experts):
                self._hook(index, transformer)
        except BaseException:
            self._restore()
            raise
        _attached.append(self)
        backend.connect(self._serve)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from mxbench.models import backend

        backend.connect(None)
        _attached.clear()
        self._restore()
        if kind is None and not self.calls:
            raise UserError(
                f"attach({self.schedule.name!r}) intercepted nothing",
                "call the pipeline inside the block, with rules that match it",
            )

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _hook(self, expert: int, transformer: Any) -> None:
        from mxbench.models import backend

        if getattr(transformer, "is_cache_enabled", False):
            raise UserError(
                "the transformer has a cache enabled, which skips attention", "call disable_cache() on it first"
            )
        if "cross" in self.schedule.kinds and getattr(transformer, "_parallel_config", None) is not None:
            raise UserError(
                "cross-attention sees pieces of the queries where a transformer is spread over GPUs",
                "use one GPU, or leave cross-attention out of the schedule",
            )
        sites = [s for s in self.family.sites(transformer) if s.kind in self.schedule.kinds]
        wanted = Counter((s.layer, s.kind) for s in sites)
        for site in sites:
            self._undo.append(site.module.register_forward_pre_hook(self._entering(site)).remove)
            self._undo.append(site.module.register_forward_hook(self._leaving, always_call=True).remove)
            if self.family.take is not None:
                self._undo.append(self.family.take(site.module, self._serve))
                continue
            processor: Any = site.module.processor
            if not hasattr(processor, "_attention_backend"):
                raise UserError(
                    f"{type(processor).__name__} bypasses diffusers' attention dispatcher",
                    "restore the pipeline's own processors",
                )
            self._undo.append(_setter(processor, "_attention_backend", processor._attention_backend))
            processor._attention_backend = backend.BACKEND
            if self.family.hides:
                self._undo.append(site.module.register_forward_pre_hook(_unmasked, with_kwargs=True).remove)

        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._begin(expert, module, args, kwargs)

        def after(_module: Any, _args: Any, _output: Any) -> None:
            self._end(wanted)

        self._undo.append(transformer.register_forward_pre_hook(before, with_kwargs=True).remove)
        self._undo.append(transformer.register_forward_hook(after).remove)

    def _entering(self, site: AttentionSite) -> Callable[[Any, Any], None]:
        def hook(_module: Any, _args: Any) -> None:
            self._site = site

        return hook

    def _leaving(self, _module: Any, _args: Any, _output: Any) -> None:
        self._site = None

    def _begin(self, expert: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args:
            raise UserError("the transformer was called with positional arguments", "let the pipeline call it")
        if kwargs.get("attention_kwargs"):
            raise UserError("attention_kwargs are not handled by the seam", "call the pipeline without them")
        scheduler = self._pipe.scheduler
        # None before the first step() of a run, then the index of the step to come.
        step = 0 if scheduler.step_index is None else int(scheduler.step_index)
        branch = self._last[2] + 1 if self._last is not None and self._last[:2] == (expert, step) else 0
        self._last = (expert, step, branch)
        self._forward = (expert, step, branch, self.family.layout(module, kwargs))
        self._seen.clear()

    def _end(self, wanted: Counter[tuple[int, str]]) -> None:
        self._forward = None
        if self._seen != wanted:
            wrong = sorted(key for key in wanted | self._seen if wanted[key] != self._seen[key])
            layer, kind = wrong[0]
            raise UserError(
                f"{kind}-attention of layer {layer} was dispatched {self._seen[wrong[0]]} times in one forward, "
                f"not {wanted[wrong[0]]}",
                "use the pipeline as diffusers ships it, without fused or cached blocks",
            )

    def _serve(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        options: dict[str, Any],
        own: Callable[..., torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """One attention call on ``[B,N,H,D]``; ``own`` computes it as the module would."""
        from mxbench.models import backend

        if self._site is None or self._forward is None:
            raise UserError(
                "an attention call came from outside the transformers' blocks", "call the pipeline, not its parts"
            )
        expert, step, branch, layout = self._forward
        within = self._site.kind == "self"
        site = Site(
            expert=expert,
            layer=self._site.layer,
            n_layers=self._n_layers[expert],
            kind=self._site.kind,
            step=step,
            n_steps=1 if (steps := self._pipe.scheduler.timesteps) is None else len(steps),  # None before a run
            branch=branch,
            grid=layout.grid if within else None,
            first=layout.first if within else 0,
        )
        self._seen[site.layer, site.kind] += 1
        use = self.schedule.at(site, len(self._experts))
        tokens = q.shape[1]
        if within and layout.valid is not None:
            q, k, v = (t[:, : _one(layout.valid)] for t in (q, k, v))
            options = {**options, "attn_mask": None}  # all that it hides is cut off
        if use is None:
            out = backend.stock(q, k, v, options) if own is None else own(q, k, v)
        else:
            _refuse(options, q.shape[-1])
            self.calls[expert, site.layer, site.kind, step, branch] += 1
            sick = ~(torch.isfinite(q).all() & torch.isfinite(k).all() & torch.isfinite(v).all())
            self._nonfinite = sick.long() if self._nonfinite is None else self._nonfinite + sick
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            out = self._compute(use, q, k, v, site).transpose(1, 2)
        return torch.nn.functional.pad(out, (0, 0, 0, 0, 0, tokens - out.shape[1]))

    def _compute(self, use: Use, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, site: Site) -> torch.Tensor:
        self.site = site
        if use.spec is not None:
            return attend(q, k, v, use.spec, impl=self._impl, site=site, state=self._state, tally=self._tally)
        assert use.function is not None
        out = use.function(q, k, v)
        if not isinstance(out, torch.Tensor) or out.shape != q.shape or out.dtype != q.dtype:
            got = f"{out.dtype} {tuple(out.shape)}" if isinstance(out, torch.Tensor) else type(out).__name__
            raise UserError(f"{use.name} returned {got}", f"return a {q.dtype} tensor of shape {tuple(q.shape)}")
        return out


def _setter(target: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(target, name, value)


def _one(valid: tuple[int, ...]) -> int:
    """How many tokens are real, in every batch element."""
    if len(set(valid)) > 1:
        raise UserError(
            f"the prompts of a batch have {min(valid)} to {max(valid)} tokens, and the seam cuts padding off",
            "render one prompt at a time",
        )
    return valid[0]


def _unmasked(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A mask without values: from one with values the module would make one of every token against every other."""
    mask = kwargs.get("attention_mask")
    return args, kwargs if mask is None else {**kwargs, "attention_mask": torch.empty_like(mask, device="meta")}


def _refuse(options: dict[str, Any], d: int) -> None:
    """Raise on whatever the call asks for and a method would silently leave out."""
    scale = options["scale"]
    refused = {
        "a mask": options["attn_mask"] is not None,
        "dropout": options["dropout_p"] != 0.0,
        "causal attention": bool(options["is_causal"]),
        f"the scale {scale}": scale is not None and not math.isclose(scale, d**-0.5, rel_tol=1e-6),
        "grouped queries": bool(options["enable_gqa"]),
        "context parallelism": options["_parallel_config"] is not None,
    }
    for what, asked in refused.items():
        if asked:
            raise UserError(
                f"this attention call asks for {what}, which the seam does not handle",
                "leave the site out of the schedule",
            )
