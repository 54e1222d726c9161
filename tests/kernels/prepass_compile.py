"""Compiles what the pre-pass launches for Hopper, without a device, and prints registers and spills of each kernel.

``python prepass_compile.py CHANNELS [METHOD...]``.

Run by ``test_prepass.py`` in a process of its own, since Triton's interpreter takes the compiler's place for good.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from mxbench import METHODS
from mxbench.kernels import prepass, prepass_launch

TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

SHARED = 227 * 1024  # bytes of shared memory that a program can have on Hopper


class Compiled:
    """Stands in for a kernel: compiles a launch in place of running it."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.seen: set[str] = set()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.launch

    def launch(self, *args: Any, **constants: Any) -> None:
        names = [p.name for p in self.kernel.params]
        bound = dict(zip(names, args, strict=False)) | {n: c for n, c in constants.items() if n in names}
        options = {n: c for n, c in constants.items() if n not in names}
        signature, constexprs, attributes = {}, {}, {}
        for i, parameter in enumerate(self.kernel.params):
            value = bound[parameter.name]
            if isinstance(value, TensorDescriptor):
                kind = TYPES[value.base.dtype].removeprefix("*")
                signature[parameter.name] = f"tensordesc<{kind}{list(value.block_shape)}>"
            elif isinstance(value, torch.Tensor):
                signature[parameter.name] = TYPES[value.dtype]
                attributes[(i,)] = [["tt.divisibility", 16]]
            elif parameter.is_constexpr or value is None or value == 1:
                signature[parameter.name] = "constexpr"
                constexprs[(i,)] = value
            else:
                signature[parameter.name] = "i32"
                if value % 16 == 0:
                    attributes[(i,)] = [["tt.divisibility", 16]]
        key = str((signature, constexprs, attributes, options))
        if key in self.seen:
            return
        self.seen.add(key)
        source = ASTSource(self.kernel, signature=signature, constexprs=constexprs, attrs=attributes)
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        told = [str(c) for i, c in constexprs.items() if names[i[0]] in ("FORMAT", "GRAIN", "HOLD", "PIECES")]
        assert built.metadata.shared <= SHARED, f"{self.kernel.__name__} asks for {built.metadata.shared} bytes shared"
        print(self.kernel.__name__, *told, *resources(built.asm["cubin"]))


def resources(cubin: bytes) -> tuple[str, str]:
    """Registers, and bytes of spills: what the machine code keeps in local memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        report = subprocess.run([CUOBJDUMP, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", report))
    return f"registers {found['REG']}", f"spills {int(found['STACK']) + int(found['LOCAL'])}"


def main(channels: int, methods: list[str]) -> None:
    """The specialisations of methods (of all, where none is named), with the strides that diffusers hands over."""
    read, owed = ("sums_kernel", "largest_kernel"), ("pieces_kernel", "owed_kernel", "endless_kernel")
    for name in (*read, *owed, "prepared_kernel", "quantise_kernel"):
        setattr(prepass_launch, name, Compiled(getattr(prepass_launch, name)))
    hold_one = prepass._operand

    def both(asked: Any, lost: Any, *, lift: bool) -> Any:
        """As it is and moved by powers of two, which is asked for where values are."""
        if lost is not None:
            hold_one(asked, lost, lift=True)
        return hold_one(asked, lost, lift=lift)

    prepass._operand = both
    q, k, v = (torch.zeros(1, 384, 4, channels, dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
    for method in (METHODS[name] for name in methods or METHODS):
        for path in ("conformance", "fast"):
            if prepass.reason(method.spec, path, q.dtype) is None:
                prepass.hold(q, k, v, method.spec, path)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
