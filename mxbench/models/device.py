"""Which device a model runs on: the names that users give, what ``auto`` takes, and what does not fit there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch

from mxbench.errors import UserError

__all__ = ["fits", "resolve"]

# What CUDA and cuBLAS say of memory that torch's allocator does not hand out.
_FULL = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator: can't allocate memory")
_NAME = re.compile("(auto|cpu|cuda)(?::([0-9]+))?")


def resolve(asked: str, types: Collection[str] = ("cpu", "cuda")) -> str:
    """The device that a name stands for: ``cpu`` or ``cuda:N``.

    ``auto`` takes the first CUDA device where torch sees one and the model runs on it, and the CPU otherwise.

    Args:
        asked: ``auto``, ``cpu``, ``cuda`` (the first one) or ``cuda:N``.
        types: of the devices that the model runs on (``ModelFacts.dtypes``).

    Raises:
        UserError: another name, a device that torch does not see, or one that the model does not run on.
    """
    found = _NAME.fullmatch(asked)
    if found is None or (found[2] is not None and found[1] != "cuda"):
        raise UserError(f"--device {asked}: there is no such device", "use auto, cpu, cuda or cuda:N")
    kind = found[1]
    if kind == "auto":
        kind = "cuda" if "cuda" in types and ("cpu" not in types or torch.cuda.is_available()) else "cpu"
    if kind not in types:
        raise UserError(f"--device {asked}: this model does not run there", f"use {' or '.join(types)}")
    if kind == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise UserError(f"--device {asked}: torch sees no CUDA device", _mend("cpu" in types))
    index, count = int(found[2] or 0), torch.cuda.device_count()
    if index >= count:
        known = "cuda:0 alone" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UserError(f"--device {asked}: torch sees {known}", "use one that is there; cuda is the first")
    return f"cuda:{index}"


def _mend(on_cpu: bool) -> str:
    if torch.version.cuda is None:
        first = f"torch {torch.__version__} is built without CUDA: install a build with it"
    else:
        first = f"see whether nvidia-smi lists one, whether its driver knows CUDA {torch.version.cuda}, and what "
        first += "CUDA_VISIBLE_DEVICES says"
    return first + (", or use --device cpu" if on_cpu else "")


@contextmanager
def fits(device: str, memory: str | None = None, *, loading: bool = False) -> Iterator[None]:
    """Make one line of what torch says when a device has no memory left.

    Args:
        device: the one whose memory it is.
        memory: how the model was placed there, see ``mxbench.models.memory``, where that was chosen.
        loading: it is being placed there.

    Raises:
        UserError: the block ran out of memory on the device; torch's own account is its cause.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not any(said in str(error) for said in _FULL):
            raise
        if memory is not None:
            from mxbench.models.memory import out_of_memory

            raise out_of_memory(memory, device, loading=loading) from error
        raise UserError(
            f"out of memory on {device}",
            "free memory there, choose another --device, or render smaller or shorter clips",
        ) from error
