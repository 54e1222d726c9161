"""Compiles the kernel of V-Smooth's grouping for Hopper, without a device, and prints registers and spills.

Run by ``test_grouping.py`` in a process of its own, since Triton's interpreter takes the compiler's place for good.
"""

from __future__ import annotations

import torch
from prepass_compile import Compiled

from mxbench.kernels import grouping

if __name__ == "__main__":
    grouping.assign_kernel = Compiled(grouping.assign_kernel)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for d in (64, 128):
            grouping.lloyd(torch.zeros(1, 4, 3000, d, dtype=dtype), 64, 1)
