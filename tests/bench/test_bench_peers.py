"""Adapters of peers: absent, broken, and present as fake modules that insist on their layout."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from mxbench.attention.methods import METHODS
from mxbench.bench import candidates, peer_cudnn_fp8, peers
from mxbench.bench.candidates import method_candidates
from mxbench.bench.check import Judge
from mxbench.bench.operands import Seat, draw, sample
from mxbench.bench.peers import PEERS, peer_candidates
from mxbench.bench.shapes import Shape
from mxbench.errors import UserError

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
SHAPE = Shape(2, 3, 40, 56, 32)


@pytest.fixture
def operands():
    return draw(SHAPE, CPU, torch.float32, 0)


@pytest.fixture
def install(monkeypatch):
    """Put a fake module in place, its parents too."""

    def put(name, **contents):
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
        module = ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)

    return put


@pytest.fixture
def importing(monkeypatch):
    """Make the import of everything end in an error."""

    def fail(error):
        def refuse(name):
            raise error

        monkeypatch.setattr(peers.importlib, "import_module", refuse)

    return fail


def right(operands, out, allowed=1e-5):
    verdict = Judge(operands, sample(SHAPE, CPU)).of_peer(out, allowed)
    assert not verdict.red, verdict
    return verdict.error


def test_a_peer_that_is_not_installed_says_which_package(importing):
    importing(ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn"))
    assert PEERS["fa4"].missing(CUDA, torch.bfloat16) == "flash-attn-4 is not installed"
    importing(ModuleNotFoundError("No module named 'flash_attn.cute'", name="flash_attn.cute"))
    assert PEERS["fa4"].missing(CUDA, torch.bfloat16) == "flash-attn-4 is not installed"


def test_a_peer_without_what_it_needs_and_one_that_breaks_say_so(importing):
    importing(ModuleNotFoundError("No module named 'cutlass'", name="cutlass"))
    assert PEERS["fa4"].missing(CUDA, torch.bfloat16) == "flash-attn-4 needs cutlass, which is not installed"
    importing(OSError("libc10.so:\n undefined symbol"))
    assert PEERS["sage2-sm90"].missing(CUDA, torch.bfloat16) == (
        "sageattention cannot be imported: libc10.so: undefined symbol"
    )


def test_what_needs_a_device_or_a_dtype_says_so(install, monkeypatch):
    install("sageattention")
    sage = PEERS["sage2-sm90"]
    assert sage.missing(CPU, torch.bfloat16) == "it needs a CUDA device"
    assert sage.missing(CUDA, torch.float32) == "it takes float16 or bfloat16"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    assert sage.missing(CUDA, torch.bfloat16) == "it is made for compute capability 9.0 alone"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert sage.missing(CUDA, torch.bfloat16) is None
    assert PEERS["torch-sdpa"].missing(CPU, torch.float32) is None
    assert PEERS["torch-flash"].missing(CPU, torch.float16) == "it needs a CUDA device"
    assert PEERS["torch-cudnn"].missing(CUDA, torch.float16) is None


@pytest.mark.parametrize("also_log_sum_exp", [False, True])
def test_flash_attention_4_gets_its_layout_and_may_add_the_log_sum_exp(install, operands, also_log_sum_exp):
    def flash_attn_func(q, k, v, *, causal):
        assert (q.shape, k.shape, v.shape) == ((2, 40, 3, 32), (2, 56, 3, 32), (2, 56, 3, 32))
        assert q.stride(-1) == 1
        assert not causal
        out = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).contiguous()
        return (out, None) if also_log_sum_exp else out

    install("flash_attn.cute", flash_attn_func=flash_attn_func)
    assert PEERS["fa4"].missing(CUDA, torch.bfloat16) is None
    right(operands, PEERS["fa4"].bind(operands).call())


def test_sage_attention_gets_its_layout(install, operands):
    def sageattn_qk_int8_pv_fp8_cuda_sm90(q, k, v, tensor_layout, is_causal, pv_accum_dtype):
        assert (tensor_layout, is_causal, pv_accum_dtype) == ("HND", False, "fp32+fp32")
        return scaled_dot_product_attention(q, k, v)

    install("sageattention", sageattn_qk_int8_pv_fp8_cuda_sm90=sageattn_qk_int8_pv_fp8_cuda_sm90)
    bound = PEERS["sage2-sm90"].bind(operands)
    assert bound.prepare is None
    right(operands, bound.call())


@pytest.mark.parametrize("name", ["torch-sdpa", "torch-flash"])
def test_torch_is_right_on_a_cpu_too(operands, name):
    right(operands, PEERS[name].bind(operands).call())


class Descriptor(SimpleNamespace):
    """What a graph knows of a tensor."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other

    def _set(self, *_):
        return self

    set_output = set_dim = set_stride = set_data_type = _set


