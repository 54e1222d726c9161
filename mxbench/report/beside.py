"""Measured beside published: which of the papers' numbers a table has measured too, and how far they are apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mxbench.errors import UserError
from mxbench.report.data import Column, MethodRow, TableData
from mxbench.report.layout import Footnotes, Grid, Head, Text
from mxbench.report.published import MODELS, Published, same_model
from mxbench.report.tables import Table
from mxbench.report.words import arrow, brackets, name_of, number
from mxbench.stats import Interval

__all__ = ["Beside", "beside_grid", "compare_published", "setting_differences"]

# Our key of a method, and what the papers' tables call the same computation. OCP MXFP4 and Full are rows of Table 3.
_METHODS: dict[str, tuple[str, ...]] = {
    "fp16": ("FP16",),
    "mxfp4": ("MXFP4 (OCP)", "OCP MXFP4"),
    "nvfp4": ("NVFP4",),
    "nvfp4-sage": ("NVFP4 + SageAttention",),
    "mxattn": ("MXAttention", "Full"),
    "vc8": ("VC-Attention", "VC-Attention (8-bit)"),
    "vc4": ("VC-Attention (4-bit)",),
}

# Check marks (Hadamard, PNQ, UOS) of the rows of MXAttention's Table 3.
_ABLATION: dict[tuple[bool, bool, bool], tuple[str, ...]] = {
    (True, True, True): ("Full",),
    (True, True, False): ("w/o UOS",),
    (True, False, False): ("w/o PNQ and UOS",),
    (False, False, False): ("OCP MXFP4",),
}


@dataclass(frozen=True, slots=True)
class Beside:
    """A published value and what this table measured.

    Attributes:
        published: the paper's value, taken as exact.
        column: the metric.
        row: the row that computes the same.
        measured: our mean with its interval.
        difference: measured minus published.
        low: lower end of its interval: the measured one, shifted; None for one prompt.
        high: upper end, likewise.
        differs: settings that differ, such as ``"steps 40 published, 8 measured"``.
        unknown: settings that this table does not record.
    """

    published: Published
    column: Column
    row: MethodRow
    measured: Interval
    difference: float
    low: float | None
    high: float | None
    differs: tuple[str, ...]
    unknown: tuple[str, ...]


def compare_published(table: Table, published: Sequence[Published], as_model: str | None = None) -> tuple[Beside, ...]:
    """What this table measured of what the papers report, matched by model, method and metric.

    Args:
        table: the measured numbers.
        published: the papers' values.
        as_model: a paper's model name to compare with although the table's model is another one.

    Returns:
        Matches, column by column, in the order of the table's rows; a value printed twice is there once.

    Raises:
        UserError: nothing is published for this model, or nothing that this table has measured.
    """
    models = dict.fromkeys(entry.model for entry in published)
    wanted = as_model if as_model is not None else table.data.model
    entries = [entry for entry in published if same_model(entry.model, wanted)]
    if not entries:
        known = ", ".join(model for model in models if model in MODELS)
        raise UserError(
            f"the papers have no figures of {wanted}",
            f"leave --published out, or pass one of the models that they have, such as --published Wan2.2: {known}",
        )
    found = []
    for position, column in enumerate(table.columns):
        for scored in table.rows:
            measured = scored.scores[position].interval
            if measured is None or scored.row.role == "noise_floor":
                continue
            seen = set()
            for entry in entries:
                key = _identity(entry)
                if entry.metric == column.name and entry.method in _names(scored.row, table.data) and key not in seen:
                    seen.add(key)
                    found.append(_beside(entry, column, scored.row, measured, table.data))
    if not found:
        raise UserError(
            f"no value published for {wanted} was measured here",
            f"the papers have {', '.join(sorted({entry.metric for entry in entries}))}"
            f" of {', '.join(sorted({entry.method for entry in entries}))}",
        )
    return tuple(found)


def setting_differences(setting: Mapping[str, str], data: TableData) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compares a published setting with what a table records.

    Returns:
        What differs, in words, and the names of settings that the table does not record.
    """
    ours = _recorded(data)
    differs, unknown = [], []
    for name, value in setting.items():
        measured = ours.get(name.casefold())
        if measured is None:
            unknown.append(name)
        elif not _same(name, value, measured):
            differs.append(f"{name} {value} published, {measured} measured")
    if "random" in data.weights.casefold():
        differs.append(f"weights trained published, {data.weights} measured")
    return tuple(differs), tuple(unknown)


