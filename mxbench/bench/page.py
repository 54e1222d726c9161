"""A run as a page of the report's kind: one grid a shape."""

from __future__ import annotations

from dataclasses import replace

from mxbench.bench import targets
from mxbench.bench.rows import Result, Row, ShapeResult
from mxbench.bench.timing import Spread
from mxbench.report.layout import Footnotes, Grid, Head, Page, Text
from mxbench.report.words import DASH, brackets, number

__all__ = ["bench_page"]

_NOTES = (
    "Medians over rounds in which all rows take turns; brackets are the 5% and 95% quantiles. Pre-pass: statistics, "
    "transforms and quantisation. Call: all of it, as a user calls it.",
    "TFLOP/s: 4·B·H·Nq·Nk·D over the kernel's time, or the call's where the kernel's is not known. Of a copy: operands "
    "read once and results written once, as a share of a copy's bandwidth.",
    "Error: relative L2 to the method's reference, or to exact attention in float64 (fp16 and peers), beyond what "
    "rounding the output explains; no time is given above the allowed one. Own: the method's own error.",
)
_EMULATED = (
    "FP4 emulated: 4-bit values are held in a wider type. Such a time is the emulation's own, and says nothing of the "
    "speed of FP4 hardware."
)


def bench_page(result: Result) -> Page:
    """The words of a run. What holds for all shapes is said under the last."""
    settings = result.settings
    said = {"date": "Date", "command": "Command", "device": "Device", "driver": "Driver"}
    header = (
        *((said.get(name, name), value) for name, value in result.provenance.items()),
        ("Operands", f"{settings['dtype']}, {settings['operands']}, seed {settings['seed']}"),
        ("Rounds", f"{settings['reps']}, after {settings['warmup']} that did not count"),
    )
    grids = [_grid(shape) for shape in result.shapes]
    if grids:
        grids[-1] = replace(grids[-1], notes=(*grids[-1].notes, *_general(result)))
    return Page("Attention kernels", header, tuple(grids))


def _grid(found: ShapeResult) -> Grid:
    rows = [row for row in found.rows if row.status != "absent"]
    footnotes = Footnotes()
    fp4 = any(row.fp4 for row in rows)
    floors = any(row.floor is not None for row in rows)
    base = found.base[1] if found.base else ""
    cudnn = any(row.ratio_cudnn is not None for row in rows)
    heads = [Head("method", align="left"), Head("by", align="left"), *([Head("FP4", align="left")] if fp4 else [])]
    stub = len(heads)
    heads += [Head(name, "milliseconds") for name in ("pre-pass", "kernel", "call")]
    heads.append(Head("TFLOP/s"))
    heads += [Head("kernel", f"× {base}"), Head("call", f"× {base}")] if base else []
    heads += [Head("floor", f"× {base}")] if floors else []
    heads += [Head("kernel", "× cuDNN")] if cudnn else []
    heads += [Head("of call", "pre-pass"), Head("of a copy", "pre-pass")]
    heads += [Head("error", "check"), Head("allowed", "check"), Head("own", "check")]
    cells = []
    for row in rows:
        line = [Text(row.method or row.label), Text(row.impl if row.method else row.version or DASH)]
        line += [Text(("" if row.status == "unsupported" else row.fp4) or DASH)] if fp4 else []
        line += [_spread(row.prepass), _spread(row.kernel), _call(row, footnotes)]
        line.append(Text(_significant(row.tflops)))
        line += [_spread(row.ratio_kernel, 2), _spread(row.ratio_call, 2)] if base else []
        line += [Text(f"{row.floor:.2f}" if row.floor is not None else DASH)] if floors else []
        line += [_spread(row.ratio_cudnn, 2)] if cudnn else []
        line += [Text(_percent(row.prepass_share)), Text(_percent(row.prepass_of_copy))]
        line += [Text(_error(row.error)), Text(_error(row.allowed)), Text(_error(row.own_error))]
        cells.append(tuple(line))
    title = ", ".join(word for word in (found.title, found.shape.title) if word)
    return Grid(title, tuple(heads), tuple(cells), stub, tuple(footnotes.texts), tuple(_particular(found)))


def _call(row: Row, footnotes: Footnotes) -> Text:
    """The time of a call, or in its place why there is none."""
    if row.status == "measured":
        return _spread(row.call)
    return Text("RED" if row.status == "red" else row.status, marks=(footnotes.mark(row.reason),))


def _spread(spread: Spread | None, digits: int | None = None) -> Text:
    if spread is None:
        return Text(DASH)
    places = _places(spread.median) if digits is None else digits
    return Text(number(spread.median, places), brackets(spread.low, spread.high, places))


def _places(value: float) -> int:
    """Decimals that leave four significant digits, three at most."""
    return max(0, min(3, 4 - len(str(int(value)))))


def _significant(value: float | None) -> str:
    if value is None:
        return DASH
    return number(value, 0 if value >= 100 else 1 if value >= 10 else 3) if value >= 0.01 else f"{value:.1e}"


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.1f}%"


def _error(value: float | None) -> str:
    return DASH if value is None else f"{value:.1e}"


def _particular(found: ShapeResult) -> list[str]:
    """What is to be said of one shape."""
    notes = []
    if found.compared is not None and not found.compared.whole:
        notes.append(f"Compared: {found.compared.rows} query rows of {found.compared.heads} heads, over all keys.")
    grouping = next((row.grouping for row in found.rows if row.grouping is not None), None)
    if grouping is not None:
        notes.append(
            f"V-Smooth: the calls keep a grouping; making one takes {_significant(grouping.median)} ms, which a render "
            "does at few of its steps."
        )
    if found.copy_gb_s is not None:
        notes.append(f"A copy moves {found.copy_gb_s.median:,.0f} GB/s here, read and written.")
    if any(row.against == "reference" and row.impl == "reference" for row in found.rows):
        notes.append("The reference is what methods are compared with: its own error is 0 by definition.")
    faster = [
        f"{row.method}, {row.impl}"
        for row in found.rows
        if row.call is not None and row.kernel is not None and row.prepass is not None
        if row.call.median < row.kernel.median
    ]
    if faster:
        notes.append(
            "The call came out faster than the kernel in it, which a moving clock does: " + "; ".join(faster) + "."
        )
    if any(row.floor is not None for row in found.rows):
        share, copy = targets.PREPASS_FLOORS
        notes.append(
            "Floor: the kernel's ratio under which the work on it is not done. Of pre-passes it is "
            f"{100 * share:.0f}% of the call and {100 * copy:.0f}% of a copy's bandwidth."
        )
        short = [
            f"{row.method}, {row.impl}"
            for row in found.rows
            if row.floor is not None and row.ratio_kernel is not None and row.ratio_kernel.median < row.floor
        ]
        if short:
            notes.append(f"Below the floor of their kernels: {'; '.join(short)}.")
    return notes


def _general(result: Result) -> list[str]:
    """How to read all of it, and who is not in it."""
    rows = [row for shape in result.shapes for row in shape.rows]
    notes = [_EMULATED] if any(row.fp4 == "emulated" for row in rows) else []
    notes += _NOTES
    for row in rows:
        said = f"{row.label}: {row.includes}."
        if (
            not row.method
            and row.status != "absent"
            and not row.includes.startswith("an exact kernel")
            and said not in notes
        ):
            notes.append(said)
    absent = dict.fromkeys(f"{row.label} ({row.reason})" for row in rows if row.status == "absent")
    return [*notes, *(["Not here: " + "; ".join(absent) + "."] if absent else [])]
