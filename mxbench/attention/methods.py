"""METHODS: the named points of the space, one literal table.

A method that is one field away from another needs no entry: recipes write ``{base: mxattn, row_sum: exact}``.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxbench.attention.spec import AttentionSpec, Hadamard, KMean, QBlockMean, VSmooth
from mxbench.errors import unknown_name
from mxbench.formats.quantizer import Quantizer

__all__ = ["METHODS", "Method", "method"]


@dataclass(frozen=True, slots=True)
class Method:
    """A named spec.

    Attributes:
        label: how tables print it.
        spec: what it computes.
        source: the paper or specification that defines it.
    """

    label: str
    spec: AttentionSpec
    source: str


def _mx(rule: str) -> Quantizer:
    return Quantizer("mxfp4", scale_rule=rule)


def _direct_mx(rule: str) -> AttentionSpec:
    return AttentionSpec(q=_mx(rule), k=_mx(rule), v=_mx(rule), p=_mx(rule))


_NV = Quantizer("nvfp4")
_NV_TENSOR = Quantizer("nvfp4", tensor_scale=True)
_NV_TWO_LEVEL = Quantizer("nvfp4", prescale=2688.0, divide_by="exact")
_FP8_TENSOR = Quantizer("e4m3", "tensor")
_FP8_CHANNEL = Quantizer("e4m3", "channel")
_FP8_P = Quantizer("e4m3", "unit", prescale=256.0)
_SAGE_INT8 = Quantizer("int8", "sage_threads", rounding="half_away", eps=1e-7)
_INT8_ROWS = Quantizer("int8", "rows")

METHODS: dict[str, Method] = {
    "fp16": Method("FP16", AttentionSpec(), "softmax attention, nothing quantised"),
    "mxfp4": Method("MXFP4 (OCP)", _direct_mx("ocp"), "MXAttention paper, section 5.2; OCP MX v1.0"),
    "mxfp4-tfs": Method(
        "MXFP4 (TFS)", _direct_mx("tfs"), "TetraJet's truncation-free scaling, in MXAttention section 3"
    ),
    "mxfp4-oas": Method("MXFP4 (OAS)", _direct_mx("oas"), "overflow-aware scaling, in MXAttention appendix G"),
    "mxattn": Method(
        "MXAttention",
        AttentionSpec(q=_mx("uos"), k=_mx("uos"), v=_mx("uos"), p=_mx("uos"), qk=(Hadamard(),), row_sum="quantised"),
        "MXAttention paper, Algorithms 1 and 2",
    ),
    "nvfp4": Method(
        "NVFP4", AttentionSpec(q=_NV_TENSOR, k=_NV_TENSOR, v=_NV_TENSOR, p=_NV), "MXAttention paper, section 5.2"
    ),
    "nvfp4-sage": Method(
        "NVFP4 + SageAttention",
        AttentionSpec(q=_NV, k=_NV, v=_NV, p=_NV_TWO_LEVEL, qk=(KMean(), QBlockMean())),
        "SageAttention3, arXiv:2505.11594",
    ),
    "sage2": Method(
        "SageAttention2",
        AttentionSpec(
            q=_SAGE_INT8,
            k=_SAGE_INT8,
            v=_FP8_CHANNEL,
            p=Quantizer("e4m3", "unit", prescale=448.0),
            qk=(KMean(),),
        ),
        "SageAttention2, arXiv:2411.10958, the public sm90 path",
    ),
    "fp8": Method(
        "FP8", AttentionSpec(q=_FP8_TENSOR, k=_FP8_TENSOR, v=_FP8_TENSOR, p=_FP8_P), "E4M3 operands, one scale per head"
    ),
    "vc8": Method(
        "VC-Attention (8-bit)",
        AttentionSpec(
            q=_INT8_ROWS,
            k=_INT8_ROWS,
            v=_FP8_CHANNEL,
            p=_FP8_P,
            qk=(KMean(), Hadamard()),
            v_smooth=VSmooth(),
            row_sum="quantised",
            exponential="expcast",
        ),
        "VC-Attention, arXiv:2609.15810, section 3",
    ),
    "vc4": Method(
        "VC-Attention (4-bit)",
        AttentionSpec(q=_NV, k=_NV, v=_NV, p=_NV_TWO_LEVEL, qk=(KMean(), Hadamard()), v_smooth=VSmooth()),
        "VC-Attention, arXiv:2609.15810, section 3",
    ),
}


def method(name: str) -> Method:
    """The entry of a name.

    Raises:
        UserError: no such method; the nearest names are offered.
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS, hint="mxbench list methods")
    return METHODS[name]
