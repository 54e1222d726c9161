"""What a table is made from: plain data, filled from a store or by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Column", "Kind", "MethodRow", "Observation", "Role", "TableData"]

Role = Literal["reference", "noise_floor", "method"]
Kind = Literal["methods", "ablation", "sweep"]


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A row: one way to compute attention.

    Attributes:
        key: what observations and ``baseline`` call it, such as ``mxfp4``.
        label: what the table prints.
        role: the FP16 reference, the noise floor (the same arithmetic by another exact kernel), or a method.
        bits: bits per element of the operands, such as ``"4.25"``; None where there is no such number.
        unverified: whether it is a user's own callable that no check has covered.
        flags: check marks of an ablation, such as ``{"Hadamard": True, "UOS": False}``; empty otherwise.
        axis: values of a sweep, such as ``{"q_max": "6.25"}``; empty otherwise.
    """

    key: str
    label: str
    role: Role = "method"
    bits: str | None = None
    unverified: bool = False
    flags: Mapping[str, bool] = field(default_factory=dict)
    axis: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """One metric of one video, or why there is none: exactly one of value, unscored and failed is set.

    Attributes:
        row: key of the row.
        prompt: prompt id.
        seed: seed of the render.
        metric: name of the column.
        value: the score, finite.
        unscored: why a good video has no score, such as ``"weights missing: amt-s.pth"``.
        failed: why there is no good video, such as ``"black frames from step 12"``.
        identical_frames: frames equal to the reference's, each counted as 100 dB in a mean PSNR.
    """

    row: str
    prompt: str
    seed: int
    metric: str
    value: float | None
    unscored: str | None = None
    failed: str | None = None
    identical_frames: int = 0


@dataclass(frozen=True, slots=True)
class Column:
    """A metric as a column.

    Attributes:
        name: what observations call it.
        label: what the table prints.
        digits: decimals of a mean.
        higher_is_better: direction; None where neither is better, and then nothing is bold.
        needs_reference: whether it compares with the FP16 render; the reference row shows – there.
        group: header over neighbouring columns; empty for none.
        unit: unit of the values; empty for none.
        margin: loss against FP16 that is tested as "not worse than"; None for no such test.
    """

    name: str
    label: str
    digits: int
    higher_is_better: bool | None
    needs_reference: bool
    group: str = ""
    unit: str = ""
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class TableData:
    """Everything a table needs.

    Attributes:
        title: heading.
        model: name of the video model.
        weights: which weights, such as ``"random weights (seed 0)"``.
        environment: what else changes pixels: device, dtype, versions, frames, steps; printed in the order given.
        reference: kernel and device of the FP16 reference, such as ``"fp16, sdpa, cpu float32"``.
        rows: rows in the order to be printed, at most one of them the reference.
        metrics: columns in the order to be printed.
        observations: every metric of every video.
        n_prompts: prompts the run asked for.
        kind: how rows are described: by method, by an ablation's check marks, or by a sweep's values.
        notes: sentences to be printed beneath.
    """

    title: str
    model: str
    weights: str
    environment: Mapping[str, str]
    reference: str
    rows: tuple[MethodRow, ...]
    metrics: tuple[Column, ...]
    observations: tuple[Observation, ...]
    n_prompts: int
    kind: Kind = "methods"
    notes: tuple[str, ...] = ()
