"""The one exception that users see: what is wrong, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["CellFailed", "UserError", "unknown_name"]


class UserError(Exception):
    """Something the user can mend; printed as one line, never as a traceback.

    Args:
        problem: what is wrong, as a clause without a full stop.
        fix: what to do next, as a clause without a full stop.
    """

    def __init__(self, problem: str, fix: str) -> None:
        self.problem = " ".join(problem.split())
        self.fix = " ".join(fix.split())
        super().__init__(f"{self.problem}; {self.fix}")

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str]]:
        return type(self), (self.problem, self.fix)


class CellFailed(Exception):
    """One cell of a run ended without a usable result; the run goes on.

    The message is the reason that the table prints behind ``failed:``.
    """


def unknown_name(kind: str, name: object, known: Iterable[str], *, hint: str = "") -> UserError:
    """The error for a name that no table holds, with the nearest names that exist.

    Args:
        kind: what was asked for, such as ``"method"``.
        name: what the user wrote.
        known: the names that exist.
        hint: the command that lists them all, such as ``"mxbench list methods"``.
    """
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    near = [lowered[n] for n in difflib.get_close_matches(str(name).lower(), lowered, n=3, cutoff=0.5)]
    if near:
        fix = f"did you mean {' or '.join(near)}?"
    elif len(names) <= 16:
        fix = f"use one of {', '.join(names)}"
    else:
        fix = f"there are {len(names)} of them"
    if hint:
        fix += f" ({hint} shows all)"
    return UserError(f"unknown {kind} {str(name)!r}", fix)
