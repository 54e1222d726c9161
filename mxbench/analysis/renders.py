"""Do two implementations draw the same pictures, and the same table? ``python -m mxbench.analysis.renders RUN OTHER``.

Both folders hold a run of one recipe on one device, by one ``--impl`` each. Two exact kernels differ by the order of
their sums: their PSNR is the noise floor. Renders of exact attention by two implementations are as close as that. Those
of a quantised method are not, whatever the implementations are, for a quantiser makes a jump of a rounding (see
``mxbench.analysis.rounding``). What two right implementations of it have in common is their distance from the FP16
render, on average over prompts: that is tested, by a paired t test with Holm's correction over the methods.

``--rounding FILE``, what ``python -m mxbench.analysis.rounding --json`` printed there, gives each prompt and method a
noise floor of its own: how far one FP32 rounding a call parts two renders by the same implementation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mxbench.errors import UserError
from mxbench.metrics import check_pair
from mxbench.metrics.fidelity import psnr
from mxbench.runs.store import Store
from mxbench.stats import holm, paired_difference
from mxbench.video import Clip

__all__ = ["MARGIN_DB", "Compared", "Pair", "compared", "floors", "main", "pairs", "table"]

MARGIN_DB = 1.0
"""How far below the noise floor a pair may be to count as within it."""
_SIGNIFICANT = 0.05

_SAME = ("model", "weights", "sampling", "environment")
_ROLES = ("method", "reference")


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt and seed of one method, rendered by both.

    Attributes:
        method: key of the row.
        impls: what computed it in each run.
        prompt: its id.
        seed: of the noise.
        psnr: between the two renders, in dB; the mean over frames, each capped at 100.
        floor: the same between FP16 and the noise floor of the first run.
        from_fp16: the same between each render and the FP16 render of its run.
        own: the method's own noise floor for this prompt, in dB; None where it was not measured.
    """

    method: str
    impls: tuple[str, str]
    prompt: str
    seed: int
    psnr: float
    floor: float
    from_fp16: tuple[float, float]
    own: float | None = None

    @property
    def same(self) -> bool:
        """Whether they differ no more than two exact kernels do."""
        return self.psnr >= self.floor - MARGIN_DB

    @property
    def own_same(self) -> bool:
        """Whether they differ no more than a rounding parts two renders of the method."""
        return self.own is not None and self.psnr >= self.own - MARGIN_DB


def pairs(one: Store, other: Store, own: Mapping[tuple[str, str], float] | None = None) -> list[Pair]:
    """Compare all renders that both runs have.

    Args:
        one: the run whose noise floor is the measure.
        other: the run of the other implementation.
        own: PSNR of a method's own noise floor by method and prompt's text (see ``floors``), of seed 0.

    Raises:
        UserError: not one run each, runs of different settings, no noise floor, or nothing that both have.
    """
    a, b = _plan(one), _plan(other)
    different = [name for name in _SAME if a[name] != b[name]]
    if different:
        raise UserError(
            f"{one.root} and {other.root} differ in {', '.join(different)}",
            "run one recipe twice on one device, with another --impl each",
        )
    floors, others = {r["role"]: r for r in a["rows"]}, {r["key"]: r for r in b["rows"]}
    if "noise_floor" not in floors:
        raise UserError(f"{one.root} has no noise floor", "run the recipe without `noise_floor: false`")
    exact, second = floors["reference"], floors["noise_floor"]
    other_exact = next(r for r in b["rows"] if r["role"] == "reference")
    floor = {
        (prompt, seed): _psnr(one, cell, one, second["cells"][prompt][seed]) for prompt, seed, cell in _cells(exact)
    }
    found, texts = [], {prompt["id"]: prompt["text"] for prompt in a["prompts"]}
    for row in a["rows"]:
        if row["role"] not in _ROLES or row["key"] not in others:
            continue
        match = others[row["key"]]
        impls = "+".join(row["impl"]), "+".join(match["impl"])
        for prompt, seed, cell in _cells(row):
            if (twin := match["cells"].get(prompt, {}).get(seed)) is None:
                continue
            if all(_done(store, each) for store, each in ((one, cell), (other, twin))):
                value, key = _psnr(one, cell, other, twin), (prompt, seed)
                far = (
                    _psnr(one, cell, one, exact["cells"][prompt][seed]),
                    _psnr(other, twin, other, other_exact["cells"][prompt][seed]),
                )
                by_rounding = (own or {}).get((row["key"], texts[prompt])) if seed == "0" else None
                found.append(Pair(row["key"], impls, prompt, int(seed), value, floor[key], far, by_rounding))
    if not found:
        raise UserError("no render is in both runs", "let both runs end, on the same prompts and methods")
    return found


def floors(files: Sequence[Path]) -> dict[tuple[str, str], float]:
    """The noise floors of methods, from what ``mxbench.analysis.rounding --json`` printed, by method and prompt.

    Raises:
        UserError: a file that cannot be read, or holds something else.
    """
    found: dict[tuple[str, str], float] = {}
    for file in files:
        try:
            found |= {
                (str(each["method"]), str(each["prompt"])): float(each["apart"])
                for each in json.loads(file.read_text("utf-8"))
            }
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{file} holds no noise floors: {error!r}", "write it by python -m mxbench.analysis.rounding --json"
            ) from None
    return found