class Graph:
    """A graph of cuDNN's that computes FP8 attention in plain torch when it is executed."""

    def __init__(self, **kinds):
        self.steps, self.tensors = [], {}

    def tensor(self, *, name, dim, stride, data_type):
        self.tensors[name] = Descriptor(name=name, dim=dim, stride=stride, data_type=data_type)
        return self.tensors[name]

    def sdpa_fp8(self, *, is_inference, attn_scale, **operands):
        assert is_inference
        self.operands, self.scale = operands, attn_scale
        self.out, *rest = (Descriptor(name=name) for name in ("o", "amax_s", "amax_o"))
        return self.out, None, *rest

    def __getattr__(self, name):
        return lambda *_: self.steps.append(name)

    def get_workspace_size(self):
        return 16

    def execute(self, pack, workspace, handle):
        assert self.steps[-1] == "build_plans"
        assert workspace.numel() == 16
        x = {name: pack[tensor] for name, tensor in self.operands.items()}
        q, k, v = (x[n].float() * x[f"descale_{n}"] for n in "qkv")
        s = q @ k.transpose(-1, -2) * self.scale
        p = (s - s.amax(-1, keepdim=True)).exp()
        eight = (p * x["scale_s"]).to(torch.float8_e4m3fn).float() * x["descale_s"]
        out = eight @ v / p.sum(-1, keepdim=True) * x["scale_o"]
        assert float(out.abs().max()) <= 448
        pack[self.out].copy_(out.to(torch.float8_e4m3fn))


def test_cudnn_fp8_plans_once_and_takes_its_scales_back(install, operands):
    kinds = SimpleNamespace(FP8_E4M3="e4m3", FLOAT="float")
    made = []

    def pygraph(**arguments):
        made.append(Graph(**arguments))
        return made[-1]

    install(
        "cudnn",
        pygraph=pygraph,
        create_handle=lambda: "handle",
        data_type=kinds,
        heur_mode=SimpleNamespace(A=0, FALLBACK=1),
    )
    bound = peer_cudnn_fp8.bind(operands)
    for _ in range(2):
        error = right(operands, bound.call(), PEERS["cudnn-fp8"].allowed)
    assert 0.01 < error < 0.1
    right(operands, bound.run(bound.prepare()), PEERS["cudnn-fp8"].allowed)
    assert len(made) == 1
    assert made[0].steps == [
        "validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans"
    ]  # fmt: skip
    assert made[0].tensors["k"].dim == [2, 3, 56, 32]


def test_e4m3_of_a_tensor_has_one_scale_and_zeros_stay():
    x = torch.tensor([[[[-896.0, 2.0, 1.0]]]])
    eight, factor = peer_cudnn_fp8.quantised(x)
    assert factor.item() == 2.0
    assert (eight.float() * factor).flatten().tolist() == x.flatten().tolist()
    assert peer_cudnn_fp8.quantised(torch.zeros(1, 1, 2, 2))[0].float().abs().max() == 0


