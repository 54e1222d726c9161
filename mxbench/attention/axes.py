"""Named axes: the fields that YAML, ``ablate`` and ``--sweep`` speak of. One field of an ablation is one axis.

An axis sets what belongs together: ``scale_rule`` changes q, k, v and p at once, ``p.prescale`` one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mxbench.attention.spec import AttentionSpec, Hadamard, KMean, QBlockMean, QKStage, VSmooth
from mxbench.errors import UserError, unknown_name
from mxbench.formats.quantizer import FORMATS, GRANULARITIES, Quantizer
from mxbench.formats.scale import RULES, boundary, canonical_rule

__all__ = ["AXES", "Axis", "apply", "with_axes"]


Get = Callable[[AttentionSpec], Any]
Set = Callable[[AttentionSpec, Any], AttentionSpec]


@dataclass(frozen=True, slots=True)
class Axis:
    """One named axis.

    Attributes:
        help: what it is, in a clause.
        get: its value in a spec; None where the spec has no such field.
        set: the spec with another value.
        values: values to walk through when no others are asked for; neighbours of each other.
    """

    help: str
    get: Get
    set: Set
    values: tuple[Any, ...]


def _operands(spec: AttentionSpec, wanted: Callable[[Quantizer], bool], names: str = "qkvp") -> list[str]:
    return [n for n in names if (z := getattr(spec, n)) is not None and wanted(z)]


def _shared(
    field: str, wanted: Callable[[Quantizer], bool], cast: Callable[[Any], Any], names: str = "qkvp"
) -> tuple[Get, Set]:
    """Getter and setter of one quantiser field on every operand where it means something."""

    def get(spec: AttentionSpec) -> Any:
        found = {getattr(getattr(spec, n), field) for n in _operands(spec, wanted, names)}
        return found.pop() if len(found) == 1 else None

    def put(spec: AttentionSpec, value: Any) -> AttentionSpec:
        operands = _operands(spec, wanted, names)
        if not operands:
            raise UserError(f"the method has no operand with a {field}", "sweep an axis that the method has")
        return replace(spec, **{n: replace(getattr(spec, n), **{field: cast(value)}) for n in operands})

    return get, put


def _flag(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false", "on", "off", "yes", "no"):
        return value.lower() in ("true", "on", "yes")
    if isinstance(value, bool):
        return value
    raise UserError(f"{value!r} is no truth value", "use true or false")


def _whole(value: Any) -> int:
    number = _number(value)
    if not number.is_integer():
        raise UserError(f"{value!r} is no whole number", "use a whole number")
    return int(number)


def _number(value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{value!r} is no number", "use a number") from None


def _q_max(value: Any) -> str:
    return canonical_rule(_number(value))


def _q_of(spec: AttentionSpec) -> float | None:
    rule = AXES["scale_rule"].get(spec)
    q = boundary(rule) if rule is not None else None
    return None if q is None else float(q)


def _stage(kind: type, make: Callable[[], QKStage]) -> tuple[Get, Set]:
    order = (KMean, QBlockMean, Hadamard)

    def get(spec: AttentionSpec) -> bool:
        return spec.stage(kind) is not None

    def put(spec: AttentionSpec, value: Any) -> AttentionSpec:
        kept = [s for s in spec.qk if not isinstance(s, kind)]
        if _flag(value):
            kept.append(spec.stage(kind) or make())
        return replace(spec, qk=tuple(sorted(kept, key=lambda s: order.index(type(s)))))

    return get, put


def _sign_seed(spec: AttentionSpec, value: Any) -> AttentionSpec:
    if spec.stage(Hadamard) is None:
        raise UserError("the method has no Hadamard rotation", "set hadamard: true first")
    seed = None if value in (None, "none") else _whole(value)
    return replace(spec, qk=tuple(Hadamard(seed) if isinstance(s, Hadamard) else s for s in spec.qk))


def _smooth(field: str, cast: Callable[[Any], Any]) -> tuple[Get, Set]:
    def get(spec: AttentionSpec) -> Any:
        return getattr(spec.v_smooth, field) if spec.v_smooth is not None else None

    def put(spec: AttentionSpec, value: Any) -> AttentionSpec:
        if spec.v_smooth is None:
            raise UserError("the method has no V-Smooth", "set v_smooth: true first")
        return replace(spec, v_smooth=replace(spec.v_smooth, **{field: cast(value)}))

    return get, put


def _operand_format(name: str) -> Axis:
    """The format of one operand, or none; the rest of its quantiser takes that format's plain form."""

    def plain(spec: AttentionSpec, value: str) -> Quantizer:
        if FORMATS[value].block is not None:
            rule = next((z.scale_rule for z in (spec.q, spec.k, spec.v, spec.p) if z and z.format == "mxfp4"), "ocp")
            return Quantizer(value, scale_rule=rule)
        if name == "p":
            return Quantizer(value, "unit", prescale={"e4m3": 256.0, "int8": 127.0}[value])
        return Quantizer(value, "channel" if name == "v" else "tensor")

    def get(spec: AttentionSpec) -> str:
        z: Quantizer | None = getattr(spec, name)
        return "none" if z is None else z.format

    def put(spec: AttentionSpec, value: Any) -> AttentionSpec:
        if value not in (None, "none", *FORMATS):
            raise unknown_name("format", value, [*FORMATS, "none"])
        if value == get(spec):
            return spec
        change: dict[str, Any] = {name: None if value in (None, "none") else plain(spec, str(value))}
        return replace(spec, **change)

    return Axis(f"number format of {name.upper()}, or none", get, put, ("none", *FORMATS))


