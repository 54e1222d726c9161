"""Candidates and clocks whose every number is known."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.functional import scaled_dot_product_attention

from mxbench.bench.candidates import Bound, Candidate
from mxbench.bench.rows import Compared, Result, Row, ShapeResult
from mxbench.bench.shapes import Shape
from mxbench.bench.timing import Spread

SMALL = Shape(1, 2, 40, 72, 16)


class FakeClock:
    """Says what the work last wrote to ``milliseconds``, and notes who was timed."""

    def __init__(self):
        self.milliseconds = 1.0
        self.log = []

    def time(self, work):
        self.milliseconds = 1.0
        result = work()
        return result, self.milliseconds

    def takes(self, name, milliseconds, work):
        """``work`` that takes so long; a list is taken from the front, round by round."""

        def timed(*arguments):
            self.log.append(name)
            self.milliseconds = milliseconds.pop(0) if isinstance(milliseconds, list) else milliseconds
            return work(*arguments)

        return timed


def exact(operands):
    return scaled_dot_product_attention(operands.q, operands.k, operands.v)


def peer(name, call, **fields):
    """A candidate without a method: ``call(operands)``."""
    made = Candidate(
        "", name, name.upper(), "an exact kernel", True, lambda operands, _: Bound(lambda: call(operands)), allowed=1e-5
    )
    return replace(made, **fields)


def halves(name, prepare, run, call, **fields):
    """A peer with a pre-pass."""

    def bind(operands, _):
        return Bound(lambda: call(operands), lambda: prepare(operands), run)

    return peer(name, call, bind=bind, exact=False, **fields)


def spread(median, width=0.02, n=20):
    return Spread(median, median * (1 - width), median * (1 + width), n)


def result(base_ms=174.5):
    """A run with invented numbers: an H200, Wan2.2, every kind of row."""
    shape = Shape(1, 40, 75_600, 75_600, 128)

    def row(method, impl, label, kernel=None, call=None, prepass=None, **fields):
        made = Row(method, impl, label, fields.pop("version", ""), "a call", fields.pop("fp4", ""), "measured")
        made = replace(made, error=5e-4, allowed=1e-3, **fields)
        if call is None:
            return made
        made = replace(made, call=spread(call), ratio_call=spread(base_ms / call), tflops=shape.flop / call / 1e9)
        if kernel is not None:
            made = replace(made, kernel=spread(kernel), ratio_kernel=spread(base_ms / kernel))
        if prepass is not None:
            made = replace(made, prepass=spread(prepass), prepass_share=prepass / call, prepass_of_copy=0.7)
        return made

    rows = (
        row("", "fa4", "FlashAttention-4", 174.5, 174.5, version="4.0.0b36"),
        row("", "torch-cudnn", "cuDNN (torch SDPA)", 203.0, 203.0, version="2.11.0"),
        row("", "torch-flash", "FlashAttention-2 (torch SDPA)", 324.0, 324.0, version="2.11.0"),
        row("", "sage2-sm90", "SageAttention2++ (sm90)", None, 142.5, version="2.2.0"),
        replace(row("", "cudnn-fp8", "cuDNN FP8"), status="absent", reason="it is not installed"),
        row("mxfp4", "conformance", "MXFP4 (OCP)", 268.0, 274.0, 5.0, fp4="emulated", goal=0.75, floor=0.6),
        row("mxattn", "conformance", "MXAttention", 270.0, 277.0, 6.0, fp4="emulated", goal=0.75, floor=0.6),
        replace(row("nvfp4", "conformance", "NVFP4", fp4="emulated"), status="red", error=0.2, reason="it is far off"),
        row("mxattn", "fast", "MXAttention", 203.0, 210.0, 6.0, fp4="emulated", goal=1.2, floor=1.0),
        row("vc8", "fast", "VC-Attention (8-bit)", 145.5, 151.0, 5.0, goal=1.6, floor=1.46, grouping=spread(30.0)),
        replace(
            row("vc4", "fast", "VC-Attention (4-bit)", fp4="emulated"), status="unsupported", reason="no such path"
        ),
    )
    found = ShapeResult("Wan2.2", shape, ("fa4", "FlashAttention-4"), spread(4000.0), Compared(4, 1792, False), rows)
    provenance = {"date": "2030-01-01T00:00:00+00:00", "command": "mxbench bench", "device": "cuda: NVIDIA H200"}
    settings = {"device": "cuda:0", "dtype": "bfloat16", "reps": 20, "seed": 0, "warmup": 1, "operands": "Gaussian"}
    return Result(provenance | {"torch": "2.11.0"}, settings, (found,))


def zeros(operands):
    return torch.zeros_like(operands.q)
