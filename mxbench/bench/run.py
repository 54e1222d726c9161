"""A whole run: names into shapes and candidates, and every shape measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch

from mxbench.bench.candidates import method_candidates
from mxbench.bench.measure import Settings, measure, steps
from mxbench.bench.peers import peer_candidates
from mxbench.bench.provenance import provenance
from mxbench.bench.rows import Result
from mxbench.bench.shapes import chosen_shapes
from mxbench.errors import UserError, unknown_name
from mxbench.models.device import resolve
from mxbench.runs.environment import device_name

__all__ = ["DTYPES", "bench"]

DTYPES = ("bfloat16", "float16", "float32")


def bench(
    *,
    models: Sequence[str] = (),
    shapes: Sequence[str] = (),
    methods: Sequence[str] = (),
    impls: Sequence[str] = (),
    peers: Sequence[str] = (),
    device: str = "auto",
    dtype: str | None = None,
    reps: int = 20,
    seed: int = 0,
    command: str = "",
    on_plan: Callable[[int], None] = lambda _: None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Result:
    """Measure attention kernels, pre-passes and whole calls.

    Args:
        models: names in ``MODEL_SHAPES``; nano if no shape is given either.
        shapes: as ``parse_shape`` reads them.
        methods: names in ``METHODS``; see ``method_candidates``.
        impls: names in ``IMPLS``; see ``method_candidates``.
        peers: names in ``PEERS``, or ``none``; all unless given.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: of the operands; bfloat16 on CUDA and float32 on the CPU unless given.
        reps: rounds that count.
        seed: of the operands and of the order in each round.
        command: for the provenance.
        on_plan: called once with the number of steps.
        on_step: called at each with a word on what is being done.

    Raises:
        UserError: a name that does not exist, a shape that cannot be read, nothing to measure.
    """
    chosen = chosen_shapes(models, shapes)
    if dtype is not None and dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if reps < 1:
        raise UserError(f"--reps {reps} measures nothing", "give 1 or more")
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed {seed} is no seed", "give a whole number from 0 to 2^63 - 1")
    where = resolve(device)
    settings = Settings(where, dtype or ("float32" if where == "cpu" else "bfloat16"), reps, seed)
    on, kind = torch.device(where), getattr(torch, settings.dtype)
    candidates = [*peer_candidates(peers, on, kind), *method_candidates(methods, impls, on, kind)]
    if not candidates:
        raise UserError(
            f"no implementation computes quantised methods on {where} in {settings.dtype}, and there is no peer",
            "name an --impl, or leave out --peer none",
        )
    on_plan(steps(len(chosen), candidates, settings))
    name = device_name(where)
    with torch.cuda.device(on) if on.type == "cuda" else nullcontext():  # where kernels are launched
        found = [
            measure(title, each, candidates, settings, device_name=name, on_step=on_step) for title, each in chosen
        ]
    return Result(provenance(where, command), settings.to_dict(), tuple(found))