def _qk_format(spec: AttentionSpec, value: Any) -> AttentionSpec:
    """8-bit format of Q and K with the granularity kept (VC-Attention: int8, or e4m3 where a card lacks INT8)."""
    if value not in ("int8", "e4m3"):
        raise unknown_name("8-bit format of Q and K", value, ["int8", "e4m3"])
    if any(z is None or z.form.block is not None for z in (spec.q, spec.k)):
        raise UserError("qk_format belongs to methods with 8-bit Q and K", "use q.format and k.format")
    assert spec.q is not None and spec.k is not None
    q, k = (z if z.format == value else replace(z, format=value, rounding="rne") for z in (spec.q, spec.k))
    return replace(spec, q=q, k=k)


def _p_field(field: str, cast: Callable[[Any], Any]) -> tuple[Get, Set]:
    return _shared(field, lambda _: True, cast, "p")


def _mx(z: Quantizer) -> bool:
    return z.format == "mxfp4"


def _nv(z: Quantizer) -> bool:
    return z.format == "nvfp4"


def _eight_bit(z: Quantizer) -> bool:
    return z.form.block is None


def _field(name: str, cast: Callable[[Any], Any]) -> tuple[Get, Set]:
    return (lambda spec: getattr(spec, name)), (lambda spec, value: replace(spec, **{name: cast(value)}))


_COARSE = tuple(g for g in GRANULARITIES if g not in ("block", "unit"))

