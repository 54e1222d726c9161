"""``AttentionSpec``: one attention method, as a point in a small space."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

from mxbench.errors import UserError, unknown_name
from mxbench.formats.groups import ROWS
from mxbench.formats.quantizer import Quantizer

__all__ = ["AttentionSpec", "Hadamard", "KMean", "QBlockMean", "QKStage", "VSmooth"]


@dataclass(frozen=True, slots=True)
class KMean:
    """K minus its mean over all real tokens, per (batch, head, channel). SageAttention, arXiv:2410.02367."""


@dataclass(frozen=True, slots=True)
class QBlockMean:
    """Q minus the mean of each block of 128 rows; the lost term is added back to the scores in FP32.

    SageAttention3, arXiv:2505.11594.
    """

    rows: int = 128

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UserError(f"q_block_mean over {self.rows} rows", "use a positive number of rows, such as 128")


@dataclass(frozen=True, slots=True)
class Hadamard:
    """Sylvester rotation of Q and K over sqrt(D), after RoPE, in FP32. QuaRot; MXAttention paper, Algorithm 2.

    Attributes:
        sign_seed: None, or the seed of random signs that are multiplied into the channels before the rotation.
    """

    sign_seed: int | None = None

    def __post_init__(self) -> None:
        if self.sign_seed is not None and not 0 <= self.sign_seed < 2**63:
            raise UserError(f"hadamard_sign_seed {self.sign_seed} is no seed", "use a whole number from 0, or none")


QKStage = KMean | QBlockMean | Hadamard
_ORDER = (KMean, QBlockMean, Hadamard)


@dataclass(frozen=True, slots=True)
class VSmooth:
    """V-Smooth: tokens reordered so that V is alike inside blocks of 128, whose means are quantised apart.

    VC-Attention paper, section 3. The paper publishes no details of the grouping: the fields are choices.

    Attributes:
        layout: ``cluster`` (Lloyd on V's rows), ``cube`` (2×8×8 cubes of the latent grid) or ``sequence``.
        clusters: number of clusters, at most; ``cluster`` alone.
        iterations: assign-and-update rounds; ``cluster`` alone.
        window: fraction of the denoising steps in which grouping and means are active.
        refresh: active steps from one grouping to the next.
        placement: where the active steps lie: ``leading`` the run, ``uniform`` over it, or ``every`` step.
    """

    layout: Literal["cluster", "cube", "sequence"] = "cluster"
    clusters: int = 64
    iterations: int = 4
    window: float = 0.25
    refresh: int = 4
    placement: Literal["leading", "uniform", "every"] = "leading"

    def __post_init__(self) -> None:
        for field, known in (
            ("layout", ("cluster", "cube", "sequence")),
            ("placement", ("leading", "uniform", "every")),
        ):
            if getattr(self, field) not in known:
                raise unknown_name(f"v_smooth.{field}", getattr(self, field), known)
        if self.clusters < 1 or self.iterations < 0 or self.refresh < 1:
            raise UserError(
                f"v_smooth has clusters {self.clusters}, iterations {self.iterations}, refresh {self.refresh}",
                "use at least 1 cluster, 0 iterations and a refresh of 1",
            )
        if not 0 < self.window <= 1:
            raise UserError(f"v_smooth.window {self.window} is no fraction of the steps", "use a number in (0, 1]")
        object.__setattr__(self, "window", float(self.window))

    def canonical(self) -> VSmooth:
        """The same grouping with every field that changes nothing at its default."""
        changes: dict[str, Any] = {}
        layout = "sequence" if self.layout == "cluster" and self.clusters == 1 else self.layout
        if layout != "cluster":  # an order that no value changes is the same at every refresh
            changes |= {"layout": layout, "clusters": 64, "iterations": 4, "refresh": 4}
        if self.placement == "every" or (self.window == 1 and (self.refresh == 1 or layout != "cluster")):
            changes |= {"placement": "every", "window": 0.25, "refresh": 4}
        elif self.window == 1:
            changes["placement"] = "leading"
        return replace(self, **changes)


T = TypeVar("T", KMean, QBlockMean, Hadamard)


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One attention method. A field is a fact about what is computed, never about how fast.

    Attributes:
        q: quantiser of Q; None leaves it as it is. Likewise ``k`` and ``v``.
        p: quantiser of the exponentials exp2(u), u being a score in the log2 domain minus the running row maximum.
        qk: what happens to Q and K before they are quantised, in the order KMean, QBlockMean, Hadamard.
        v_smooth: the regrouping of tokens and the block means of V, or None.
        row_sum: the softmax denominator sums the ``exact`` exponentials or the ``quantised`` ones (PNQ).
        exponential: ``exp2``, or ``expcast`` (VC-Attention's one-FMA map to E4M3 codes).
        kv_tile: keys per tile of the online softmax; part of the method, since P is quantised relative to the running
            maximum.

    Raises:
        UserError: fields that do not go together.
    """

    q: Quantizer | None = None
    k: Quantizer | None = None
    v: Quantizer | None = None
    p: Quantizer | None = None
    qk: tuple[QKStage, ...] = ()
    v_smooth: VSmooth | None = None
    row_sum: Literal["exact", "quantised"] = "exact"
    exponential: Literal["exp2", "expcast"] = "exp2"
    kv_tile: int = 128

    def __post_init__(self) -> None:
        if self.row_sum not in ("exact", "quantised"):
            raise unknown_name("row_sum", self.row_sum, ["exact", "quantised"])
        if self.exponential not in ("exp2", "expcast"):
            raise unknown_name("exponential", self.exponential, ["exp2", "expcast"])
        kinds = [type(stage) for stage in self.qk]
        if kinds != [kind for kind in _ORDER if kind in kinds]:
            raise UserError("the stages of qk repeat or stand in another order", "use k_mean, q_block_mean, hadamard")
        for name in ("q", "k", "v"):
            quantizer: Quantizer | None = getattr(self, name)
            if quantizer is None:
                continue
            if quantizer.prescale != 1 or quantizer.divide_by != "stored":
                raise UserError(f"{name} has a prescale or divide_by of its own", "these are fields of p alone")
            if quantizer.granularity == "unit" or (name == "v" and quantizer.granularity in ("sage_threads", "rows")):
                raise UserError(
                    f"{name} cannot have the granularity {quantizer.granularity!r}",
                    "use 'channel' or 'tensor'" if name == "v" else "use 'tensor', 'rows' or 'sage_threads'",
                )
        self._check_p()
        self._check_tile()

    def _check_p(self) -> None:
        if self.p is not None:
            if self.p.granularity not in ("block", "unit"):
                raise UserError(f"p cannot have the granularity {self.p.granularity!r}", "use 'unit' for 8-bit formats")
            if self.p.tensor_scale:
                raise UserError("p has a tensor_scale", "use p.prescale: one call sees P tile by tile")
        if self.exponential == "expcast" and (self.p is None or self.p.format != "e4m3" or self.p.prescale != 256):
            raise UserError("expcast writes E4M3 codes of 256·P", "give p the format e4m3 and the prescale 256")

    def _check_tile(self) -> None:
        blocks = [z.form.block for z in (self.p, self.v) if z is not None and z.form.block is not None]
        if self.kv_tile < 1 or any(self.kv_tile % block for block in blocks):
            step = max(blocks, default=1)
            raise UserError(
                f"kv_tile {self.kv_tile} is no multiple of {step}", f"use a multiple of {step}, such as 128"
            )
        if self.v_smooth is not None and ROWS % self.kv_tile:
            raise UserError(f"kv_tile {self.kv_tile} does not divide V-Smooth's blocks of {ROWS}", "use 128, 64 or 32")

    def stage(self, kind: type[T]) -> T | None:
        """The stage of that kind in ``qk``, or None."""
        for stage in self.qk:
            if isinstance(stage, kind):
                return stage
        return None

    @property
    def quantised(self) -> bool:
        """Whether any operand is quantised."""
        return any(z is not None for z in (self.q, self.k, self.v, self.p))

    @property
    def bits(self) -> dict[str, float]:
        """Bits per element of each operand, the shared block scales counted; 16 where it is not quantised."""
        return {
            n: z.bits if z is not None else 16.0 for n, z in zip("qkvp", (self.q, self.k, self.v, self.p), strict=True)
        }

    def canonical(self) -> AttentionSpec:
        """The same computation with every field that changes nothing at its default: equal ids for equal methods."""
        q, k, v, p = (z.canonical() if z is not None else None for z in (self.q, self.k, self.v, self.p))
        qk = self.qk if q is not None or k is not None else ()  # exact transforms of exact scores
        if k is None:  # K's mean shifts a whole row of scores
            qk = tuple(stage for stage in qk if not isinstance(stage, KMean))
        v_smooth = self.v_smooth.canonical() if self.v_smooth is not None else None
        # Means need a quantised V; an order shows in P, and in a K whose groups run along tokens.
        if v_smooth is not None and v is None:
            along_tokens = p is not None or (k is not None and k.granularity in ("rows", "sage_threads"))
            v_smooth = v_smooth if along_tokens and v_smooth.layout != "sequence" else None
        return AttentionSpec(
            q=q,
            k=k,
            v=v,
            p=p,
            qk=qk,
            v_smooth=v_smooth,
            row_sum=self.row_sum if p is not None else "exact",
            exponential=self.exponential,
            kv_tile=self.kv_tile if p is not None else 128,
        )

    def to_dict(self) -> dict[str, Any]:
        """The full expansion as plain data; stages of ``qk`` by name."""
        names = {KMean: "k_mean", QBlockMean: "q_block_mean", Hadamard: "hadamard"}
        data = asdict(self)
        data["qk"] = [{"stage": names[type(stage)], **asdict(stage)} for stage in self.qk]
        return data

    @property
    def id(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical form."""
        text = json.dumps(self.canonical().to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]
