"""What goes wrong with one candidate costs its own row alone, and the row says what it was."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch

from mxbench.errors import UserError

__all__ = ["Failure", "Status", "guarded"]

T = TypeVar("T")

Status = Literal["measured", "red", "unsupported", "absent", "out of memory", "failed"]
"""``red``: its output is wrong. ``absent``: a peer that is not installed or does not run on this device."""

_LONGEST = 200
# What the CPU allocator, CUDA and cuBLAS say of memory that torch's own allocator does not hand out.
_FULL = ("not enough memory", "can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a candidate has no time."""

    status: Status
    reason: str


def guarded(work: Callable[[], T]) -> T | Failure:
    """The result of some work, or what went wrong with it in one line."""
    try:
        return work()
    except UserError as refusal:
        return Failure("unsupported", refusal.problem)
    except Exception as error:  # noqa: BLE001 - a peer's kernel may raise anything
        failure = _account(error)
    # Only here have the exception and the tensors of its frames gone.
    if failure.status == "out of memory":
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return failure


def _account(error: Exception) -> Failure:
    text = " ".join(str(error).split())
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in text for words in _FULL):
        return Failure("out of memory", "no room on the device for this shape")
    short = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return Failure("failed", f"{type(error).__name__}: {short}" if short else type(error).__name__)
