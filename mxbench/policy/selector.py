"""Selectors: which layers, steps or experts a rule names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mxbench.errors import UserError

__all__ = ["ALL", "Selector"]

_SLICE = re.compile(r"^\s*(-?\d+)?\s*:\s*(-?\d+)?\s*$")


@dataclass(frozen=True, slots=True)
class Selector:
    """A set of indices, counted from the end where negative.

    Attributes:
        items: single indices, and pairs (start, stop) that mean what Python's slices mean; None selects all.
    """

    items: tuple[int | tuple[int | None, int | None], ...] | None = None

    @staticmethod
    def parse(value: Any, what: str) -> Selector:
        """A selector from YAML: ``all``, ``3``, ``-1``, ``"0:20"``, or a list of these.

        Raises:
            UserError: anything else.
        """
        if value is None or value == "all":
            return Selector()
        items: list[int | tuple[int | None, int | None]] = []
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, int) and not isinstance(item, bool):
                items.append(item)
            elif isinstance(item, str) and re.fullmatch(r"\s*-?\d+\s*", item):
                items.append(int(item))
            elif isinstance(item, str) and (found := _SLICE.match(item)):
                start, stop = (int(g) if g is not None else None for g in found.groups())
                items.append((start, stop))
            else:
                raise UserError(
                    f"{what}: {item!r} selects nothing", "use all, an index, a slice such as '0:20', or a list of them"
                )
        if not items:
            raise UserError(
                f"{what}: an empty list selects nothing", "name at least one, or leave the field out for all"
            )
        return Selector(tuple(items))

    def indices(self, count: int, what: str = "index") -> frozenset[int]:
        """The indices below ``count`` that are selected.

        Raises:
            UserError: an index that does not exist, or a slice that is empty there.
        """
        if self.items is None:
            return frozenset(range(count))
        found: set[int] = set()
        for item in self.items:
            if isinstance(item, tuple):
                inside = range(count)[slice(*item)]
                if not inside:
                    raise UserError(f"{what} {self} selects none of {count}", f"use {what} 0 to {count - 1}")
                found.update(inside)
            elif -count <= item < count:
                found.add(item % count)
            else:
                raise UserError(
                    f"there is no {what} {item}: there are {count}", f"use 0 to {count - 1}, or -{count} to -1"
                )
        return frozenset(found)

    def __contains__(self, pair: tuple[int, int]) -> bool:
        index, count = pair
        return self.items is None or index in self.indices(count)

    def __str__(self) -> str:
        if self.items is None:
            return "all"
        return ",".join(
            str(i) if isinstance(i, int) else ":".join("" if e is None else str(e) for e in i) for i in self.items
        )


ALL = Selector()
