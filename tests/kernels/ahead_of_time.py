"""Compile the kernels for devices that are not there: run as a program, without TRITON_INTERPRET.

``python ahead_of_time.py fused METHOD,HOLD_QK,HOLD_PV,D[,FIELD=VALUE...] ...`` prints a JSON list: what the assembly
for sm90 multiplies, exponentials that flush subnormals, registers and spills. Fields are those of
``Config``, and ``kv_tile``.
``python ahead_of_time.py native METHOD,ARCH ...``: the matrix instructions for ``sm100`` or ``gfx950``.
"""

from __future__ import annotations

import dataclasses
import json
import os
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

from mxbench import METHODS, AttentionSpec
from mxbench.attention.spec import QBlockMean
from mxbench.kernels.fused import choice, constants, owed_suits
from mxbench.kernels.fused_jit import fused_kernel
from mxbench.kernels.held import Held
from mxbench.kernels.native import native_constants
from mxbench.kernels.native_jit import native_kernel

SIZES = ("NQ", "NK", "NKS", "NVS")  # multiples of 16, as a launch finds out
SM90 = GPUTarget("cuda", 90, 32)
TYPES = {
    "float32": ("fp32", torch.float32),
    "bfloat16": ("bf16", torch.bfloat16),
    "e5m2": ("fp8e5", torch.float8_e5m2),
    "e4m3": ("fp8e4nv", torch.float8_e4m3fn),
    "int8": ("i8", torch.int8),
}


