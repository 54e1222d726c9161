"""How passes over an operand are launched: tokens of a tile and elements of a thread, one table. Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mxbench.formats.groups import ROWS

__all__ = ["OWED", "PASSES", "OwedPass", "Pass", "owed_for", "pass_for"]


@dataclass(frozen=True, slots=True)
class OwedPass:
    """How the product of Q's means and K is shaped. No field changes what is computed, but for roundings of the sums.

    Attributes:
        tile: tokens of a program.
        groups: means of an iteration.
        warps: of a program.
        stages: iterations whose means are under way.
        registers: most registers a thread; None leaves it to the compiler.
    """

    tile: int = 64
    groups: int = 32
    warps: int = 4
    stages: int = 3
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """How a pass is shaped. No field changes what is computed.

    Attributes:
        tile: tokens of a program. Groups of rows and blocks of V-Smooth ask for all 128.
        thread: elements of the tile that a thread keeps in registers.
        registers: most registers a thread; None leaves it to the compiler.
    """

    tile: int = ROWS
    thread: int = 64
    registers: int | None = None


PASSES: dict[str, Pass] = {
    # Compared at 1×40×75600×128 on an H200, one kind at a time, 2026-11-30: smaller tiles let two programs share a
    # multiprocessor, and more threads move more between them.
    "rotated": Pass(tile=64),
    "e5m2": Pass(tile=64, registers=128),  # the compiler would take more
    "plain": Pass(tile=64),
}

OWED: dict[int, OwedPass] = {
    # Widest padded head dimension: the choice. Compared at 1×40×75600×128 on an H200, 2026-12-01.
    128: OwedPass(),
    256: OwedPass(tile=32, groups=64, warps=8, stages=1),  # wider tiles would spill
}


def owed_for(width: int) -> OwedPass:
    """The entry for a padded head dimension."""
    return next(shape for most, shape in OWED.items() if width <= most)


def pass_for(*, rotated: bool, hold: str, whole: bool) -> Pass:
    """The entry for a pass.

    Args:
        rotated: it rotates.
        hold: what it writes; empty where it only reads.
        whole: its groups need tiles of 128 tokens.
    """
    found = PASSES["rotated" if rotated else "e5m2" if hold == "e5m2" else "plain"]
    return replace(found, tile=ROWS) if whole else found
