"""Do two implementations draw the same pictures? ``python -m mxbench.analysis.renders RUN OTHER``.

Both folders hold a run of one recipe on one device, by one ``--impl`` each. Two exact kernels already differ by the
order of their sums, which denoising steps make larger: that is the noise floor, the PSNR between FP16 by one kernel and
FP16 by another. A method's renders by two implementations are held to the same, prompt by prompt.
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
from mxbench.video import Clip

__all__ = ["MARGIN_DB", "Pair", "main", "pairs", "table"]

MARGIN_DB = 1.0
"""How far below the noise floor a pair may be."""

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
    """

    method: str
    impls: tuple[str, str]
    prompt: str
    seed: int
    psnr: float
    floor: float

    @property
    def same(self) -> bool:
        """Whether they differ no more than two exact kernels do."""
        return self.psnr >= self.floor - MARGIN_DB


def pairs(one: Store, other: Store) -> list[Pair]:
    """Compare all renders that both runs have.

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
    floor = {
        (prompt, seed): _psnr(one, cell, one, second["cells"][prompt][seed]) for prompt, seed, cell in _cells(exact)
    }
    found = []
    for row in a["rows"]:
        if row["role"] not in _ROLES or row["key"] not in others:
            continue
        match = others[row["key"]]
        impls = "+".join(row["impl"]), "+".join(match["impl"])
        for prompt, seed, cell in _cells(row):
            if (twin := match["cells"].get(prompt, {}).get(seed)) is None:
                continue
            if all(_done(store, each) for store, each in ((one, cell), (other, twin))):
                value = _psnr(one, cell, other, twin)
                found.append(Pair(row["key"], impls, prompt, int(seed), value, floor[prompt, seed]))
    if not found:
        raise UserError("no render is in both runs", "let both runs end, on the same prompts and methods")
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


def table(found: Sequence[Pair]) -> str:
    """A line a method in Markdown: PSNR between its renders, beside the noise floor of the same prompts."""
    lines = [
        "| Method | by | N | PSNR, mean | least | noise floor, mean | least of PSNR minus floor | within 1 dB |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for method in dict.fromkeys(pair.method for pair in found):
        own = [pair for pair in found if pair.method == method]
        gap = min(pair.psnr - pair.floor for pair in own)
        lines.append(
            f"| {method} | {' and '.join(own[0].impls)} | {len(own)} | {fmean(p.psnr for p in own):.2f} "
            f"| {min(p.psnr for p in own):.2f} | {fmean(p.floor for p in own):.2f} | {gap:+.2f} "
            f"| {sum(p.same for p in own)}/{len(own)} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a pair differs by more than two exact kernels do.

    Raises:
        UserError: see ``pairs``.
    """
    parser = argparse.ArgumentParser("python -m mxbench.analysis.renders", description=__doc__)
    parser.add_argument("run", type=Path, help="results folder; its noise floor is the measure")
    parser.add_argument("other", type=Path, help="results folder of the other implementation")
    parser.add_argument("--json", action="store_true", help="every pair, for programs")
    got = parser.parse_args(arguments)
    found = pairs(Store(got.run), Store(got.other))
    data = [asdict(pair) | {"same": pair.same} for pair in found]
    print(json.dumps(data, indent=1) if got.json else table(found))  # noqa: T201 - the command's result
    return 0 if all(pair.same for pair in found) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
