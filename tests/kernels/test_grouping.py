"""Lloyd's algorithm by a kernel against the one in plain torch: the same labels, but where two centres are as near."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from mxbench.attention import value
from mxbench.kernels.grouping import lloyd, suits
from mxbench.kernels.quantise_jit import INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def values(b: int, h: int, n: int, d: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    g = torch.Generator().manual_seed(n + d)
    centres = torch.randn(12, d, generator=g)
    which = torch.randint(0, 12, (b, h, n), generator=g)
    return (centres[which] + 0.7 * torch.randn(b, h, n, d, generator=g)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 2, 1, 32), (2, 1, 17, 80), (1, 1, 300, 64), (1, 2, 1100, 48)], ids=str)
@pytest.mark.parametrize("clusters", [5, 64])
def test_one_round_is_that_of_plain_torch(shape: tuple[int, ...], clusters: int, dtype: torch.dtype) -> None:
    v = values(*shape, dtype)
    start = value.first_centres(v, clusters)
    labels, centres = lloyd(v, clusters, 1)
    expected, moved = value.lloyd(v, clusters, 1)
    assert labels.dtype == torch.uint8
    assert int(labels.max()) < min(clusters, shape[2])
    assert (labels == expected).float().mean() > 0.999
    torch.testing.assert_close(centres, moved, rtol=1e-5, atol=1e-5)
    x, c = v.double(), start.double()
    nearest = (x[..., :, None, :] - c[..., None, :, :]).square().sum(-1)
    zero_rounds, same = lloyd(v, clusters, 0)
    assert torch.equal(same, start)
    chosen = nearest.gather(-1, zero_rounds.long()[..., None])[..., 0]
    assert ((chosen - nearest.amin(-1)) <= 1e-4 * (1 + x.square().sum(-1))).all()


def test_rounds_and_given_centres() -> None:
    v = values(1, 2, 700, 64)
    start = value.first_centres(v, 7) + 0.1
    labels, centres = lloyd(v, 7, 4, start)
    expected, moved = value.lloyd(v, 7, 4, start)
    assert (labels == expected).float().mean() > 0.99
    torch.testing.assert_close(centres, moved, rtol=1e-2, atol=1e-2)
    again, same = lloyd(v, 7, 4, start)
    assert torch.equal(labels, again)
    assert torch.equal(centres, same)


def test_neither_strides_nor_a_wider_type_change_it() -> None:
    v = values(2, 3, 333, 64)
    labels, centres = lloyd(v, 16, 3)
    for other in (v.transpose(1, 2).contiguous().transpose(1, 2), v.float(), v[..., :, :].clone()):
        got, moved = lloyd(other, 16, 3)
        assert torch.equal(got, labels)
        assert torch.equal(moved, centres)


def test_of_equal_distances_the_lowest_label_and_an_empty_cluster_keeps_its_centre() -> None:
    labels, centres = lloyd(torch.full((1, 2, 200, 32), 0.75, device=DEVICE), 64, 2)
    assert not labels.any()
    assert (centres == 0.75).all()
    far = torch.stack([torch.zeros(32), torch.full((32,), 100.0)])[None, None].to(DEVICE)
    labels, centres = lloyd(torch.full((1, 1, 50, 32), 1.0, device=DEVICE), 2, 1, far)
    assert not labels.any()
    assert (centres[0, 0, 0] == 1.0).all()
    assert (centres[0, 0, 1] == 100.0).all()


def test_a_row_that_is_not_finite_has_a_label() -> None:
    v = values(1, 1, 200, 32, torch.float32)
    v[0, 0, 3] = float("nan")
    v[0, 0, 5, 7] = float("inf")
    with np.errstate(all="ignore"):
        labels, _ = lloyd(v, 5, 2)
    assert int(labels.max()) < 5


def test_what_it_suits() -> None:
    assert suits(torch.zeros(1, 1, 9, 256, dtype=torch.float16), 256)
    assert suits(torch.zeros(1, 1, 9, 64), 1000)  # of nine tokens
    assert not suits(torch.zeros(1, 1, 900, 64), 257)
    assert not suits(torch.zeros(1, 1, 9, 257), 8)
    assert not suits(torch.zeros(1, 1, 9, 64, dtype=torch.float64), 8)


@pytest.mark.slow
def test_the_kernels_compile_for_hopper_and_do_not_spill_in_bf16() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    program = [sys.executable, str(Path(__file__).with_name("grouping_compile.py"))]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 36  # clusters, types, widths, both kernels
    assert not [line for line in lines[:6] if not line.endswith("spills 0")]


@pytest.mark.gpu
def test_a_grouping_of_a_render_is_the_kernel_s_for_every_impl() -> None:
    from mxbench import METHODS, attend
    from mxbench.attention.site import Site
    from mxbench.attention.value import GroupingState
    from mxbench.dispatch import lloyd as of_the_device

    assert not INTERPRETED
    g = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1, 2, 3000, 128, generator=g, device="cuda").bfloat16() for _ in range(3))
    site = Site(expert=0, layer=0, n_layers=1, kind="self", step=0, n_steps=4)
    outs, orders = [], []
    for impl in ("reference", "conformance"):
        state = GroupingState(lloyd=of_the_device)
        wide = (x.float() for x in (q, k, v)) if impl == "reference" else (q, k, v)
        outs.append(attend(*wide, METHODS["vc8"].spec, impl=impl, site=site, state=state).float())
        (grouping,) = state.groupings.values()
        orders.append(grouping.order)
    assert torch.equal(*orders)
    assert float((outs[1] - outs[0].bfloat16()).norm() / outs[0].norm()) < 3e-3  # the rounding of BF16
