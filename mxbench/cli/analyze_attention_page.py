"""What ``mxbench analyze attention`` prints, as a page of the report's kind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mxbench.analysis.sites import PUBLISHED, SOURCE, Level, SiteStatistics, aggregate
from mxbench.report.layout import Grid, Head, Page, Text
from mxbench.report.words import DASH, number
from mxbench.runs.plan import Plan

__all__ = ["attention_page"]


@dataclass(frozen=True, slots=True)
class _Column:
    """How a statistic is printed: its column, and the group over it."""

    name: str
    group: str
    label: str
    digits: int
    form: Literal["plain", "percent", "signed"] = "plain"

    def word(self, value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return DASH
        if self.form == "percent":
            return f"{number(100 * value, self.digits)}%"
        return number(value, self.digits, signed=self.form == "signed")


_COLUMNS = (
    _Column("q_kurtosis", "kurtosis", "Q", 2),
    _Column("k_kurtosis", "kurtosis", "K", 2),
    _Column("v_kurtosis", "kurtosis", "V", 2),
    _Column("q_channels", "channel outliers", "Q", 2),
    _Column("k_channels", "channel outliers", "K", 2),
    _Column("v_channels", "channel outliers", "V", 2),
    _Column("v_tokens", "token outliers", "V", 2),
    _Column("entropy", "entropy of P", "nats", 2),
    _Column("entropy_above_5", "entropy of P", "above 5", 1, "percent"),
    _Column("row_sum", "row sums of P in MXFP4", "mean", 4),
    _Column("row_sum_below_1", "row sums of P in MXFP4", "below 1", 1, "percent"),
    _Column("zeroing", "row sums of P in MXFP4", "zeroed", 4, "signed"),
    _Column("saturation", "row sums of P in MXFP4", "saturated", 4, "signed"),
    _Column("rounded_down", "row sums of P in MXFP4", "down", 4, "signed"),
    _Column("rounded_up", "row sums of P in MXFP4", "up", 4, "signed"),
    _Column("v_energy_sequence", "V in block means", "sequence", 1, "percent"),
    _Column("v_energy_grouped", "V in block means", "grouped", 1, "percent"),
)

_NOTES = (
    "Kurtosis: Pearson's, of the elements; 3 for a Gaussian.",
    "Channel outliers: the largest RMS of a channel over tokens, divided by the median over channels. Token outliers: "
    "the largest magnitude in a token, its maximum over tokens divided by the median.",
    "Row sums: the normalised P quantised in MXFP4 (OCP rule, blocks of 32 keys), a diagnostic; 1 plus the four parts "
    "(zeroed, saturated, rounded down, rounded up) is the mean.",
    "V in block means: share of the sum of squares of V in the means of blocks of 128 tokens, in sequence order and "
    "after the grouping of vc8, made afresh in every call.",
)

_TITLES: dict[str, str] = {
    "site": "By expert, layer and step",
    "layer": "By expert and layer, means over steps",
    "step": "By step, means over layers",
}


def attention_page(plan: Plan, sites: list[SiteStatistics], levels: tuple[Level, ...]) -> Page:
    """A table for each level, then the overall means beside the papers' figures.

    Args:
        plan: what was rendered.
        sites: the statistics, at least of one site.
        levels: ``site``, ``layer`` or ``step``.
    """
    overall, sampling = aggregate(sites, "all")[0], plan.sampling
    count = len(plan.prompts)
    header = (
        ("Model", plan.recipe.model),
        ("Weights", plan.facts.weights),
        *plan.environment.items(),
        (
            "Renders",
            f"{count} {'prompt' if count == 1 else 'prompts'}, seed {plan.seeds[0]}, {sampling.steps} steps, "
            f"{sampling.frames} frames of {sampling.width}×{sampling.height}, exact attention",
        ),
        ("Calls", f"{overall.calls} of {overall.tokens} tokens; P of {overall.rows} rows a head"),
    )
    grids = [_grid(aggregate(sites, level), _TITLES[level]) for level in levels]
    return Page(f"Attention of {plan.recipe.model}", header, (*grids, _overall(overall, plan.recipe.model)))


def _grid(found: list[SiteStatistics], title: str) -> Grid:
    stub = [name for name in ("expert", "layer", "step") if getattr(found[0], name) is not None]
    heads = [*(Head(name) for name in stub), *(Head(c.label, c.group) for c in _COLUMNS)]
    rows = []
    for each in found:
        cells = [str(getattr(each, name)) for name in stub]
        cells += [column.word(getattr(each.mean, column.name)) for column in _COLUMNS]
        rows.append(tuple(Text(cell) for cell in cells))
    return Grid(title, tuple(heads), tuple(rows), len(stub))


def _overall(found: SiteStatistics, model: str) -> Grid:
    heads = (Head("mean", align="left"), *(Head(c.label, c.group) for c in _COLUMNS))
    ours = [column.word(getattr(found.mean, column.name)) for column in _COLUMNS]
    papers = [column.word(PUBLISHED.get(column.name)) for column in _COLUMNS]
    rows = tuple(tuple(Text(cell) for cell in cells) for cells in ((model, *ours), ("the papers'", *papers)))
    return Grid("Overall, beside the papers", heads, rows, 1, notes=(*_NOTES, SOURCE))
