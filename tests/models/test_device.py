"""Where a model runs: what names stand for, what FP16 leaves in FP32, and renders on CUDA that repeat to the byte."""

import copy
import os

import numpy as np
import pytest
import torch

from mxbench.errors import UserError
from mxbench.models import facts, load
from mxbench.models.device import fits, resolve
from mxbench.models.nano import build
from mxbench.models.nano.model import Nano
from mxbench.models.placement import halve, placed, repeatable
from mxbench.models.render import PipelineModel
from mxbench.policy import as_schedule

NETWORKS = ("transformer", "transformer_2", "text_encoder", "vae")


@pytest.fixture
def see(monkeypatch):
    """Let torch see so many CUDA devices."""

    def seeing(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return seeing


@pytest.fixture
def defaults(monkeypatch):
    """torch as it comes; whatever a test makes of it is undone."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    kept = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = False, True, True, True
    yield
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = kept


@pytest.fixture(scope="module")
def half(nano):
    pipe = copy.deepcopy(nano.pipe)
    halve(pipe)
    return PipelineModel(pipe)


@pytest.mark.parametrize(
    ("seen", "types", "asked", "device"),
    [
        (0, ("cpu", "cuda"), "auto", "cpu"),
        (2, ("cpu", "cuda"), "auto", "cuda:0"),
        (2, ("cpu",), "auto", "cpu"),
        (1, ("cuda",), "auto", "cuda:0"),
        (2, ("cpu", "cuda"), "cpu", "cpu"),
        (2, ("cpu", "cuda"), "cuda", "cuda:0"),
        (2, ("cpu", "cuda"), "cuda:1", "cuda:1"),
        (12, ("cpu", "cuda"), "cuda:011", "cuda:11"),
    ],
)
def test_a_name_stands_for_one_device(see, seen, types, asked, device):
    see(seen)
    assert resolve(asked, types) == device
    assert resolve(device, types) == device


@pytest.mark.parametrize(
    ("seen", "types", "asked", "said"),
    [
        (0, ("cpu", "cuda"), "cuda", r"--device cuda: torch sees no CUDA device; .*, or use --device cpu$"),
        (0, ("cpu", "cuda"), "cuda:1", r"--device cuda:1: torch sees no CUDA device; "),
        (0, ("cuda",), "auto", r"--device auto: torch sees no CUDA device; (?!.*--device cpu)"),
        (1, ("cpu", "cuda"), "cuda:1", r"--device cuda:1: torch sees cuda:0 alone; use one"),
        (8, ("cpu", "cuda"), "cuda:8", r"torch sees cuda:0 to cuda:7; "),
        (1, ("cpu",), "cuda", r"--device cuda: this model does not run there; use cpu"),
        (1, ("cuda",), "cpu", r"--device cpu: this model does not run there; use cuda"),
        *((1, ("cpu", "cuda"), name, r"there is no such device; use auto, cpu, cuda or cuda:N")
          for name in ("gpu", "mps", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cuda:१", "cuda:0 ", "cpu:0", "auto:0", "")),
    ],
)  # fmt: skip
def test_what_is_no_device_is_named_with_what_to_do(see, seen, types, asked, said):
    see(seen)
    with pytest.raises(UserError, match=said):
        resolve(asked, types)


@pytest.mark.parametrize(("cuda", "said"), [(None, "install a build with it"), ("13.0", "nvidia-smi.*knows CUDA 13.0")])
def test_without_a_device_it_is_said_what_is_missing(see, monkeypatch, cuda, said):
    see(0)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(UserError, match=said):
        load("nano", "cuda")


def test_half_is_what_from_pretrained_loads(nano, half, tmp_path):
    """Against diffusers and transformers: the same dtype and the same bits for every parameter and buffer."""
    for name in NETWORKS[:3]:
        true = getattr(nano.pipe, name)
        true.save_pretrained(tmp_path / name)
        loaded = type(true).from_pretrained(tmp_path / name, dtype=torch.float16)
        wanted = dict([*loaded.named_parameters(), *loaded.named_buffers()])
        mine = getattr(half.pipe, name)
        got = dict([*mine.named_parameters(), *mine.named_buffers()])
        assert {k: t.dtype for k, t in got.items()} == {k: t.dtype for k, t in wanted.items()}
        assert all(torch.equal(got[k], t) for k, t in wanted.items())
        assert {t.dtype for t in got.values()} == {torch.float16, torch.float32}
        assert mine.dtype == torch.float16
    assert {t.dtype for t in half.pipe.vae.parameters()} == {torch.float32}
    tied = half.pipe.text_encoder
    assert tied.get_input_embeddings().weight is tied.shared.weight


def test_half_renders_on_the_cpu_are_near_float32_and_not_equal(nano, half, tiny):
    half.self_test()
    fp32 = nano.render("a red circle moves left", 1, tiny, as_schedule("fp16"), "auto")
    fp16 = half.render("a red circle moves left", 1, tiny, as_schedule("fp16"), "auto")
    assert fp16.latents.dtype == np.float32
    assert not np.array_equal(fp16.latents, fp32.latents)
    assert psnr(fp16.frames, fp32.frames) > 40


def psnr(a, b):
    return 10 * np.log10(255**2 / max(1e-9, np.square(a.astype(float) - b.astype(float)).mean()))


@pytest.mark.parametrize("asked", [False, True])
def test_a_pipeline_is_placed_whole(asked):
    pipe = placed(build.pipeline(), "meta", half=asked)
    for name in NETWORKS:
        tensors = [*getattr(pipe, name).parameters(), *getattr(pipe, name).buffers()]
        assert {t.device.type for t in tensors} == {"meta"}
        assert (torch.float16 in {t.dtype for t in tensors}) == (asked and name != "vae")


def test_on_cuda_torch_is_made_repeatable_and_on_a_cpu_left_alone(defaults, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    repeatable("cpu")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ""
    assert torch.backends.cudnn.benchmark
    repeatable("cuda:1")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (False, False)
    assert chosen == ["cuda:1"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_memory_that_is_full_is_one_line_with_its_cause(error):
    with pytest.raises(UserError, match="out of memory on cuda:1; free memory there") as caught, fits("cuda:1"):
        raise error
    assert caught.value.__cause__ is error


def test_a_cpu_s_memory_can_be_full_too():
    error = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: ...")
    with (
        pytest.raises(UserError, match="out of memory on cpu with --memory whole; use --memory whole-tiled"),
        fits("cpu", "whole"),
    ):
        raise error


def test_other_errors_keep_their_words():
    with pytest.raises(RuntimeError, match="shapes"), fits("cuda:0"):
        raise RuntimeError("shapes do not match")


def test_a_model_that_does_not_fit_is_no_traceback(see, monkeypatch):
    see(1)

    def full(_self, _device):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Nano, "__init__", full)
    with pytest.raises(UserError, match="out of memory on cuda:0"):
        load("nano", "auto")
    assert facts("nano").dtype_on("cuda:7") == "float16"


@pytest.fixture(scope="module")
def cuda():
    return load("nano", "cuda")


@pytest.mark.gpu
def test_on_cuda_the_seam_changes_no_bit_and_two_renders_are_equal_to_the_byte(cuda):
    assert {p.device.type for name in NETWORKS for p in getattr(cuda.pipe, name).parameters()} == {"cuda"}
    cuda.self_test()
    sampling = cuda.FACTS.sampling
    exact = [("fp16", name) for name in ("sdpa", "cudnn", "flash", "reference")]
    for method, impl in [*exact, ("mxattn", "auto"), ("vc8", "auto")]:
        one, two = (cuda.render("a red circle moves left", 2, sampling, as_schedule(method), impl) for _ in range(2))
        assert one.frames.tobytes() == two.frames.tobytes(), (method, impl)
        assert one.latents.tobytes() == two.latents.tobytes(), (method, impl)
        assert one.nonfinite_calls == 0


@pytest.mark.gpu
def test_on_cuda_fp16_is_near_the_float32_render_and_each_method_moves_it(nano, cuda):
    sampling = cuda.FACTS.sampling
    prompt = "a red circle moves left over a blue background"
    fp32 = nano.render(prompt, 0, sampling, as_schedule("fp16"), "auto").frames
    fp16 = cuda.render(prompt, 0, sampling, as_schedule("fp16"), "auto").frames
    assert 40 < psnr(fp16, fp32) < 90
    assert psnr(cuda.render(prompt, 0, sampling, as_schedule("mxfp4"), "auto").frames, fp16) < psnr(fp32, fp16)