def held(spec: AttentionSpec, hold_qk: str, hold_pv: str, d: int, n: int = 1024) -> Held:
    """Operands without values, as the pre-pass shapes them."""

    def factor(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device="meta")

    qk, pv = TYPES[hold_qk][1], TYPES[hold_pv][1]
    smooth = spec.stage(QBlockMean)
    narrow = hold_pv in ("e5m2", "e4m3", "int8")
    scaled = hold_qk in ("e5m2", "e4m3", "int8")
    by_key = spec.k is not None and spec.k.granularity in ("rows", "sage_threads")
    return Held(
        q=torch.empty(1, 2, n, d, device="meta", dtype=qk),
        k=torch.empty(1, 2, n, d, device="meta", dtype=qk),
        v=torch.empty(1, 2, *((d, n) if narrow else (n, d)), device="meta", dtype=pv),
        q_scale=factor(1, 2, n) if scaled or by_key else None,
        k_scale=factor(1, 2, n) if by_key else None,
        v_scale=factor(1, 2, d) if narrow else None,
        mean=factor(1, 2, n // 128, d) if spec.v_smooth is not None else None,
        owed=factor(1, 2, -(-n // smooth.rows), n) if smooth is not None else None,
        owed_rows=smooth.rows if smooth is not None else 1,
        owed_tile=spec.kv_tile if smooth is not None and hold_qk == "bfloat16" else 0,
        hold_qk=hold_qk,
        hold_pv=hold_pv,
    )


def compiled(spec: AttentionSpec, hold_qk: str, hold_pv: str, d: int, **changes: Any) -> Any:
    """The fused kernel for sm90."""
    operands = held(spec, hold_qk, hold_pv, d)
    config = dataclasses.replace(choice(spec, operands, packable=True), **changes)
    fields = constants(spec, operands, config, packable=True) | {"DESCRIBED": config.descriptors}
    narrow = fields["INTERLEAVED"]
    box = {
        "q": (hold_qk, fields["BM"], fields["D_PAD"]),
        "k": (hold_qk, fields["BN"], fields["D_PAD"]),
        "v": (hold_pv, *((fields["DV_PAD"], fields["BN"]) if narrow else (fields["BN"], fields["DV_PAD"]))),
    }
    signature: dict[str, str] = {}
    for name, (hold, rows, columns) in box.items():
        kind = TYPES[hold][0]
        signature[name] = f"tensordesc<{kind}[1,{rows},{columns}]>" if config.descriptors else f"*{kind}"
    for name in ("q_scale", "k_scale", "v_scale", "mean", "owed"):
        signature[name] = "*fp32" if getattr(operands, name) is not None else "constexpr"
        if signature[name] == "constexpr":
            fields[name] = None
    if config.descriptors and config.overlap and operands.mean is not None:
        signature["mean"] = f"tensordesc<fp32[1,1,{fields['DV_PAD']}]>"
    if operands.owed is not None and config.descriptors and owed_suits(fields):
        signature["owed"] = f"tensordesc<fp32[1,1,{fields['BN']}]>"
        fields["OWED_DESCRIBED"] = True
    signature["out"] = "*bf16"
    signature |= dict.fromkeys(("NQ", "NK", "NKS", "NVS", "half", "floor", "zero"), "i32") | {"log2_scale": "fp32"}
    signature |= dict.fromkeys(fields, "constexpr")
    places = {name: i for i, name in enumerate(fused_kernel.arg_names)}
    aligned = {
        (places[name],): [["tt.divisibility", 16]]
        for name, kind in signature.items()
        if kind.startswith("*") or name in SIZES
    }
    source = ASTSource(fused_kernel, {name: signature[name] for name in places}, fields, aligned)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "maxnreg": config.registers}
    return triton.compile(source, target=SM90, options=options)


def usage(kernel: Any) -> dict[str, int]:
    """Registers a thread, bytes of stack (spills) and of shared memory."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found
    return {"registers": int(found[1]), "stack": int(found[2]), "shared": kernel.metadata.shared}


def scattered(ttgir: str) -> list[str]:
    """Layouts of tensors that an instruction takes several of at once, and whose last dimensions do not run fastest."""
    found = []
    for line in ttgir.splitlines():
        if "packed_element = 2" in line or "packed_element = 4" in line:
            name = re.search(r"-> tensor<[^,]*, (#\w+)>", line)
            assert name
            layout = re.search(rf"^{name[1]} = .*register = (\[\[.*?\]\])", ttgir, re.M)
            bases = json.loads(layout[1]) if layout else [[]]
            if [b for basis in bases[:1] for b in basis[-1:]] != [1]:
                found.append(line.strip())
            if "packed_element = 4" in line and bases[1][-2:] != [1, 0]:
                found.append(line.strip())
    return found


def complaints(ptx: str) -> list[str]:
    """What the assembler says of matrix instructions that it had to put one after another."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [tool, "-v", "--gpu-name=sm_90a", file.name, "-o", os.devnull]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return [line for line in text.splitlines() if "Performance Loss" in line]


def fused_case(text: str) -> dict[str, Any]:
    """See the module."""
    method, hold_qk, hold_pv, d, *rest = text.split(",")
    changes = {name: json.loads(value) for name, value in (field.split("=") for field in rest)}
    spec = METHODS[method].spec
    spec = dataclasses.replace(spec, kv_tile=changes.pop("kv_tile", spec.kv_tile))
    kernel = compiled(spec, hold_qk, hold_pv, int(d), **changes)
    ptx = kernel.asm["ptx"]
    return {
        "products": sorted(set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.\w+\.(\w+\.\w+\.\w+)", ptx))),
        "descriptors": "cp.async.bulk.tensor" in ptx,
        "scattered": scattered(kernel.asm["ttgir"]),
        "complaints": complaints(ptx),
        "flushed": ptx.count("ex2.approx.ftz"),
        **usage(kernel),
    }


def native_case(text: str) -> dict[str, Any]:
    """See the module."""
    method, arch = text.split(",")
    spec = METHODS[method].spec
    owed = 128 if spec.stage(QBlockMean) is not None else 0
    fields = native_constants(spec, 128, 128, 128, owed)
    fields |= {"HAS_MEAN": spec.v_smooth is not None, "HAS_FACTORS": spec.q is not None and spec.q.tensor_scale}
    signature = dict.fromkeys(("q", "q_scale", "k", "k_scale", "v", "v_scale"), "*u8")
    there = {
        "score_factor": fields["HAS_FACTORS"],
        "value_factor": fields["HAS_FACTORS"],
        "mean": fields["HAS_MEAN"],
        "owed": owed > 0,
    }
    signature |= {name: "*fp32" if there[name] else "constexpr" for name in there}
    fields |= {name: None for name in there if not there[name]}
    signature |= {"out": "*bf16", "NQ": "i32", "NK": "i32", "NVS": "i32", "log2_scale": "fp32", "zero": "fp32"}
    signature |= dict.fromkeys(fields, "constexpr")
    names = native_kernel.arg_names
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n][0] == "*" or n in SIZES}
    source = ASTSource(native_kernel, {name: signature[name] for name in names}, fields, aligned)
    target = GPUTarget("cuda", 100, 32) if arch == "sm100" else GPUTarget("hip", arch, 64)
    kernel = triton.compile(source, target=target, options={"num_warps": 4, "num_stages": 2})
    if arch == "sm100":
        return {"instructions": sorted(set(re.findall(r"tcgen05\.mma[\w.:]*", kernel.asm["ptx"])))}
    found = set()
    for line in kernel.asm["amdgcn"].splitlines():
        if "v_mfma" in line:
            formats = sorted(word for word in line.split() if word.startswith(("cbsz:", "blgp:")))
            found.add(" ".join([line.split()[0], *formats]))
    return {"instructions": sorted(found)}


if __name__ == "__main__":
    case = {"fused": fused_case, "native": native_case}[sys.argv[1]]
    print(json.dumps([case(text) for text in sys.argv[2:]]))