def _plan(store: Store) -> Mapping[str, Any]:
    plans = store.plans()
    if len(plans) != 1:
        raise UserError(f"{store.root} holds {len(plans)} runs", "give a folder with one run")
    return next(iter(plans.values()))


def _cells(row: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for prompt, seeds in row["cells"].items():
        for seed, cell in seeds.items():
            yield prompt, seed, cell


def _done(store: Store, cell: str) -> bool:
    status = store.status(cell)
    return status is not None and status.state == "done"


def _clip(store: Store, cell: str) -> Clip:
    if not _done(store, cell):
        raise UserError(f"{store.root} has no FP16 or no noise floor of every prompt", "let the run end")
    return store.clip(cell)


def _psnr(one: Store, cell: str, other: Store, twin: str) -> float:
    clip, reference = _clip(one, cell), _clip(other, twin)
    check_pair(clip, reference)
    value = psnr(clip, reference).value
    assert value is not None
    return value


@dataclass(frozen=True, slots=True)
class Compared:
    """One method over its prompts.

    Attributes:
        pairs: its prompts and seeds.
        difference: of the distances from FP16 in dB, the other run's minus the first's, with its 95% interval.
        p_holm: of the paired t test, corrected over the methods; None with fewer than two prompts, or where nothing
            differs.
        above_own: PSNR between the two less the method's own noise floor, in dB, with its 95% interval; None where no
            prompt has one.
    """

    pairs: tuple[Pair, ...]
    difference: tuple[float, float | None, float | None]
    p_holm: float | None
    above_own: tuple[float, float | None, float | None] | None = None

    @property
    def differs(self) -> bool:
        """Whether the two implementations are not equally far from FP16."""
        return self.p_holm is not None and self.p_holm < _SIGNIFICANT


def compared(found: Sequence[Pair]) -> dict[str, Compared]:
    """Every method, by name."""
    names = dict.fromkeys(pair.method for pair in found)
    own = {name: tuple(pair for pair in found if pair.method == name) for name in names}
    paired = {
        name: paired_difference([pair.from_fp16[1] for pair in ps], [pair.from_fp16[0] for pair in ps])
        for name, ps in own.items()
    }
    tested = {name: each.p_value for name, each in paired.items() if each.p_value is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {
        name: Compared(
            ps, (paired[name].mean, paired[name].low, paired[name].high), corrected.get(name), _above_own(ps)
        )
        for name, ps in own.items()
    }


def _above_own(own: Sequence[Pair]) -> tuple[float, float | None, float | None] | None:
    measured = [(pair.psnr, pair.own) for pair in own if pair.own is not None]
    if not measured:
        return None
    found = paired_difference([psnr for psnr, _ in measured], [floor for _, floor in measured])
    return found.mean, found.low, found.high


def table(found: Sequence[Pair]) -> str:
    """A line a method in Markdown: PSNR between its renders, and how far each is from FP16."""
    every = compared(found)
    measured = any(each.above_own for each in every.values())
    head = ["method", "by", "N", "PSNR between, mean", "least", "noise floor", "within it"]
    head += ["own floor", "within it", "above it"] if measured else []
    head += ["from FP16", "and the other", "difference", "p (Holm)"]
    lines = [f"| {' | '.join(head)} |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    for name, each in every.items():
        own = each.pairs
        cells = [name, " and ".join(own[0].impls), str(len(own)), f"{fmean(p.psnr for p in own):.2f}"]
        cells += [f"{min(p.psnr for p in own):.2f}", f"{fmean(p.floor for p in own):.2f}"]
        cells += [f"{sum(p.same for p in own)}/{len(own)}"]
        if measured:
            floors = [p.own for p in own if p.own is not None]
            cells += [f"{fmean(floors):.2f}", f"{sum(p.own_same for p in own)}/{len(floors)}"] if floors else ["–", "–"]
            cells += [_signed(each.above_own) if each.above_own else "–"]
        cells += [f"{fmean(p.from_fp16[0] for p in own):.2f}", f"{fmean(p.from_fp16[1] for p in own):.2f}"]
        cells += [_signed(each.difference), "–" if each.p_holm is None else f"{each.p_holm:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _signed(found: tuple[float, float | None, float | None]) -> str:
    mean, low, high = found
    return f"{mean:+.2f}" + ("" if low is None or high is None else f" [{low:+.2f}, {high:+.2f}]")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a method by one is significantly nearer to FP16 than by the other.

    Raises:
        UserError: see ``pairs``.
    """
    parser = argparse.ArgumentParser("python -m mxbench.analysis.renders", description=__doc__)
    parser.add_argument("run", type=Path, help="results folder; its noise floor is the measure")
    parser.add_argument("other", type=Path, help="results folder of the other implementation")
    parser.add_argument("--rounding", type=Path, action="append", default=[], metavar="FILE", help="may be repeated")
    parser.add_argument("--json", action="store_true", help="every pair, for programs")
    got = parser.parse_args(arguments)
    found = pairs(Store(got.run), Store(got.other), floors(got.rounding))
    data = [asdict(pair) | {"same": pair.same, "own_same": pair.own_same} for pair in found]
    print(json.dumps(data, indent=1) if got.json else table(found))  # noqa: T201 - the command's result
    return int(any(each.differs for each in compared(found).values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
