"""cuDNN's FP8 attention through cudnn-frontend: a graph made once for a shape, in E4M3 with one scale a tensor.

API: NVIDIA/cudnn-frontend, docs/operations/Attention.md, "SDPA FP8 forward".
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from mxbench.bench.candidates import Bound
from mxbench.bench.operands import Operands

__all__ = ["bind", "quantised"]

_LARGEST = 448.0  # of E4M3
_P_SCALE = 256.0  # of the exponentials, which are at most 1
_SCALES = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` in E4M3, and the FP32 factor ``[1,1,1,1]`` that takes it back."""
    largest = x.abs().amax().float()
    factor = torch.where(largest == 0, torch.ones_like(largest), largest / _LARGEST)
    eight = (x.float() / factor).clamp_(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    return eight, factor.reshape(1, 1, 1, 1)


def bind(operands: Operands) -> Bound:
    """Plan the graph; its pre-pass quantises, its kernel ends with the output brought back to the operands' dtype."""
    cudnn: Any = importlib.import_module("cudnn")
    q, k, v = operands.q, operands.k, operands.v
    one = torch.ones(1, 1, 1, 1, device=q.device)
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.FP8_E4M3,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    tensors = {
        name: graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()), data_type=cudnn.data_type.FP8_E4M3)
        for name, x in (("q", q), ("k", k), ("v", v))
    }
    for name in _SCALES:
        tensors[name] = graph.tensor(name=name, dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=cudnn.data_type.FLOAT)
    out, _, *largest = graph.sdpa_fp8(**tensors, is_inference=True, attn_scale=q.shape[-1] ** -0.5)
    shape = (*q.shape[:-1], v.shape[-1])
    eight = torch.empty(shape, dtype=torch.float8_e4m3fn, device=q.device)
    out.set_output(True).set_dim(list(shape)).set_stride(list(eight.stride())).set_data_type(cudnn.data_type.FP8_E4M3)
    for each in largest:  # of the exponentials and of the output: written, and read by nobody
        each.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(cudnn.data_type.FLOAT)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=q.device)

    def prepare() -> dict[str, torch.Tensor]:
        prepared = {}
        for name, x in (("q", q), ("k", k), ("v", v)):
            prepared[name], prepared[f"descale_{name}"] = quantised(x)
        # No output is larger than the largest value. A power of two, which takes the output back without a rounding.
        scale_o = prepared["descale_v"].log2().neg().floor().exp2()
        return prepared | {"descale_s": one / _P_SCALE, "scale_s": one * _P_SCALE, "scale_o": scale_o}

    def run(prepared: dict[str, torch.Tensor]) -> torch.Tensor:
        pack = {tensors[name]: x for name, x in prepared.items()}
        pack |= {out: eight} | {each: torch.empty_like(one) for each in largest}
        if q.is_cuda:
            cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(q.device).cuda_stream)
        graph.execute(pack, workspace, handle=handle)
        return eight.to(q.dtype).mul_((one / prepared["scale_o"]).to(q.dtype))

    return Bound(lambda: run(prepare()), prepare, run)
