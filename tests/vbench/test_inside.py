"""What runs beside vbench, without vbench: reasons in whole words, and peaks of memory that are a dimension's own."""

from __future__ import annotations

import errno
import importlib.util
import platform
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "mxbench/vbench/inside/worker.py"
spec = importlib.util.spec_from_file_location("inside_worker", FILE)
inside = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = inside
spec.loader.exec_module(inside)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_folder_is_named(number):
    error = OSError(number, "No space left on device")
    scratch = Path("/scratch/mxbench-vbench-x")
    assert inside._reason(error, scratch) == "/scratch is full (No space left on device)"
    error.filename = "/elsewhere/file"
    assert inside._reason(error, scratch) == "/elsewhere/file is full (No space left on device)"
    assert inside._reason(OSError(errno.EIO, "bad disk"), scratch) == f"OSError: [Errno {errno.EIO}] bad disk"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone gives memory back on demand")
def test_a_peak_is_forgotten_with_what_was_freed():
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"the system forgets no peaks: {error}")
    small = [bytearray(60_000) for _ in range(3_000)]  # of the allocator's heap, which keeps what lies under its end
    pin = bytearray(60_000)
    before = inside._peak()
    del small
    inside._forget_peaks("cpu")
    assert inside._peak() < before - 100_000_000
    assert len(pin) == 60_000
