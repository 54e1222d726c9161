"""The PTX of ``packed_jit``, carried out in NumPy: what the interpreter lacks to run the packed tiles.

Written from the PTX ISA's description of each instruction, not from what the tiles want of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray


def _f32(x: Array) -> Array:
    return x.astype(np.uint32).view(np.float32) if x.dtype != np.float32 else x


def _bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint32)


def _halves(x: Array) -> tuple[Array, Array]:
    bits = _bits(x)
    return (bits & 0xFFFF).astype(np.uint16), (bits >> 16).astype(np.uint16)


def _join(low: Array, high: Array) -> Array:
    return low.astype(np.uint32) | (high.astype(np.uint32) << 16)


def _pairwise(step: Callable[[Array, Array], Array], kind: Any) -> Callable[[Array, Array], Array]:
    def run(a: Array, b: Array) -> Array:
        out = [step(x.view(kind), y.view(kind)).astype(kind) for x, y in zip(_halves(a), _halves(b), strict=True)]
        return _join(*(o.view(np.uint16) for o in out))

    return run


def _rz16(x: Array) -> Array:
    """FP32 to FP16 towards zero; subnormals are kept, NaN is 0x7FFF."""
    near = x.astype(np.float16)
    bits = near.view(np.uint16)
    past = np.isfinite(x) & (np.abs(near.astype(np.float64)) > np.abs(x.astype(np.float64)))
    return np.where(np.isnan(x), np.uint16(0x7FFF), np.where(past, bits - 1, bits)).astype(np.uint16)


def _rn16(x: Array) -> Array:
    return np.where(np.isnan(x), np.uint16(0x7FFF), x.astype(np.float16).view(np.uint16))


def _e4m3(x: Array) -> Array:
    code = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), code).astype(np.uint16)


def _directed(sign: int) -> Callable[[Array, Array], Array]:
    def run(a: Array, b: Array) -> Array:
        exact = a.astype(np.float64) + b.astype(np.float64)
        near = exact.astype(np.float32)
        short = (near - exact) * sign < 0
        return np.where(short, np.nextafter(near, np.float32(sign * np.inf)), near).astype(np.float32)

    return run


def _prmt(a: Array, b: Array, selector: Array) -> Array:
    both = _bits(a).astype(np.uint64) | (_bits(b).astype(np.uint64) << 32)
    out = np.zeros_like(_bits(a))
    for i in range(4):
        nibble = int(selector) >> 4 * i & 0xF
        assert nibble < 8  # the upper bit would replicate a sign
        out |= (both >> (8 * nibble) & 0xFF).astype(np.uint32) << 8 * i
    return out


STEPS: dict[str, Callable[..., Array]] = {
    "mov.b32": lambda a: a,
    "add.rp.f32": _directed(1),
    "add.rm.f32": _directed(-1),
    "lg2.approx.ftz.f32": np.log2,
    "cvt.rz.f16x2.f32": lambda a, b: _join(_rz16(b), _rz16(a)),  # the first operand is the upper half
    "cvt.rn.f16x2.f32": lambda a, b: _join(_rn16(b), _rn16(a)),
    "cvt.rn.bf16x2.f32": lambda a, b: _join(*(x.astype(ml_dtypes.bfloat16).view(np.uint16) for x in (b, a))),
    "cvt.rn.satfinite.e4m3x2.f32": lambda a, b: _e4m3(b) | (_e4m3(a) << 8),
    "cvt.f32.f16": lambda a: a.view(np.float16).astype(np.float32),
    "add.u16x2": _pairwise(lambda a, b: a + b, np.uint16),
    "min.u16x2": _pairwise(np.minimum, np.uint16),
    "max.s16x2": _pairwise(np.maximum, np.int16),
    "add.rn.f16x2": _pairwise(lambda a, b: a + b, np.float16),
    "mul.rn.f16x2": _pairwise(lambda a, b: a * b, np.float16),
    "mul.rn.bf16x2": _pairwise(lambda a, b: a.astype(np.float32) * b.astype(np.float32), ml_dtypes.bfloat16),
    "and.b32": lambda a, b: _bits(a) & _bits(b),
    "shr.u32": lambda a, b: _bits(a) >> _bits(b),
    "prmt.b32": _prmt,
}


def run(asm: str, constraints: str, values: list[Array], kind: Any, pack: int) -> Array:
    """One output of an inline assembly over whole tensors, all inputs of 32 bits."""
    shape = values[0].shape
    each = [x.reshape(-1, pack)[:, i] for x in values for i in range(pack)]  # operands in the order of Triton's packing
    inputs = constraints.split(",")[1:]
    assert len(inputs) == len(each)
    names = {
        f"${i}": _f32(_bits(x)) if c == "f" else _bits(x)
        for i, (x, c) in enumerate(zip(each, inputs, strict=True), start=1)
    }

    def read(word: str) -> Array:
        return names[word] if word in names else np.uint32(int(word, 0))

    for line in re.split(r";", asm.strip().strip("{}")):
        text = line.strip()
        if not text or text.startswith(".reg"):
            continue
        operation, rest = text.split(None, 1)
        words = re.findall(r"\{[^}]*\}|[^,\s]+", rest)
        target, sources = words[0], words[1:]
        if target.startswith("{"):  # mov.b32 {l, h}, x
            low, high = (w.strip() for w in target.strip("{}").split(","))
            names[low], names[high] = _halves(read(sources[0]))
        elif sources[0].startswith("{"):  # mov.b32 x, {l, h}
            names[target] = _join(*(read(w.strip()) for w in sources[0].strip("{}").split(",")))
        else:
            names[target] = STEPS[operation](*(read(w) for w in sources))
    out = np.ascontiguousarray(np.broadcast_to(names["$0"], each[0].shape))
    if constraints.startswith("=f"):
        return _f32(out).reshape(shape)
    if pack == 1:
        return _bits(out).view(np.int32).reshape(shape)
    return _bits(out).view(kind).reshape(shape)  # little endian: the first element lowest


def install(monkeypatch: Any) -> None:
    """Give the interpreter inline assembly, and products of BF16, which it would multiply as integers."""
    import triton.language as tl
    from triton.runtime import interpreter

    class Call:
        def __init__(self, handle: Any) -> None:
            self.handle = handle

        def get_result(self, _index: int) -> Any:
            return self.handle

    def inline(_self: Any, asm: str, constraints: str, values: Any, types: Any, _pure: bool, pack: int) -> Call:
        kind = types[0].scalar
        shape = np.broadcast_shapes(*(v.data.shape for v in values))
        inputs = [np.ascontiguousarray(np.broadcast_to(v.data, shape)) for v in values]
        numpy_kind = {8: np.int8, 16: np.int16, 32: np.int32}[kind.primitive_bitwidth]
        return Call(interpreter.TensorHandle(run(asm, constraints, inputs, numpy_kind, pack), kind))

    plain = interpreter.InterpreterBuilder.create_dot

    def dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if a.dtype.scalar != tl.bfloat16:
            return plain(self, a, b, d, *rest)
        left, right = ((x.data.astype(np.uint32) << 16).view(np.float32) for x in (a, b))
        return interpreter.TensorHandle(left @ right + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_inline_asm", inline)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