AXES: Mapping[str, Axis] = {
    "scale_rule": Axis(
        "MX scale rule of q, k, v and p: ocp, tfs, oas, uos or q", *_shared("scale_rule", _mx, str), tuple(RULES)
    ),
    "q_max": Axis(
        "boundary q of the MX scale of q, k, v and p",
        _q_of,
        _shared("scale_rule", _mx, _q_max)[1],
        (6, 6.5, 7, 7.25, 7.5, 8),
    ),
    "p.scale_rule": Axis("MX scale rule of p alone", *_shared("scale_rule", _mx, str, "p"), tuple(RULES)),
    "row_sum": Axis(
        "denominator from exact or quantised exponentials", *_field("row_sum", str), ("exact", "quantised")
    ),
    "hadamard": Axis("rotate Q and K", *_stage(Hadamard, Hadamard), (False, True)),
    "hadamard_sign_seed": Axis(
        "seed of the rotation's random signs, or none",
        lambda spec: h.sign_seed if (h := spec.stage(Hadamard)) is not None else None,
        _sign_seed,
        (None, 1234),
    ),
    "k_mean": Axis("subtract K's mean", *_stage(KMean, KMean), (False, True)),
    "q_block_mean": Axis("subtract Q's block means", *_stage(QBlockMean, QBlockMean), (False, True)),
    "v_smooth": Axis(
        "V-Smooth, on or off",
        lambda spec: spec.v_smooth is not None,
        lambda spec, value: replace(spec, v_smooth=(spec.v_smooth or VSmooth()) if _flag(value) else None),
        (False, True),
    ),
    "v_smooth.layout": Axis("order of V-Smooth's tokens", *_smooth("layout", str), ("cluster", "sequence", "cube")),
    "v_smooth.clusters": Axis("clusters at most", *_smooth("clusters", _whole), (32, 64, 128)),
    "v_smooth.iterations": Axis("rounds of Lloyd's algorithm", *_smooth("iterations", _whole), (1, 4, 8)),
    "v_smooth.window": Axis("fraction of steps with grouping", *_smooth("window", _number), (0.25, 0.5, 1.0)),
    "v_smooth.refresh": Axis("active steps between groupings", *_smooth("refresh", _whole), (1, 4, 8)),
    "v_smooth.placement": Axis(
        "where the active steps lie", *_smooth("placement", str), ("leading", "uniform", "every")
    ),
    "exponential": Axis("exp2 or expcast", *_field("exponential", str), ("exp2", "expcast")),
    "kv_tile": Axis("keys per tile of the online softmax", *_field("kv_tile", _whole), (64, 128, 256)),
    "tensor_scale": Axis(
        "NVFP4's second-level scale of q, k and v", *_shared("tensor_scale", _nv, _flag, "qkv"), (False, True)
    ),
    "qk_format": Axis(
        "8-bit format of q and k: int8 or e4m3",
        lambda spec: spec.q.format if spec.q is not None and _eight_bit(spec.q) else None,
        _qk_format,
        ("int8", "e4m3"),
    ),
    "qk_granularity": Axis("scale groups of 8-bit q and k", *_shared("granularity", _eight_bit, str, "qk"), _COARSE),
    "v_granularity": Axis(
        "scale groups of 8-bit v", *_shared("granularity", _eight_bit, str, "v"), ("tensor", "channel")
    ),
    "rounding": Axis(
        "rounding of INT8 q and k", *_shared("rounding", lambda z: z.format == "int8", str, "qk"), ("rne", "half_away")
    ),
    "eps": Axis("added to the scales of 8-bit q and k", *_shared("eps", _eight_bit, _number, "qk"), (0.0, 1e-7)),
    "p.prescale": Axis(
        "factor on the exponentials before they are quantised",
        *_p_field("prescale", _number),
        (1.0, 256.0, 448.0, 2688.0),
    ),
    "p.divide_by": Axis("p divided by the stored or the exact scale", *_p_field("divide_by", str), ("stored", "exact")),
    "q.format": _operand_format("q"),
    "k.format": _operand_format("k"),
    "v.format": _operand_format("v"),
    "p.format": _operand_format("p"),
}


def apply(spec: AttentionSpec, name: str, value: Any) -> AttentionSpec:
    """``spec`` with one named axis at another value.

    Raises:
        UserError: no such axis, no such value, or a value that does not go with the rest of the spec.
    """
    if name not in AXES:
        raise unknown_name("field", name, AXES, hint="mxbench list fields")
    try:
        return AXES[name].set(spec, value)
    except UserError as error:
        raise UserError(f"{name}: {error.problem}", error.fix) from None


def with_axes(spec: AttentionSpec, values: Mapping[str, Any]) -> AttentionSpec:
    """``spec`` with several axes set, in the order given."""
    for name, value in values.items():
        spec = apply(spec, name, value)
    return spec
