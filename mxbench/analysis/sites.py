"""What a model's attention looks like: statistics of Q, K, V and P at every site of a render with exact attention.

A recorder is handed to the seam as the method; it looks at the operands and returns exact attention, so the render is
the FP16 row's. With a pipeline of your own::

    recorder = Recorder()
    with recorder.watching(pipe):
        pipe(prompt)
    for each in aggregate(recorder.sites(), "layer"):
        print(each.layer, each.mean.row_sum)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, Literal, get_args

import torch

from mxbench.analysis.sites_measures import Measures, measure
from mxbench.attention.site import Site
from mxbench.dispatch import attend
from mxbench.errors import UserError, unknown_name
from mxbench.models.attach import attach
from mxbench.models.base import Sampling, VideoModel
from mxbench.models.render import PipelineModel

__all__ = ["PUBLISHED", "ROWS", "SOURCE", "Level", "Recorder", "SiteStatistics", "aggregate", "study"]

ROWS = 256
"""Query rows a head that enter the statistics of P unless told otherwise."""

Level = Literal["site", "layer", "step", "all"]

PUBLISHED: Mapping[str, float] = {
    "entropy_above_5": 0.75,
    "row_sum": 0.9266,
    "zeroing": -0.0541,
    "saturation": -0.0190,
    "rounded_down": -0.0486,
    "rounded_up": 0.0483,
    "v_energy_sequence": 0.08,
    "v_energy_grouped": 0.36,
}
"""What the papers print, by the names of ``Measures``; see ``SOURCE``."""

SOURCE = (
    "The papers' row: MXAttention, section 5.5.2, averages over 80 tensors of direct MXFP4 (it names neither model nor "
    "scale rule there; its tables are of Wan2.2 and HunyuanVideo), and the share of rows above 5 in one representative "
    "tensor (no unit is given; nats are our reading). VC-Attention, section 3: 8% in sequence order and 36% after "
    "sorting, over 59.1K blocks of 100 heads: 591 blocks a head are the 75,600 tokens of Wan2.2 at 720p."
)


@dataclass(frozen=True, slots=True)
class SiteStatistics:
    """Statistics of one (expert, layer, step), or of several together.

    Attributes:
        expert: index of the transformer; None for all. Likewise ``layer`` and ``step``.
        layer: index of the DiT block.
        step: index of the denoising step.
        calls: attention calls averaged over: guidance branches, prompts, and the sites put together.
        tokens: keys of a call.
        rows: query rows of each head that entered the statistics of P; evenly spaced where there were more.
        mean: over calls and heads.
    """

    expert: int | None
    layer: int | None
    step: int | None
    calls: int
    tokens: int
    rows: int
    mean: Measures

    def to_dict(self) -> dict[str, Any]:
        """Plain data for programs; None for a statistic that is undefined."""
        return {
            "expert": self.expert,
            "layer": self.layer,
            "step": self.step,
            "calls": self.calls,
            "tokens": self.tokens,
            "rows": self.rows,
            **{name: value if math.isfinite(value) else None for name, value in _values(self.mean).items()},
        }


def _values(mean: Measures) -> dict[str, float]:
    return dict(zip(Measures.names(), astuple(mean), strict=True))


class Recorder:
    """Looks at every self-attention call of pipelines and computes it exactly.

    Args:
        rows: at most so many query rows a head enter the statistics of P, which bounds the time on long sequences.
    """

    def __init__(self, rows: int = ROWS) -> None:
        if rows < 1:
            raise UserError(f"{rows} rows are no sample", "look at 1 row or more")
        self._rows = rows
        self._seam: attach | None = None
        self._found: list[SiteStatistics] = []

    @contextmanager
    def watching(self, pipe: Any) -> Iterator[attach]:
        """Record the calls of a diffusers pipeline of a known family, for the length of a ``with`` block.

        Raises:
            UserError: whatever ``attach`` refuses; an operand with a NaN or an infinity.
        """
        with attach(pipe, self._attention) as self._seam:
            yield self._seam

    def _attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert self._seam is not None and self._seam.site is not None
        site = self._seam.site
        if not all(bool(torch.isfinite(x).all()) for x in (q, k, v)):
            raise UserError(
                f"Q, K or V of {_where(site)} holds a NaN or an infinity, and so has no statistics",
                "render the model in a wider dtype, or mend its weights",
            )
        mean, rows = measure(q, k, v, site, self._rows), min(self._rows, q.shape[-2])
        self._found.append(SiteStatistics(site.expert, site.layer, site.step, 1, k.shape[-2], rows, mean))
        return attend(q, k, v, "fp16")

    def sites(self) -> list[SiteStatistics]:
        """What was recorded, one an (expert, layer, step), in that order."""
        return aggregate(self._found, "site")


def _where(site: Site) -> str:
    return f"expert {site.expert}, layer {site.layer}, step {site.step}"


def aggregate(found: Iterable[SiteStatistics], level: Level) -> list[SiteStatistics]:
    """Put statistics together; every call counts once.

    Args:
        found: statistics of sites.
        level: ``site`` (expert, layer, step), ``layer`` (expert and layer, over steps), ``step`` (expert and step, over
            layers) or ``all``.

    Returns:
        One entry a group, ordered by expert, layer and step; ``tokens`` and ``rows`` are the smallest of the group.

    Raises:
        UserError: no such level.
    """
    if level not in get_args(Level):
        raise unknown_name("level", level, get_args(Level))
    groups: dict[tuple[int | None, int | None, int | None], list[SiteStatistics]] = {}
    for each in found:
        key = (
            each.expert if level != "all" else None,
            each.layer if level in ("site", "layer") else None,
            each.step if level in ("site", "step") else None,
        )
        groups.setdefault(key, []).append(each)
    ordered = sorted(groups.items(), key=lambda item: tuple(-1 if i is None else i for i in item[0]))
    return [_together(*key, members) for key, members in ordered]


def _together(
    expert: int | None, layer: int | None, step: int | None, members: Sequence[SiteStatistics]
) -> SiteStatistics:
    calls = sum(each.calls for each in members)
    columns = zip(*(astuple(each.mean) for each in members), strict=True)
    means = [
        math.fsum(value * each.calls for value, each in zip(column, members, strict=True)) / calls for column in columns
    ]
    tokens, rows = min(each.tokens for each in members), min(each.rows for each in members)
    return SiteStatistics(expert, layer, step, calls, tokens, rows, Measures(*means))


def study(
    model: VideoModel,
    prompts: Iterable[str],
    *,
    seed: int,
    sampling: Sampling,
    rows: int = ROWS,
    on_step: Callable[[], None] | None = None,
) -> list[SiteStatistics]:
    """Render prompts with exact attention and record every site. The VAE is not run: nothing here is about pixels.

    Args:
        model: a loaded model.
        prompts: what to render.
        seed: of the noise, the same for every prompt.
        sampling: of each render.
        rows: see ``Recorder``.
        on_step: called after each denoising step.

    Raises:
        UserError: a model that is no diffusers pipeline; whatever ``Recorder.watching`` refuses.
    """
    if not isinstance(model, PipelineModel):
        raise UserError(
            f"{type(model).__name__} is no diffusers pipeline, and only these can be watched",
            "choose a model of `mxbench list models` that is one",
        )

    def after_step(_pipe: Any, _step: int, _timestep: Any, state: dict[str, Any]) -> dict[str, Any]:
        if on_step is not None:
            on_step()
        return state

    recorder = Recorder(rows)
    for prompt in prompts:
        with recorder.watching(model.pipe):
            model.pipe(
                prompt,
                **model.arguments(sampling),
                generator=torch.Generator("cpu").manual_seed(seed),
                output_type="latent",
                callback_on_step_end=after_step,
            )
    return recorder.sites()
