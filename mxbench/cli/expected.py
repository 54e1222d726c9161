"""What a run takes, before a cell of it has run: work, memory and disk, beside what the machine has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from mxbench.models.memory import gib
from mxbench.runs.plan import Plan

__all__ = ["expected"]


def expected(plan: Plan, cells: int, out: Path) -> str | None:
    """One sentence; None for a model that does not know its work.

    Args:
        plan: what will run.
        cells: how many are left to render.
        out: the results folder, which need not be there.
    """
    facts, sampling = plan.facts, plan.sampling
    if facts.work is None or facts.need is None:
        return None
    work, need = facts.work(sampling), facts.need(sampling)
    disk = cells * 3 * sampling.frames * sampling.height * sampling.width // 4
    share = work.attention * work.forwards / work.flops
    wider = 2 if plan.environment["dtype"] == "float32" else 1  # needs are of BF16
    weights, beside = wider * need.weights, wider * need.activations
    if plan.memory == "whole":
        beside = max(beside, need.decode)  # in tiles it takes no more than a forward
    offloads = plan.memory not in ("whole", "whole-tiled")
    asked = weights if offloads else weights + beside
    return (
        f"expected: {work.tokens:,} tokens, {_si(work.flops)}FLOP a clip ({share:.0%} of it self-attention), "
        f"{_si(work.flops * cells)}FLOP in all; "
        f"{gib(weights)} of weights and about {gib(beside)} beside them, placed "
        f"{plan.memory}{_against(asked, _memory(plan))}; "
        f"about {gib(disk)} of disk{_against(disk, _free(out))}"
    )


def _against(asked: int, there: int | None) -> str:
    if there is None:
        return ""
    return f", more than the {gib(there)} there" if asked > there else f" of {gib(there)}"


def _memory(plan: Plan) -> int | None:
    """Bytes of where all weights are: on the device, or beside it if they are offloaded."""
    if plan.device != "cpu" and plan.memory in ("whole", "whole-tiled"):
        return int(torch.cuda.get_device_properties(plan.device).total_memory)
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limit = Path("/sys/fs/cgroup/memory.max")  # a container's
    if limit.is_file() and (text := limit.read_text().strip()).isdecimal():
        found.append(int(text))
    return min(found)


def _free(out: Path) -> int | None:
    folder = next((one for one in (out, *out.absolute().parents) if one.is_dir()), None)
    return None if folder is None else shutil.disk_usage(folder).free


def _si(value: float) -> str:
    """A number with a prefix, such as ``547 P``."""
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g} "
