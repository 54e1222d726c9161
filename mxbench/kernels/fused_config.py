"""How the fused kernels are launched: tiles, warps and stages, one table. Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass

from mxbench.kernels.held import Hold

__all__ = ["CONFIGS", "STEP_BY_STEP", "WIDE_KEYS", "Config", "config_for"]


@dataclass(frozen=True, slots=True)
class Config:
    """How a launch is shaped. No field changes what is computed, beyond the order of sums and codes beside a tie.

    Attributes:
        block_m: query rows of a program; 64 for each four warps where matrix units are used.
        num_warps: warps of a program.
        num_stages: tiles of K and V under way.
        registers: most registers a thread; None leaves it to the compiler. With 168, three programs of four warps fit
            on a multiprocessor.
        overlap: P·V of a tile beside the softmax of the next.
        descriptors: tiles come by tensor descriptors where rows are multiples of 16 bytes, else by pointers.
        packed: P in packed arithmetic (``packed_jit``) where the method has it, else step by step.
        interleave: K stored in the order that FP8 operands want; None: for FP8 P.
    """

    block_m: int = 64
    num_warps: int = 4
    num_stages: int = 3
    registers: int | None = None
    overlap: bool = False
    descriptors: bool = True
    packed: bool = True
    interleave: bool | None = None


CONFIGS: dict[tuple[str, int], Config] = {
    # (hold of P and V, widest tile): the choice. ``fused(..., config=...)`` overrides it.
    # At 1×40×75600×128 on an H200 (python -m mxbench.bench.tune, 2026-11-30, before keys were stored by quarters;
    # medians of five, in ms; in brackets with three stages and no limit to registers): mxattn 145.4 (152.9), vc8 141.8
    # (148.1), sage2 152.1 (158.3).
    ("e5m2", 128): Config(num_stages=2, registers=168),
    ("e5m2", 256): Config(num_stages=2),
    ("e5m2", 512): Config(num_stages=1),
    ("e4m3", 128): Config(num_stages=2, registers=168),
    ("e4m3", 256): Config(num_stages=2),
    ("e4m3", 512): Config(num_stages=1),
    ("int8", 64): Config(),
    ("int8", 256): Config(num_stages=2),
    ("int8", 512): Config(num_stages=1),
    ("bfloat16", 128): Config(block_m=128, num_warps=8, overlap=True),  # mxattn there 240.4, with two stages 258.8
    ("bfloat16", 512): Config(num_stages=1),
    ("float32", 128): Config(block_m=32, num_warps=8, num_stages=1, descriptors=False),
    ("float32", 512): Config(block_m=16, num_warps=8, num_stages=1, descriptors=False),
}


WIDE_KEYS: dict[int, Config] = {
    # Widest tile: the choice for Q and K in BF16 beside P and V in 8 bits.
    128: Config(num_stages=2, overlap=True),  # mxfp4 there 198.7, without overlap 211.3
    512: Config(num_stages=1),
}

STEP_BY_STEP: dict[int, Config] = {
    # Widest tile: the choice for BF16 where P, or what is owed, takes a tile of shared memory of its own.
    128: Config(block_m=128, num_warps=8, num_stages=2, overlap=True),
    512: Config(num_stages=1),
}


def config_for(
    hold: Hold, width: int, kv_tile: int = 128, hold_qk: Hold | None = None, *, packed: bool = True
) -> Config:
    """The entry for a hold of P and V, a head dimension, a key tile, and the hold of Q and K (None: the same bits).

    A tile of 256 keys is twice as wide: tiles of K and of V, as many as there are stages, lie in shared memory.
    ``packed``: P is made in packed arithmetic, and what Q's means owe a tile is a row; otherwise those lie there too.
    """
    widest = width * max(128, kv_tile) // 128
    if hold == "bfloat16" and not packed:
        return next(config for most, config in STEP_BY_STEP.items() if widest <= most)
    if hold_qk == "bfloat16" and hold in ("e5m2", "e4m3", "int8"):
        return next(config for most, config in WIDE_KEYS.items() if widest <= most)
    return next(config for (name, most), config in CONFIGS.items() if name == hold and widest <= most)
