"""On a CUDA device: its clock, and a small run."""

import pytest
import torch

from mxbench.bench.run import bench
from mxbench.bench.timing import CudaClock

pytestmark = pytest.mark.gpu


def test_the_clock_of_a_device_times_the_device():
    device = torch.device("cuda:0")
    clock, x = CudaClock(device), torch.randn(2048, 2048, device=device)
    result, milliseconds = clock.time(lambda: x @ x)
    assert result.shape == x.shape
    assert milliseconds > 0


def test_the_kernels_are_right_and_timed_in_halves():
    found = bench(shapes=["1x2x1000x128:777", "2x3x129x64"], peers=["torch-sdpa"], reps=2)
    for shape in found.shapes:
        rows = [row for row in shape.rows if row.method]
        assert {row.impl for row in rows} >= {"conformance", "fast"}
        assert {(row.status, row.reason) for row in rows} == {("measured", "")}
        for row in rows:
            assert row.error <= row.allowed
            if row.impl in ("conformance", "fast"):
                assert row.prepass.median > 0
                assert row.kernel.median > 0


def test_a_small_run_is_right():
    found = bench(shapes=["1x2x1000x128:777"], methods=["fp16", "mxattn", "vc8"], impls=["reference"], reps=2)
    rows = {row.method or row.impl: row for row in found.shapes[0].rows}
    assert {row.status for row in rows.values()} <= {"measured", "absent"}
    assert rows["vc8"].prepass_of_copy > 0
    assert found.shapes[0].base is not None
    assert "unknown" not in found.provenance["driver"]
