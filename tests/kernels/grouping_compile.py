"""Compiles the kernels of V-Smooth's grouping for Hopper, without a device, and prints registers and spills.

Fails where one asks for more shared memory than there is. Run by ``test_grouping.py`` in a process of its own, since
Triton's interpreter takes the compiler's place for good.
"""

from __future__ import annotations

import torch
from prepass_compile import Compiled

from mxbench.kernels import grouping

if __name__ == "__main__":
    for name in ("assign_kernel", "total_kernel"):
        setattr(grouping, name, Compiled(getattr(grouping, name)))
    for clusters in (64, 256):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for d in (64, 128, 256):
                grouping.lloyd(torch.zeros(1, 4, 3000, d, dtype=dtype), clusters, 1)
