"""Time of the reference beside torch's own attention, in one run: ``python -m mxbench.analysis.timing``.

The reference is an oracle and its time is its own: nothing here is the speed of a low-bit kernel.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from mxbench.attention.methods import METHODS
from mxbench.attention.reference import prepare, reference, walk
from mxbench.attention.site import Site
from mxbench.attention.spec import AttentionSpec
from mxbench.attention.value import GroupingState

__all__ = ["main", "paired_ratio"]

STEPS = 8


def paired_ratio(one: Callable[[], object], other: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median time of ``one`` in seconds, and the median of its ratio to ``other``, timed in turn."""
    one(), other()
    times, ratios = [], []
    for _ in range(repeats):
        seconds = []
        for function in (one, other):
            begun = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - begun)
        times.append(seconds[0])
        ratios.append(seconds[0] / seconds[1])
    return median(times), median(ratios)


def _render(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec) -> None:
    state = GroupingState()
    for step in range(STEPS):
        reference(q, k, v, spec, site=Site(0, 0, 1, "self", step, STEPS), state=state)


def main() -> None:
    """Print a table of ratios to torch SDPA: a call by itself, its tiles alone, and the calls of a render's 8 steps.

    By itself a method with V-Smooth groups afresh; in a render it does so where its schedule says.
    """
    parser = argparse.ArgumentParser(prog="python -m mxbench.analysis.timing", description=__doc__)
    parser.add_argument("--shape", type=int, nargs=4, default=[1, 2, 1280, 128], metavar=("B", "H", "N", "D"))
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    q, k, v = (torch.randn(arguments.shape) for _ in range(3))

    def sdpa() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    base, _ = paired_ratio(sdpa, sdpa, arguments.repeats)
    print(f"{arguments.shape}, float32, {torch.get_num_threads()} threads; torch SDPA {1e3 * base:.1f} ms")  # noqa: T201
    for name, method in METHODS.items():
        spec = method.spec
        operands = prepare(q, k, v, spec)
        _, whole = paired_ratio(lambda spec=spec: reference(q, k, v, spec), sdpa, arguments.repeats)  # type: ignore[misc]
        _, tiles = paired_ratio(lambda o=operands, s=spec: walk(o, s), sdpa, arguments.repeats)  # type: ignore[misc]
        _, steps = paired_ratio(
            lambda spec=spec: _render(q, k, v, spec),  # type: ignore[misc]
            lambda: [sdpa() for _ in range(STEPS)],
            max(3, arguments.repeats // 3),
        )
        print(f"{name:12s} call {whole:5.2f} x, its tiles {tiles:5.2f} x, in a render {steps:5.2f} x")  # noqa: T201


if __name__ == "__main__":
    main()
