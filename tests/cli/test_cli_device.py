"""``--device``: where commands render, what they say of a device that is not there, and one that is full."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from fakes import FakeModel

from mxbench import kernels
from mxbench.models.nano.model import Nano
from mxbench.report.load import KERNELS
from mxbench.runs import environment, runner
from mxbench.runs.plan import expand
from mxbench.runs.recipe import parse

RENDERING = [["run"], ["ablate"], ["analyze", "attention"]]
RUN = ("run", "-a", "mxfp4", "-n", "2", "-M", "psnr", "-o", "out")


@pytest.fixture
def see(monkeypatch):
    """Let torch see so many CUDA devices."""

    def seeing(count, name="Test GPU"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        monkeypatch.setattr(kernels, "_interpreted", lambda: False)
        environment.device_name.cache_clear()

    yield seeing
    environment.device_name.cache_clear()


@pytest.fixture
def command(mxbench_cli):
    return mxbench_cli


@pytest.fixture
def loaded(monkeypatch):
    """A fake model, and what it was loaded as."""
    model = FakeModel()
    model.loads = []

    def loader(plan):
        model.loads.append((plan.recipe.model, plan.device))
        return model

    monkeypatch.setitem(runner.run.__kwdefaults__, "loader", loader)
    return model


@pytest.mark.parametrize("name", RENDERING, ids=" ".join)
def test_every_command_that_renders_has_the_option_and_says_what_auto_is(command, name):
    out = " ".join(command(*name, "--help")[1].split())
    assert "-d, --device NAME" in out
    assert "auto, which takes the first CUDA device where there is one" in out
    assert "float32 on a CPU and in float16 on CUDA" in out


@pytest.mark.parametrize("name", RENDERING, ids=" ".join)
@pytest.mark.parametrize(
    ("seen", "device", "said"),
    [
        (0, "cuda", "--device cuda: torch sees no CUDA device; "),
        (2, "cuda:2", "--device cuda:2: torch sees cuda:0 to cuda:1; use one that is there"),
        (2, "gpu", "--device gpu: there is no such device; use auto, cpu, cuda or cuda:N"),
    ],
)
def test_a_device_that_is_not_there_is_one_line_and_makes_nothing(command, see, name, seen, device, said):
    see(seen)
    code, out, err = command(*name, "--device", device)
    assert (code, out) == (2, "")
    assert err.startswith("mxbench: " + said)
    assert err.count("\n") == 1
    assert not list(Path().iterdir())


def test_on_cuda_auto_is_recorded_as_the_kernels_that_it_chose(command, see, loaded):
    pytest.importorskip("triton")
    see(1)
    code, _, _ = command("run", "-a", "mxattn", "-a", "nvfp4", "-n", "1", "-M", "psnr", "-o", "out")
    assert code == 0
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in Path("out/cells").glob("*/cell.json")]
    assert sorted(cell["impl"] for cell in cells) == [["conformance"], ["fast"], ["reference"], ["sdpa"]]
    report = " ".join(Path("out/report.md").read_text(encoding="utf-8").split())
    assert "Computed by kernels, not by the reference: fast: MXAttention; conformance: NVFP4." in report
    command("run", "-a", "nvfp4", "-n", "1", "-M", "psnr", "-i", "fast", "-o", "other")
    assert "no 8-bit type of the matrix units holds the nvfp4" in Path("other/report.md").read_text(encoding="utf-8")
    assert set(KERNELS) == set(kernels.FAMILY)


def test_the_model_is_loaded_there_and_every_table_says_so(command, see, loaded):
    see(2)
    code, _, err = command(*RUN, "-d", "cuda:1")
    assert (code, loaded.loads) == (0, [("nano", "cuda:1")])
    assert "cuda: Test GPU, float16" in " ".join(err.split())
    report = Path("out/report.md").read_text(encoding="utf-8")
    assert "FP16 by the sdpa kernel, cuda float16" in report
    assert "Test GPU" in report
    assert "cuda:1" not in report
    # An equal device is the same environment; the CPU is another, and shares no cell.
    loaded.rendered.clear()
    assert command(*RUN, "-q")[0] == 0
    assert loaded.rendered == []
    assert command(*RUN, "-q", "-d", "cpu")[0] == 0
    assert len(loaded.rendered) == 6
    assert loaded.loads[-1] == ("nano", "cpu")
    assert "cpu float32" in Path("out/report.md").read_text(encoding="utf-8")


def test_without_a_device_auto_is_the_cpu(command, see, loaded):
    see(0)
    assert command(*RUN, "-q")[0] == 0
    assert loaded.loads == [("nano", "cpu")]


FIELDS = {"prompts": ["one"], "methods": ["mxattn"], "sampling": {"frames": 5, "steps": 2}}


def test_the_device_is_in_the_identity_of_every_cell_and_its_number_is_not(see):
    def plans(*devices):
        return [expand(parse(FIELDS), device) for device in devices]

    see(2)
    cpu, first, second, auto = plans("cpu", "cuda", "cuda:1", "auto")
    assert (cpu.device, first.device, second.device, auto.device) == ("cpu", "cuda:0", "cuda:1", "cuda:0")
    assert first.environment["device"] == "cuda: Test GPU"
    assert (first.environment["dtype"], cpu.environment["dtype"]) == ("float16", "float32")
    assert {"torch", "diffusers", "transformers", "cuda", "cudnn"} < set(first.environment)
    assert "threads" not in first.environment
    assert {"cuda", "cudnn"}.isdisjoint(cpu.environment)
    assert first.to_dict() == second.to_dict() == auto.to_dict()
    kernel = "fast" if importlib.util.find_spec("triton") else "reference"
    assert [row.impl for row in first.rows] == [("sdpa",), ("reference",), (kernel,)]
    ids = [{unit.cell.id for unit in plan.units()} for plan in (cpu, first)]
    see(1, "Other GPU")
    ids.append({unit.cell.id for unit in plans("cuda")[0].units()})
    assert len(set.union(*ids)) == 9
    see(0)
    assert plans("auto")[0].to_dict() == cpu.to_dict()


def test_an_exact_kernel_of_cuda_is_supported_there_alone(see):
    see(1)
    fields = FIELDS | {"methods": ["fp16"], "noise_floor": "cudnn"}
    assert expand(parse(fields), "cuda").rows[1].unsupported is None
    assert "CUDA" in expand(parse(fields), "cpu").rows[1].unsupported


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_a_cell_that_does_not_fit_is_named_and_costs_the_others_nothing(command, see, loaded, quiet):
    see(1)
    loaded.fail["mxfp4"] = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a ...")
    Path("p.txt").write_text("a red circle\n", encoding="utf-8")
    code, out, err = command(*RUN, "-a", "mxattn", "-p", "p.txt", *quiet)
    assert code == 1
    line = next(
        line for line in err.splitlines() if line.startswith("mxbench: mxfp4: error: out of memory on cuda:0; ")
    )
    assert "--device" in line
    assert line.endswith("(“a red circle”, seed 0)")
    assert "Traceback" not in err
    assert "out of memory" in out
    assert [name for name, *_ in loaded.rendered] == ["fp16", "fp16", "mxfp4", "mxattn"]
    loaded.fail.clear()
    loaded.rendered.clear()
    assert command(*RUN, "-a", "mxattn", "-p", "p.txt", *quiet)[0] == 0
    assert [name for name, *_ in loaded.rendered] == ["mxfp4"]


def test_several_cells_that_broke_for_one_reason_are_one_line(command, loaded):
    loaded.fail["mxfp4"] = RuntimeError("unlucky")
    Path("p.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    code, _, err = command("run", "-a", "mxfp4", "-p", "p.txt", "-o", "out", "-q")
    assert (code, err.splitlines()[-1]) == (
        1,
        "mxbench: mxfp4: error: RuntimeError: unlucky (“one”, seed 0 and 2 more)",
    )


def test_a_model_that_does_not_fit_is_one_line(command, see, monkeypatch):
    see(1)

    def full(_self, _device):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Nano, "__init__", full)
    for arguments in ((*RUN, "-q"), ("analyze", "attention", "-n", "1")):
        code, _, err = command(*arguments)
        assert code == 2
        assert err.startswith("mxbench: out of memory on cuda:0; ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(("seen", "taken"), [(0, "takes cpu, "), (2, "takes cuda:0, Test GPU")])
def test_doctor_says_what_auto_takes(command, see, monkeypatch, seen, taken):
    see(seen)
    memory = type("Properties", (), {"total_memory": 1 << 37})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    code, out, _ = command("doctor", "--json")
    checks = {row["check"]: row for row in json.loads(out)}
    assert code == 0
    assert checks["--device auto"]["ok"]
    assert checks["--device auto"]["found"].startswith(taken)
    assert checks["impl cudnn"]["ok"] is (True if seen else None)


def test_gpus_that_cannot_share_a_render_are_one_line(command, see):
    see(0)
    for arguments, said in (
        (("--model", "hunyuanvideo", "--weights", "random:tiny"), "no plan that spreads hunyuanvideo over GPUs; leave"),
        (("--model", "nano"), "--gpus 2: a render is spread over CUDA devices, and this one is on cpu; use 1"),
        (("--recipe", "smoke", "--dry-run"), "--gpus 2: a render is spread over CUDA devices"),
    ):
        code, out, err = command("run", *arguments, "--gpus", "2")
        assert (code, out) == (2, "")
        assert err.startswith("mxbench: ")
        assert said in err
        assert err.count("\n") == 1


def test_ablate_takes_one_method(command):
    code, out, err = command("ablate", "-a", "mxattn", "-a", "vc8", "--dry-run")
    assert (code, out) == (2, "")
    assert err == "mxbench: ablate takes one method apart, and --method names mxattn, vc8; run it once for each\n"