def test_all_peers_stand_in_a_run_unless_some_are_named():
    everyone = peer_candidates([], CPU, torch.float32)
    assert [each.impl for each in everyone] == list(PEERS)
    assert [each.impl for each in everyone if each.missing is None] == ["torch-sdpa"]
    assert [each.key for each in peer_candidates(["torch-sdpa", "fa4"], CPU, torch.float32)] == ["fa4", "torch-sdpa"]
    assert peer_candidates(["none"], CPU, torch.float32) == []
    with pytest.raises(UserError, match="did you mean fa4"):
        peer_candidates(["fa3"], CPU, torch.float32)
    for each in everyone:
        assert (each.allowed == 0.1) == (not each.exact) == (each.impl in ("sage2-sm90", "cudnn-fp8"))
        assert (each.version != "") == (PEERS[each.impl].package == "torch")


def test_methods_of_a_run_are_those_that_are_computed_here():
    pairs = method_candidates([], [], CPU, torch.float32)
    assert {each.impl for each in pairs if each.missing is None} >= {"reference"}
    assert [each.method for each in pairs if each.impl == "reference"] == list(METHODS)
    assert not {"sdpa", "cudnn"} & {each.impl for each in pairs}
    named = method_candidates(["vc8", "fp16", "vc8"], ["reference", "sdpa", "reference"], CPU, torch.float32)
    assert [each.key for each in named] == ["vc8/reference", "fp16/reference", "vc8/sdpa", "fp16/sdpa"]
    assert [each.missing is None for each in named] == [True, True, False, True]
    assert [each.method for each in method_candidates([], ["sdpa"], CPU, torch.float32)] == ["fp16"]
    impossible = method_candidates([], ["cudnn"], CPU, torch.float32)
    assert len({each.missing for each in impossible}) == len(impossible) == 2
    for wrong in ((["vc9"], []), ([], ["refrence"])):
        with pytest.raises(UserError, match="did you mean"):
            method_candidates(*wrong, CPU, torch.float32)


def test_on_a_cpu_the_kernels_are_a_row_only_by_name():
    assert {each.impl for each in method_candidates(["mxattn"], [], CPU, torch.float32)} == {"reference"}
    fast = method_candidates([], ["fast"], CPU, torch.float32)
    assert [each.missing for each in fast] == ["its kernels need a CUDA device"]


def test_on_cuda_the_reference_is_timed_only_by_name(monkeypatch):
    monkeypatch.setattr(candidates, "unsupported", lambda *_: None)
    named = list(dict.fromkeys(each.impl for each in method_candidates([], [], CUDA, torch.bfloat16)))
    assert named == ["conformance", "fast", "native"]
    assert {each.impl for each in method_candidates(["mxattn"], ["reference"], CUDA, torch.bfloat16)} == {"reference"}


def test_an_implementation_that_can_be_split_is(monkeypatch, operands):
    """What ``attend`` makes is what the halves make, and an impl that is in no table is timed whole."""
    assert set(candidates.SPLITS) <= set(candidates.IMPLS)
    whole = candidates.of_method("vc4", "reference", CPU, torch.float32).bind(operands, Seat())
    assert torch.equal(whole.call(), whole.run(whole.prepare()))
    exact = candidates.of_method("fp16", "reference", CPU, torch.float32).bind(operands, Seat())
    assert exact.prepare is exact.run is None
    monkeypatch.setattr(candidates, "unsupported", lambda *_: None)
    unknown = candidates.of_method("mxattn", "native", CPU, torch.float32)
    assert unknown.fp4 == "hardware"
    assert unknown.bind(operands, Seat()).prepare is None


def test_four_bit_values_are_marked_wherever_they_are_emulated():
    marks = {each.method: each.fp4 for each in method_candidates([], ["reference"], CPU, torch.float32)}
    four = {"mxfp4", "mxfp4-tfs", "mxfp4-oas", "mxattn", "nvfp4", "nvfp4-sage", "vc4"}
    assert marks == {name: "emulated" if name in four else "" for name in METHODS}
