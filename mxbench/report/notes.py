"""The sentences beneath a table: how to read it, and only what concerns this one."""

from __future__ import annotations

from mxbench.report.comparisons import Comparisons
from mxbench.report.tables import Table
from mxbench.report.words import method_word, name_of

__all__ = ["notes_of"]


def notes_of(table: Table, block: Comparisons | None = None) -> tuple[str, ...]:
    """How to read a table, or one block of its paired differences."""
    if block is not None:
        return (*_differences(table, block), *_claims(block))
    return (*_means(table), *_rows(table), *_frames(table), *table.data.notes)


def _means(table: Table) -> list[str]:
    scores = [score for scored in table.rows for score in scored.scores if score.interval]
    intervals = [score.interval for score in scores if score.interval]
    seeds = "" if table.n_seeds < 2 else f" The {table.n_seeds} seeds of a prompt are averaged first."
    notes = [f"A number is the mean over N prompts, and n= says where N differs.{seeds}"]
    how = method_word(intervals)
    if how:
        notes.append(f"Brackets hold the 95% interval of that mean ({how}).")
    if any(interval.n == 1 for interval in intervals):
        notes.append("One prompt has no interval, and no test.")
    methods = [scored for scored in table.rows if scored.row.role == "method"]
    if any(score.best for scored in methods for score in scored.scores):
        notes.append(
            "Bold: no other method of the column is significantly better. Ties share it, and where no difference is"
            " significant nothing is bold (paired t test over prompts, Holm's correction over all pairs of methods in"
            " the column, 0.05). A method that misses videos which another has is never bold, nor are the reference"
            " and the noise floor."
        )
    elif len(methods) > 1:
        notes.append(
            "Nothing is bold: no column tells a complete method from another (paired t test over prompts, Holm's"
            " correction over all pairs of methods in the column, 0.05)."
        )
    return notes


def _rows(table: Table) -> list[str]:
    notes = []
    if any(scored.row.bits for scored in table.rows):
        part = any(" in " in (scored.row.bits or "") for scored in table.rows)
        more = "; in what share of the attention calls, where others are computed otherwise" if part else ""
        notes.append(f"Bits: bits per element of the operands, scales included{more}.")
    if any(scored.row.role == "noise_floor" for scored in table.rows):
        notes.append(
            "Noise floor: the FP16 arithmetic by another exact kernel. A method that is as close to the reference as"
            " that row cannot be told from FP16."
        )
    if any(scored.row.unverified for scored in table.rows):
        notes.append("Unverified: a callable of the user's own, which no check of ours covers.")
    return notes


def _frames(table: Table) -> list[str]:
    """How many frames were identical to the reference: each counts as 100 dB in a mean PSNR."""
    notes = []
    for position, column in enumerate(table.columns):
        counts = [(scored.row, scored.scores[position].identical_frames) for scored in table.rows]
        found = [f"{name_of(row)} {count}" for row, count in counts if count]
        if found and column.unit == "dB":
            notes.append(
                f"{column.label} counts a frame identical to the reference as 100 dB. Identical frames:"
                f" {', '.join(found)}."
            )
    return notes


def _differences(table: Table, block: Comparisons) -> list[str]:
    notes = []
    if table.missing_baseline is not None and block.kind == "baseline":
        notes.append(
            f"The baseline {table.missing_baseline} is not in this table: {name_of(block.against)}, the first method,"
            " stands in for it."
        )
    notes.append(
        f"Difference: method minus {name_of(block.against)} with its 95% interval, over the N prompts that both have."
    )
    if block is table.comparisons[0]:
        notes.append(
            "p (Holm): paired t test, corrected over the methods of a metric. p (sign): sign test, ties dropped."
            " W/T/L: prompts on which the method is better, equal, worse. SD: of the difference over prompts."
            " Detectable: the smallest true difference that N prompts show with 80% power at 0.05."
        )
    return notes


def _claims(block: Comparisons) -> list[str]:
    notes = []
    margins = sorted({item.noninferior.margin for item in block.rows if item.noninferior})
    for margin in margins:
        notes.append(
            f"Within {margin:g}: one-sided test that the method is not worse than {name_of(block.against)} by"
            f" {margin:g} or more, corrected over the methods of a metric. Two means that lie closer show nothing."
        )
    if block.baseline is not None:
        reasons: dict[str, dict[str, None]] = {}
        for item in block.rows:
            if item.recovery and item.recovery.reason:
                reasons.setdefault(item.recovery.reason, {})[item.column.label] = None
        listed = "; ".join(f"{', '.join(labels)} ({reason})" for reason, labels in reasons.items())
        without = f" No interval: {listed}." if listed else ""
        notes.append(
            f"Gap closed: (method − {name_of(block.baseline)}) / ({name_of(block.against)} −"
            f" {name_of(block.baseline)}), both resampled together over prompts.{without}"
        )
    return notes