def _recorded(data: TableData) -> dict[str, str]:
    """The settings of a table by the papers' names for them."""
    ours = {name.casefold(): value for name, value in data.environment.items()} | {"reference": data.reference}
    size = ours.get("size")
    clip = re.match(r"(\d+) frames of (\d+ ?[×x] ?\d+)", ours.get("clip", ""))
    if clip:
        frames, size = clip.groups()
        ours.setdefault("frames", frames)
    if size:
        ours.setdefault("resolution", size)
    return ours


def _same(name: str, published: str, measured: str) -> bool:
    a, b = published.casefold(), measured.casefold()
    if name in ("reference", "device"):
        return a in b  # "NVIDIA B200" is a B200
    if name == "resolution" and a.endswith("p"):
        return b == a or min(re.findall(r"\d+", b) or ["0"], key=int) == a.removesuffix("p")
    return a == b


def _names(row: MethodRow, data: TableData) -> tuple[str, ...]:
    if data.kind == "ablation":
        marks = tuple(row.flags.get(name) for name in ("Hadamard", "PNQ", "UOS"))
        return next((names for flags, names in _ABLATION.items() if flags == marks), ())
    return _METHODS.get(row.key, (row.label,))


def _beside(entry: Published, column: Column, row: MethodRow, measured: Interval, data: TableData) -> Beside:
    differs, unknown = setting_differences(entry.setting, data)
    return Beside(
        published=entry,
        column=column,
        row=row,
        measured=measured,
        difference=measured.mean - entry.value,
        low=None if measured.low is None else measured.low - entry.value,
        high=None if measured.high is None else measured.high - entry.value,
        differs=differs,
        unknown=unknown,
    )


def beside_grid(table: Table, published: Sequence[Published], as_model: str | None = None) -> Grid:
    """The words of `compare_published`, to be passed to `layout.page`.

    Raises:
        UserError: as `compare_published`.
    """
    found = compare_published(table, published, as_model)
    footnotes = Footnotes()
    labels = ("Measured", "Published", "Difference", "N")
    heads = (Head("Metric", align="left"), Head("Method", align="left"), Head("Source", align="left"))
    rows = []
    for position, item in enumerate(found):
        digits = item.column.digits
        new = position == 0 or found[position - 1].column != item.column
        warning = _warning(item)
        entry = item.published
        source = f"{entry.paper}, table {entry.table}" if entry.table else f"{entry.paper}, text"
        rows.append(
            (
                Text(f"{item.column.label} {arrow(item.column)}".strip() if new else ""),
                Text(name_of(item.row)),
                Text(source),
                Text(number(item.measured.mean, digits), brackets(item.measured.low, item.measured.high, digits)),
                Text(entry.printed, marks=(footnotes.mark(warning),) if warning else ()),
                Text(number(item.difference, digits, signed=True), brackets(item.low, item.high, digits, signed=True)),
                Text(str(item.measured.n)),
            )
        )
    models = " and ".join(dict.fromkeys(item.published.model for item in found))
    return Grid(
        f"Measured beside published ({models})",
        (*heads, *(Head(label) for label in labels)),
        tuple(rows),
        stub=2,
        footnotes=tuple(footnotes.texts),
        notes=_notes(table, published, found, as_model),
    )


def _warning(item: Beside) -> str:
    parts = []
    if item.differs:
        parts.append(f"settings differ: {'; '.join(item.differs)}")
    if item.unknown:
        parts.append(f"not recorded here, so not compared: {', '.join(item.unknown)}")
    return "; ".join(parts)


def _notes(
    table: Table, published: Sequence[Published], found: Sequence[Beside], as_model: str | None
) -> tuple[str, ...]:
    wanted = as_model if as_model is not None else table.data.model
    printed = {_identity(item.published) for item in found}
    ours = [entry for entry in published if same_model(entry.model, wanted)]
    rest = sum(_identity(entry) not in printed for entry in ours)
    notes = [
        "Difference: measured minus published with the 95% interval of the measured mean. The published value is taken"
        " as exact, because the papers print no interval.",
    ]
    if as_model is not None and not same_model(as_model, table.data.model):
        notes.append(f"The models differ: {table.data.model} was measured, {as_model} is published.")
    if any(item.differs for item in found):
        notes.append("Where settings differ, a difference says nothing about the implementation.")
    if rest:
        notes.append(f"{rest} further published values of {ours[0].model} have no counterpart in this table.")
    return tuple(notes)


def _identity(entry: Published) -> tuple[str, str, float]:
    """What makes two lines one value: HunyuanVideo's rows stand in Table 2 and again, by other names, in Table 3."""
    return entry.paper, entry.metric, entry.value
