"""What a render reports, and what it refuses."""

import copy

import pytest
import torch

from mxbench.errors import CellFailed, UserError
from mxbench.models import backend
from mxbench.policy import as_schedule


def test_a_render_reports_its_calls_times_and_steps(nano, tiny):
    steps = []
    render = nano.render("x", 0, tiny, as_schedule("fp8"), "auto", lambda done, total: steps.append((done, total)))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert render.calls == 3 * 2 * 8
    assert render.denoise_s > 0
    assert render.decode_s > 0
    assert render.latents.shape == (16, 2, 4, 4)


def test_nan_weights_fail_the_cell_with_the_step(nano, tiny):
    broken = copy.deepcopy(nano)
    broken.pipe.transformer_2.proj_out.bias.data[0] = float("nan")
    first_low = next(i for i, t in enumerate(_timesteps(nano, tiny)) if t < 875)
    with pytest.raises(CellFailed, match=f"from step {first_low}"):
        broken.render("x", 0, tiny, as_schedule("fp16"), "auto")


def _timesteps(nano, tiny):
    nano.pipe.scheduler.set_timesteps(tiny.steps)
    return nano.pipe.scheduler.timesteps


def test_the_self_test_sees_a_seam_that_changes_a_bit(nano, monkeypatch):
    honest = backend.stock

    def bent(q, k, v, options):
        return honest(q, k, v, options) * (1 + 1e-6)

    monkeypatch.setattr(backend, "stock", bent)
    with pytest.raises(UserError, match="the seam changes the output of transformer"):
        nano.self_test()


def test_inputs_of_the_seam_are_not_written_to(nano, tiny):
    def method(q, k, v):
        before = [t.clone() for t in (q, k, v)]
        from mxbench import METHODS, attend

        out = attend(q, k, v, METHODS["mxattn"])
        assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v), strict=True))
        return out

    nano.render("x", 0, tiny, as_schedule(method), "auto")
