"""Attention kernels of others, each behind a small adapter that says whether it is here and what its time is of."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from mxbench.bench import peer_cudnn_fp8
from mxbench.bench.candidates import Bound, Candidate
from mxbench.bench.check import EXACT_TOLERANCE
from mxbench.bench.operands import Operands
from mxbench.errors import UserError, unknown_name

__all__ = ["PEERS", "Peer", "peer_candidates"]

_QUANTISED = 0.1


@dataclass(frozen=True, slots=True)
class Peer:
    """A kernel of somebody else.

    Attributes:
        label: how tables print it.
        includes: what its call is, in a clause.
        package: the distribution that brings it.
        module: what is imported of it; None for a part of torch.
        bind: gives it its operands.
        allowed: relative L2 error against exact attention; None takes that of an exact kernel in the dtype.
        cuda: whether it needs a CUDA device, and float16 or bfloat16.
        capability: the one compute capability it is made for, or None.
    """

    label: str
    includes: str
    package: str
    module: str | None
    bind: Callable[[Operands], Bound]
    allowed: float | None = None
    cuda: bool = True
    capability: tuple[int, int] | None = None

    def missing(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why it cannot run here, in a clause; None where it can."""
        if self.module is not None:
            try:
                importlib.import_module(self.module)
            except ModuleNotFoundError as error:
                absent = error.name or self.module
                if self.module == absent or self.module.startswith(f"{absent}."):
                    return f"{self.package} is not installed"
                return f"{self.package} needs {absent}, which is not installed"
            except Exception as error:  # noqa: BLE001 - compiled against another torch, say
                return f"{self.package} cannot be imported: {' '.join(str(error).split())[:120]}"
        if not self.cuda:
            return None
        if device.type != "cuda":
            return "it needs a CUDA device"
        if dtype not in (torch.float16, torch.bfloat16):
            return "it takes float16 or bfloat16"
        if self.capability is not None and self.capability != torch.cuda.get_device_capability(device):
            return f"it is made for compute capability {self.capability[0]}.{self.capability[1]} alone"
        return None

    def version(self) -> str:
        """Of its package; empty where that is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""


def _sdpa(operands: Operands) -> Bound:
    return Bound(lambda: scaled_dot_product_attention(operands.q, operands.k, operands.v))


def _sdpa_by(backend: SDPBackend) -> Callable[[Operands], Bound]:
    def bind(operands: Operands) -> Bound:
        def call() -> torch.Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(operands.q, operands.k, operands.v)

        return Bound(call)

    return bind


def _fa4(operands: Operands) -> Bound:
    # [B,N,H,D] is what it takes: views, since it reads any strides but the last.
    attention = importlib.import_module("flash_attn.cute").flash_attn_func
    q, k, v = (x.transpose(1, 2) for x in (operands.q, operands.k, operands.v))

    def call() -> torch.Tensor:
        out = attention(q, k, v, causal=False)
        first: Any = out[0] if isinstance(out, tuple) else out  # versions differ in whether they add the log-sum-exp
        return first.transpose(1, 2)  # type: ignore[no-any-return]

    return Bound(call)


def _sage(operands: Operands) -> Bound:
    attention = importlib.import_module("sageattention").sageattn_qk_int8_pv_fp8_cuda_sm90
    q, k, v = operands.q, operands.k, operands.v
    return Bound(lambda: attention(q, k, v, tensor_layout="HND", is_causal=False, pv_accum_dtype="fp32+fp32"))


PEERS: dict[str, Peer] = {
    "fa4": Peer("FlashAttention-4", "an exact kernel", "flash-attn-4", "flash_attn.cute", _fa4),
    "torch-cudnn": Peer("cuDNN (torch SDPA)", "an exact kernel", "torch", None, _sdpa_by(SDPBackend.CUDNN_ATTENTION)),
    "torch-flash": Peer(
        "FlashAttention-2 (torch SDPA)", "an exact kernel", "torch", None, _sdpa_by(SDPBackend.FLASH_ATTENTION)
    ),
    "torch-sdpa": Peer(
        "torch SDPA", "an exact kernel, the backend of torch's choice", "torch", None, _sdpa, cuda=False
    ),
    "sage2-sm90": Peer(
        "SageAttention2++ (sm90)",
        "one call that also quantises; its kernel cannot be timed alone from outside",
        "sageattention",
        "sageattention",
        _sage,
        allowed=_QUANTISED,
        capability=(9, 0),
    ),
    "cudnn-fp8": Peer(
        "cuDNN FP8",
        "the kernel, and a quantisation per tensor in plain torch, which a fused one would beat",
        "nvidia-cudnn-frontend",
        "cudnn",
        peer_cudnn_fp8.bind,
        allowed=_QUANTISED,
    ),
}
"""In the order in which a table prints them."""


def peer_candidates(names: Sequence[str], device: torch.device, dtype: torch.dtype) -> list[Candidate]:
    """The peers of a run, absent ones too.

    Args:
        names: in ``PEERS``; none named: all; ``none``: none.
        device: where to run.
        dtype: of the operands.

    Raises:
        UserError: a name that does not exist.
    """
    for name in names:
        if name not in PEERS and name != "none":
            raise unknown_name("peer", name, [*PEERS, "none"])
    if "none" in names and len(set(names)) > 1:
        raise UserError("--peer none stands beside other peers", "name peers, or none")
    chosen = [name for name in PEERS if (name in names if names else True)]
    return [_candidate(name, PEERS[name], device, dtype) for name in chosen]


def _candidate(name: str, peer: Peer, device: torch.device, dtype: torch.dtype) -> Candidate:
    return Candidate(
        method="",
        impl=name,
        label=peer.label,
        includes=peer.includes,
        exact=peer.allowed is None,
        bind=lambda operands, _seat: peer.bind(operands),
        allowed=EXACT_TOLERANCE[dtype] if peer.allowed is None else peer.allowed,
        version=peer.version(),
        missing=peer.missing(device, dtype),
    )
