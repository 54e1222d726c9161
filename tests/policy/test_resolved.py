"""What a schedule comes to, beside ``Schedule.at`` asked call by call."""

from mxbench.attention.methods import METHODS
from mxbench.policy import Rule, Schedule, Selector, Use, idle, resolved

FP16, MX = Use("fp16", METHODS["fp16"].spec), Use("mxattn", METHODS["mxattn"].spec)


def only(use, **where):
    kind = where.pop("kind", "self")
    return Rule(use, **{name: Selector.parse(value, name) for name, value in where.items()}, kind=kind)


def test_a_hybrid_policy_is_told_layer_by_layer_and_step_by_step():
    policy = Schedule("hybrid", (only(FP16, layers=0), only(FP16, steps=[-2, -1]), Rule(MX)))
    assert resolved(policy, 40, (0,) * 40, 1) == [
        "self-attention, steps 0-37: layer 0 fp16; layers 1-39 mxattn",
        "self-attention, steps 38-39: layers 0-39 fp16",
    ]
    assert idle(policy, 40, (0,) * 40, 1) == []
    assert policy.share(40, (0,) * 40, 1) == 39 * 38 / 1600


def test_experts_compute_as_many_steps_as_they_do():
    policy = Schedule("x", (only(MX, experts=1), Rule(FP16)))
    assert resolved(policy, 3, (0, 0, 0, 1), 2) == [
        "self-attention, steps 0-2 (expert 0): layers 0-2 fp16",
        "self-attention, step 3 (expert 1): layers 0-2 mxattn",
    ]
    assert policy.share(3, (0, 0, 0, 1), 2) == 0.75  # of what the last rule is about
    assert idle(policy, 3, (0, 0), 2) == ["rule 1 of 2 (mxattn) decides no call"]


def test_calls_that_no_rule_names_and_rules_that_name_none_are_said():
    part = Schedule("part", (only(MX, layers=1), only(MX, kind="cross", layers="0:2")))
    assert resolved(part, 3, (0, 0), 1) == [
        "self-attention, steps 0-1: layer 0 the model's own; layer 1 mxattn; layer 2 the model's own",
        "cross-attention, steps 0-1: layers 0-1 mxattn; layer 2 the model's own",
    ]
    after = Schedule("after", (Rule(MX), only(FP16, layers=0)))
    assert idle(after, 3, (0, 0), 1) == ["rule 2 of 2 (fp16) decides no call"]
    assert after.share(3, (0, 0), 1) == 0.0
