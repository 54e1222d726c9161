"""``AttentionSpec`` and ``METHODS`` as data: what is refused, ids, and the facts of the table."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from mxbench.attention.methods import METHODS, method
from mxbench.attention.spec import AttentionSpec, Hadamard, KMean, QBlockMean, VSmooth
from mxbench.errors import UserError
from mxbench.formats.quantizer import Quantizer

MX = Quantizer("mxfp4")
FP8 = Quantizer("e4m3", "tensor")
P8 = Quantizer("e4m3", "unit", prescale=256)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"row_sum": "quantized"}, "unknown row_sum 'quantized'; did you mean quantised"),
        ({"exponential": "exp"}, "unknown exponential 'exp'; did you mean exp2"),
        ({"exponential": "expcast"}, "expcast writes E4M3 codes of 256·P; give p the format e4m3 and the prescale 256"),
        ({"exponential": "expcast", "p": replace(P8, prescale=448)}, "expcast writes E4M3 codes"),
        ({"qk": (Hadamard(), KMean())}, "the stages of qk repeat or stand in another order"),
        ({"qk": (KMean(), KMean())}, "the stages of qk repeat"),
        ({"q": replace(MX, prescale=2)}, "q has a prescale or divide_by of its own"),
        ({"v": Quantizer("nvfp4", divide_by="exact")}, "v has a prescale or divide_by of its own"),
        ({"k": P8}, "k has a prescale"),
        ({"k": Quantizer("e4m3", "unit")}, "k cannot have the granularity 'unit'"),
        ({"v": Quantizer("int8", "rows")}, "v cannot have the granularity 'rows'; use 'channel' or 'tensor'"),
        ({"p": FP8}, "p cannot have the granularity 'tensor'; use 'unit'"),
        ({"p": Quantizer("nvfp4", tensor_scale=True)}, r"p has a tensor_scale; use p\.prescale"),
        ({"p": MX, "kv_tile": 48}, "kv_tile 48 is no multiple of 32"),
        ({"kv_tile": 0}, "kv_tile 0 is no multiple of 1"),
        ({"v": FP8, "v_smooth": VSmooth(), "kv_tile": 256}, "kv_tile 256 does not divide V-Smooth's blocks of 128"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        AttentionSpec(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layout": "cubes"}, "unknown v_smooth.layout 'cubes'; did you mean cube"),
        ({"placement": "first"}, "unknown v_smooth.placement 'first'; use one of every, leading, uniform"),
        ({"clusters": 0}, "v_smooth has clusters 0"),
        ({"iterations": -1}, "iterations -1"),
        ({"refresh": 0}, "refresh 0"),
        ({"window": 0}, "window 0 is no fraction"),
        ({"window": 1.5}, "window 1.5 is no fraction"),
        ({"window": float("nan")}, "window nan is no fraction"),
    ],
)
def test_v_smooth_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        VSmooth(**fields)


def test_stages_refuse() -> None:
    with pytest.raises(UserError, match="use a positive number of rows"):
        QBlockMean(0)
    for seed in (-1, 2**63):
        with pytest.raises(UserError, match=f"hadamard_sign_seed {seed} is no seed"):
            Hadamard(seed)


def test_a_spec_is_frozen_hashable_and_can_be_pickled() -> None:
    spec = METHODS["vc8"].spec
    with pytest.raises((FrozenInstanceError, AttributeError)):
        spec.kv_tile = 64  # type: ignore[misc]
    assert hash(spec) == hash(replace(spec))
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_ids_are_distinct_short_and_of_equal_computations_equal() -> None:
    ids = {name: entry.spec.id for name, entry in METHODS.items()}
    assert len(set(ids.values())) == len(METHODS)
    assert all(len(i) == 12 and int(i, 16) >= 0 for i in ids.values())
    one = AttentionSpec(p=Quantizer("e4m3", "unit", prescale=256), v=Quantizer("int8", "channel", eps=0))
    assert one.id == AttentionSpec(p=P8, v=Quantizer("int8", "channel")).id
    assert (
        AttentionSpec(q=Quantizer("mxfp4", scale_rule="7.25")).id == AttentionSpec(q=replace(MX, scale_rule="uos")).id
    )
    whole = AttentionSpec(v=FP8, v_smooth=VSmooth(window=1))
    assert whole.id == AttentionSpec(v=FP8, v_smooth=VSmooth(window=1.0)).id


def test_the_table_is_canonical() -> None:
    for entry in METHODS.values():
        assert entry.spec.canonical() == entry.spec
        assert entry.label
        assert entry.source


def test_the_full_expansion_is_plain_data() -> None:
    for entry in METHODS.values():
        data = json.loads(json.dumps(entry.spec.to_dict()))
        assert set(data) == {"q", "k", "v", "p", "qk", "v_smooth", "row_sum", "exponential", "kv_tile"}
    assert METHODS["nvfp4-sage"].spec.to_dict()["qk"] == [{"stage": "k_mean"}, {"stage": "q_block_mean", "rows": 128}]
    assert METHODS["mxattn"].spec.to_dict()["qk"] == [{"stage": "hadamard", "sign_seed": None}]


def test_bits() -> None:
    assert METHODS["mxattn"].spec.bits == dict.fromkeys("qkvp", 4.25)
    assert METHODS["nvfp4-sage"].spec.bits == dict.fromkeys("qkvp", 4.5)
    assert METHODS["vc8"].spec.bits == dict.fromkeys("qkvp", 8.0)
    assert METHODS["fp16"].spec.bits == dict.fromkeys("qkvp", 16.0)
    assert not METHODS["fp16"].spec.quantised
    assert all(entry.spec.quantised for name, entry in METHODS.items() if name != "fp16")


def test_a_name_that_is_no_method() -> None:
    assert method("vc8") is METHODS["vc8"]
    with pytest.raises(UserError, match=r"unknown method 'mxatn'; did you mean mxattn\? \(mxbench list methods"):
        method("mxatn")
