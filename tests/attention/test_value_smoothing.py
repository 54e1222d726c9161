"""V-Smooth within one call: the grouping, the layouts, the schedules, and what is left after the means."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import oracle_formats
import oracle_methods
import pytest
import smoothing_simulation as simulate
import torch
from attention_cases import SMOOTH, distance, grid, normal, reference

from mxbench import METHODS, attend
from mxbench.attention.axes import with_axes
from mxbench.attention.site import Site
from mxbench.attention.spec import VSmooth
from mxbench.attention.value import GroupingState, active_steps, arrange, lloyd, smooth_value
from mxbench.errors import UserError
from mxbench.formats.quantizer import Quantizer


def clustered(b: int, h: int, n: int, d: int, k: int = 9, seed: int = 0, spread: float = 1.0) -> torch.Tensor:
    """Rows near one of k distant centres, in random order."""
    g = torch.Generator().manual_seed(seed)
    centres = 10 * torch.randn(b, h, k, d, generator=g)
    labels = torch.randint(0, k, (b, h, n), generator=g)
    return centres.take_along_dim(labels[..., None], 2) + spread * torch.randn(b, h, n, d, generator=g)


def site(step: int = 0, n_steps: int = 16, **fields: Any) -> Site:
    return Site(**{"expert": 0, "layer": 0, "n_layers": 2, "kind": "self", "step": step, "n_steps": n_steps, **fields})


def order_of(v: torch.Tensor, smooth: VSmooth, where: Site | None = None) -> torch.Tensor:
    order, means = arrange(v, smooth, where, GroupingState() if where is not None else None)
    assert means
    assert order is not None
    return order


@pytest.mark.parametrize("n", [1, 2, 17, 63, 64, 65, 300])
def test_grouping_agrees_with_the_oracle_on_separated_clusters(n: int) -> None:
    v = clustered(2, 3, n, 32)
    order = order_of(v, VSmooth())
    for b in range(2):
        for h in range(3):
            assert order[b, h].tolist() == oracle_methods.group_tokens(v[b, h].numpy()).tolist()


@pytest.mark.parametrize("offset", [0.0, 3.0])
@pytest.mark.parametrize(("clusters", "iterations"), [(64, 4), (7, 1), (7, 0), (1, 3), (500, 2)])
def test_labels_and_centres(offset: float, clusters: int, iterations: int) -> None:
    v = clustered(1, 2, 200, 24, k=12, spread=0.5) + offset
    labels, centres = lloyd(v, clusters, iterations)
    for h in range(2):
        expected, expected_centres = simulate.lloyd(v[0, h].numpy(), clusters, iterations)
        assert labels[0, h].tolist() == expected.tolist()
        assert centres[0, h].numpy() == pytest.approx(expected_centres, rel=1e-6, abs=1e-5)


def test_centres_to_start_from() -> None:
    v = clustered(1, 1, 150, 16, k=5, spread=1.0)
    warm = v[:, :, 10:15] + 0.5
    labels, centres = lloyd(v, 5, 2, warm)
    expected, expected_centres = simulate.lloyd(v[0, 0].numpy(), 5, 2, warm[0, 0].numpy())
    assert labels[0, 0].tolist() == expected.tolist()
    assert centres[0, 0].numpy() == pytest.approx(expected_centres, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("n", [3, 17, 64, 129, 250])
@pytest.mark.parametrize("value", [0.0, 0.1, -3.3, 1e4])
def test_ties_go_to_the_lowest_label(n: int, value: float) -> None:
    labels, _ = lloyd(torch.full((1, 2, n, 24), value), 64, 0)
    assert not labels.any()
    assert order_of(torch.full((1, 2, n, 24), value), VSmooth())[0, 0].tolist() == list(range(n))
    v = torch.tensor([[-1.0], [0.0], [1.0]]).repeat(1, 8)[None, None]
    labels, _ = lloyd(v, 2, 0)  # centres at -1 and 1: the middle is as far from both
    assert labels[0, 0].tolist() == [0, 0, 1]


def test_an_empty_cluster_keeps_its_centre() -> None:
    v = clustered(1, 1, 40, 8, k=2)
    far = torch.full((1, 1, 1, 8), 1e3)
    start = torch.cat([v[:, :, :1], far, v[:, :, :1]], 2)  # the third loses every tie
    labels, centres = lloyd(v, 3, 4, start)
    assert set(labels.unique().tolist()) <= {0, 2}
    assert torch.equal(centres[:, :, 1:2], far)


def test_a_large_tensor_is_grouped_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from mxbench.attention import value as module

    v = clustered(2, 3, 70, 8)
    expected = lloyd(v, 64, 4)
    monkeypatch.setattr(module, "_CHUNK", 1)
    got = lloyd(v, 64, 4)
    assert torch.equal(got[0], expected[0])
    assert torch.allclose(got[1], expected[1])


@pytest.mark.parametrize("grid_", [(2, 8, 8), (1, 1, 1), (3, 9, 17), (5, 7, 3), (4, 16, 8), (1, 20, 9)])
@pytest.mark.parametrize("text", [0, 13])
def test_cubes_against_loops(grid_: tuple[int, int, int], text: int) -> None:
    n = math.prod(grid_) + text
    order = order_of(torch.zeros(1, 2, n, 4), VSmooth(layout="cube"), site(grid=grid_))
    assert order[0, 1].tolist() == simulate.cube_order(grid_) + list(range(n - text, n))


@pytest.mark.parametrize("layout", ["cluster", "sequence", "cube"])
def test_text_stays_behind_the_video(layout: Any) -> None:
    v = clustered(1, 2, 2 * 8 * 9 + 20, 16)
    order = order_of(v, VSmooth(layout=layout), site(grid=(2, 8, 9)))
    assert order[..., 144:].tolist() == [[list(range(144, 164))] * 2]
    assert torch.equal(order.sort(-1).values, torch.arange(164).expand(1, 2, 164))
    if layout == "cluster":
        assert order[0, 0, :144].tolist() == oracle_methods.group_tokens(v[0, 0, :144].numpy()).tolist()


def test_a_cube_needs_its_grid_and_its_tokens() -> None:
    v = torch.zeros(1, 1, 100, 4)
    for where in (None, site()):
        with pytest.raises(UserError, match="the cube layout needs the latent grid"):
            arrange(v, VSmooth(layout="cube"), where, GroupingState())
    with pytest.raises(UserError, match="needs all 128 tokens of the latent grid, and there are 100"):
        arrange(v, VSmooth(layout="cube"), site(grid=(2, 8, 8)), GroupingState())
    with pytest.raises(UserError, match="pass a GroupingState as state"):
        arrange(v, VSmooth(), site(), None)


@pytest.mark.parametrize("n_steps", [1, 2, 3, 4, 7, 10, 16, 20, 30, 40, 50])
@pytest.mark.parametrize("window", ["0.25", "0.1", "0.55", "0.14", "0.7", "1.0"])
def test_schedules(n_steps: int, window: str) -> None:
    n = math.ceil(Fraction(window) * n_steps)
    for placement in ("leading", "uniform", "every"):
        smooth = VSmooth(window=float(window), placement=placement)  # type: ignore[arg-type]
        steps = active_steps(smooth, n_steps)
        assert steps == simulate.Simulation(window=window, placement=placement).active(n_steps)
        assert len(steps) == (n_steps if placement == "every" else n)
        assert steps[0] == 0
        assert steps == sorted(set(steps))
        assert steps[-1] < n_steps


def test_the_schedule_of_the_paper() -> None:
    assert active_steps(VSmooth(), 40) == list(range(10))
    assert active_steps(VSmooth(), 50) == list(range(13))
    assert active_steps(VSmooth(placement="uniform"), 16) == [0, 4, 8, 12]


@pytest.mark.parametrize("name", SMOOTH)
def test_grouping_tokens_is_handing_them_over_in_that_order(name: str) -> None:
    q, k, v = grid(1, 2, 40, 64), grid(1, 2, 256, 64, seed=1) + 20, grid(1, 2, 256, 64, seed=2)
    order = order_of(v, METHODS[name].spec.v_smooth or VSmooth())[..., None]
    assert (order.diff(dim=2) < 0).any()
    in_order = attend(
        q,
        k.take_along_dim(order, 2),
        v.take_along_dim(order, 2),
        with_axes(METHODS[name].spec, {"v_smooth.layout": "sequence"}),
        impl="reference",
    )
    assert torch.equal(in_order, reference(name, q, k, v))


@pytest.mark.parametrize("name", SMOOTH)
def test_permuting_queries_or_heads_permutes_the_output(name: str) -> None:
    q, k, v = grid(1, 3, 40, 64), grid(1, 3, 200, 64, seed=1), grid(1, 3, 200, 64, seed=2)
    rows = torch.randperm(40, generator=torch.Generator().manual_seed(4))
    expected = reference(name, q, k, v)
    assert distance(reference(name, q[:, :, rows], k, v), expected[:, :, rows].double().numpy()) < 2e-3
    heads = [2, 0, 1]
    assert distance(reference(name, q[:, heads], k[:, heads], v[:, heads]), expected[:, heads].double().numpy()) < 2e-3


@pytest.mark.parametrize("quantizer", [Quantizer("nvfp4"), Quantizer("e4m3", "channel")], ids=str)
def test_clustering_lowers_the_error_of_shuffled_clusters(quantizer: Quantizer) -> None:
    shuffle = torch.randperm(1024, generator=torch.Generator().manual_seed(1))
    v = (10 * normal(4, 32)).repeat_interleave(256, 0)[shuffle][None, None] + normal(1, 1, 1024, 32, seed=1)
    errors = []
    for layout in ("cluster", "sequence"):
        order = order_of(v, VSmooth(layout=layout, clusters=4))  # type: ignore[arg-type]
        ordered = v.take_along_dim(order[..., None], 2)
        got = smooth_value(ordered, quantizer, means=True)
        assert got.mean is not None
        errors.append((got.residual + got.mean.repeat_interleave(128, 2) - ordered).norm() / v.norm())
    assert errors[0] < 0.2 * errors[1]


@pytest.mark.parametrize("n", [1, 100, 128, 129, 300])
def test_what_smoothing_stores(n: int) -> None:
    v = normal(1, 2, n, 24) + 3
    starts = list(range(0, n, 128))
    means = [v[:, :, i : i + 128].double().mean(2, keepdim=True).float().numpy() for i in starts]
    mu = np.concatenate([np.repeat(m, min(128, n - i), 2) for m, i in zip(means, starts, strict=True)], 2)
    x = v.numpy() - mu

    # A mean that is one ulp off may flip a tie: nearly all is equal.
    four = smooth_value(v, Quantizer("nvfp4"), means=True)
    assert np.abs(four.residual.numpy() - oracle_formats.nvfp4(x, -2)).mean() <= 1e-3
    assert four.mean is not None
    assert four.mean.numpy() == pytest.approx(oracle_formats.bf16(mu)[:, :, starts], rel=2**-7)
    assert torch.equal(four.mean, four.mean.bfloat16().float())

    eight = smooth_value(v, Quantizer("e4m3", "channel"), means=True)
    _, scale = oracle_formats.scaled_codes(x, "e4m3", "channel")
    assert np.abs(eight.residual.numpy() - oracle_formats.scaled(x, "e4m3", "channel")).mean() <= 1e-4
    assert eight.mean is not None
    assert eight.mean.numpy() == pytest.approx((oracle_formats.bf16(mu / scale) * scale)[:, :, starts], rel=2**-7)


def test_what_stays_plain() -> None:
    v = normal(1, 2, 200, 24)
    for quantizer in (None, Quantizer("nvfp4"), Quantizer("e4m3", "channel")):
        assert smooth_value(v, quantizer, means=False).mean is None
    exact = smooth_value(v, None, means=True)
    assert exact.mean is None
    assert torch.equal(exact.residual, v)
