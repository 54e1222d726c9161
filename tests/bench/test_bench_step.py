"""A denoising step timed on tiny random weights: which forwards and calls count, and that nothing is left behind."""

import itertools

import numpy as np
import pytest
import torch

from mxbench import METHODS
from mxbench.bench import step
from mxbench.errors import UserError
from mxbench.models import facts, load

NAMES = ["wan2.2", "hunyuanvideo", "minimax-h3"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=NAMES)
def chosen(request):
    return load(request.param, "cpu", "random:tiny", None, None), facts(request.param, "random:tiny", None).sampling


class Ticks:
    """A clock that is one millisecond later at every look: what lies between two marks is what was marked between."""

    count = itertools.count()

    def __init__(self, device):
        assert device == torch.device("cpu")

    def mark(self):
        return next(self.count)

    def between(self, one, other):
        return float(other - one)


def hooks(model):
    parts = [m for t in step._transformers(model) for m in t.modules()]
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in parts)


def test_each_forward_holds_its_calls_of_self_attention(chosen, monkeypatch):
    model, sampling = chosen
    monkeypatch.setattr(step, "_Watch", Ticks)
    before = hooks(model)
    with torch.no_grad():
        found = step.forwards(model, METHODS["vc8"].spec, "reference", sampling, device=CPU, steps=2, prompt="x")
    layers = max(site.layer for site in model.family.sites(step._transformers(model)[0])) + 1
    branches = 2 if model.NAME == "wan2.2" else 1
    assert [f.step for f in found] == [s for s in (0, 1) for _ in range(branches)]
    assert {f.calls for f in found} == {layers}
    assert {f.attention_ms for f in found} == {float(layers)}  # a tick each
    assert {f.ms for f in found} == {2.0 * layers + 1}  # its own marks, and two a call
    assert hooks(model) == before
    again = model.call("x", sampling, torch.Generator().manual_seed(0))
    assert np.isfinite(again).all()  # a pipeline that was left midway renders


def test_more_steps_than_the_render_has_are_all_of_them(chosen, monkeypatch):
    model, sampling = chosen
    monkeypatch.setattr(step, "_Watch", Ticks)
    with torch.no_grad():
        found = step.forwards(model, METHODS["fp16"].spec, "sdpa", sampling, device=CPU, steps=99, prompt="x")
    assert max(f.step for f in found) == sampling.steps - 1


def test_the_table_and_its_ratios():
    def of(*ms):
        return tuple(step.Forward(i, m, m / 4, 40) for i, m in enumerate(ms))

    slow = step.Stepped("fp16", "sdpa", of(300.0, 200.0, 220.0), None)
    fast = step.Stepped("vc8", "fast", of(900.0, 105.0), 3 * 2**30)
    lines = step.table([slow, fast]).splitlines()
    assert lines[2] == "| fp16 | sdpa | 210 | 1.00 | 300 | 52 | 25% | 40 | – |"
    assert lines[3] == "| vc8 | fast | 105 | 2.00 | 900 | 26 | 25% | 40 | 3.0 |"
    assert "| – |" in step.table([fast])


def test_the_command_says_what_was_measured(capsys):
    step.main(["--weights", "random:tiny", "--device", "cpu", "--method", "fp16", "--method", "mxattn"])
    out, err = capsys.readouterr()
    assert "* command: python -m mxbench.bench.step --weights random:tiny --device cpu --method fp16" in out
    assert "random weights" in out and "tokens a call" in out
    assert "| fp16 | sdpa |" in out and "| mxattn | reference |" in out
    assert "mxattn: " in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "mxatn"], "mxattn"),
        (["--model", "wan"], "wan2.2"),
        (["--steps", "1"], "told apart"),
        (["--weights", "random:tiny", "--steps", "9"], "the render has 4"),
        (["--weights", "random:tiny", "--steps", "4"], "the render has 4, and is stopped before its end"),
        (["--weights", "random:tiny", "--device", "cpu", "--impl", "fast"], "cannot compute"),
        (["--device", "cpu"], "not built on a CPU"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments, said):
    with pytest.raises(UserError, match=said):
        step.main(arguments)
