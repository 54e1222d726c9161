"""How much of a model is on its device at once: that no choice changes a render, and what comes and goes."""

import gc
from collections import Counter

import pytest
import tiny
import torch

from mxbench import attach
from mxbench.errors import UserError
from mxbench.models import memory
from mxbench.models.memory import MEMORY, parts, place
from mxbench.models.nano.build import SEED, pipeline
from mxbench.models.placement import halve, repeatable
from mxbench.models.render import PipelineModel

GIB = 2**30
OFFLOADS = {"model": memory._model, "group": memory._group}


def call(pipe, output="latent"):
    return pipe(
        "a red circle",
        height=32,
        width=32,
        num_frames=5,
        num_inference_steps=2,
        max_sequence_length=16,
        output_type=output,
        generator=torch.Generator("cpu").manual_seed(0),
    ).frames


def plain(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.fixture(scope="module")
def stock():
    return call(pipeline(SEED))


@pytest.fixture(params=OFFLOADS)
def offloaded(request):
    """A pipeline that is offloaded from the CPU to the CPU."""
    pipe = pipeline(SEED)
    OFFLOADS[request.param](pipe, "cpu")
    return pipe


@pytest.mark.parametrize("name", ["whole", "whole-tiled"])
def test_placing_all_of_it_changes_no_bit(stock, name):
    pipe = pipeline(SEED)
    place(pipe, "cpu", name)
    assert pipe.vae.use_tiling == (name == "whole-tiled")
    assert torch.equal(stock, call(pipe))


def test_offloading_changes_no_bit_however_often(stock, offloaded):
    assert torch.equal(stock, call(offloaded))
    assert torch.equal(stock, call(offloaded))


def test_offloading_decodes_the_same_frames(offloaded):
    assert (call(pipeline(SEED), "np") == call(offloaded, "np")).all()


def test_blocks_come_and_go_one_after_the_other(stock, monkeypatch):
    from diffusers.hooks.group_offloading import ModuleGroup

    pipe = pipeline(SEED)
    memory._group(pipe, "cpu")
    blocks = {
        block: (t, i) for t in ("transformer", "transformer_2") for i, block in enumerate(getattr(pipe, t).blocks)
    }
    moves = []

    def spy(move, said):
        def moving(group):
            moves.extend((said, blocks[module]) for module in group.modules if module in blocks)
            move(group)

        return moving

    monkeypatch.setattr(ModuleGroup, "onload_", spy(ModuleGroup.onload_, "on"))
    monkeypatch.setattr(ModuleGroup, "offload_", spy(ModuleGroup.offload_, "off"))
    assert torch.equal(stock, call(pipe))
    # Two forwards a step, for guidance; the first step is the high-noise expert's and the second the other's.
    wanted = [
        (move, (t, i))
        for t in ("transformer", "transformer_2")
        for _ in "ab"
        for i in range(8)
        for move in ("on", "off")
    ]
    assert moves == wanted


def test_every_leaf_of_the_text_encoder_is_a_group_and_the_transformers_attention_has_none():
    pipe = pipeline(SEED)
    memory._group(pipe, "cpu")

    def hooked(module):
        return hasattr(module, "_diffusers_hook") and "group_offloading" in module._diffusers_hook.hooks

    leaves = [m for m in pipe.text_encoder.modules() if isinstance(m, torch.nn.Linear | torch.nn.Embedding)]
    assert leaves and all(map(hooked, leaves))
    for transformer in (pipe.transformer, pipe.transformer_2):
        inner = {name for name, module in transformer.named_modules() if hooked(module)}
        assert inner == {"", *(f"blocks.{i}" for i in range(8))}
    assert not any(map(hooked, pipe.vae.modules()))


def test_the_vae_comes_to_decode_and_leaves_before_the_next_transformer_call(monkeypatch):
    from accelerate.hooks import CpuOffload

    pipe = pipeline(SEED)
    memory._group(pipe, "cpu")
    moves = []
    for transformer in (pipe.transformer, pipe.transformer_2):
        transformer.proj_out.register_forward_pre_hook(lambda *_: moves.append("forward"))
    monkeypatch.setattr(CpuOffload, "init_hook", lambda _hook, module: moves.append("off") or module)
    monkeypatch.setattr(CpuOffload, "pre_forward", lambda _hook, _module: moves.append("on"))
    call(pipe, "np")
    assert moves == ["off", "forward"] * 4 + ["on"]
    assert pipe.vae.use_tiling is False  # place() sees to that


def test_model_leaves_one_part_on_the_device(monkeypatch):
    """Also of parts outside diffusers' chain, or that a call which failed left there."""
    pipe = pipeline(SEED)
    memory._model(pipe, "cpu")
    left = []
    for name, part in parts(pipe).items():
        monkeypatch.setattr(part, "to", lambda *where, name=name: left.append((name, *where)))
        monkeypatch.setattr(part, "parameters", lambda: iter([torch.empty(1, device="meta")]))  # not on the CPU
    hooks = list(pipe.transformer._forward_pre_hooks.values())
    assert len(hooks) == 1
    hooks[0](pipe.transformer, ())
    assert sorted(left) == [(name, "cpu") for name in ("text_encoder", "transformer_2", "vae")]


# hooks


def sites(pipe):
    return [pipe.transformer, pipe.transformer_2] + [
        module
        for transformer in (pipe.transformer, pipe.transformer_2)
        for block in transformer.blocks
        for module in (block.attn1, block.attn2)
    ]


def counted(pipe):
    """How often hooks that are registered now are called in two renders, and with what."""
    seen = Counter()

    def before(index):
        def hook(_module, args, kwargs):
            seen[index, "before", len(args), *sorted(kwargs)] += 1

        return hook

    def after(index):
        def hook(_module, _args, output):
            seen[index, "after", isinstance(output, torch.Tensor)] += 1

        return hook

    for index, module in enumerate(sites(pipe)):
        module.register_forward_pre_hook(before(index), with_kwargs=True)
        module.register_forward_hook(after(index), always_call=True)
    call(pipe)
    call(pipe)
    return seen


def test_hooks_that_come_later_are_called_as_without_offloading(offloaded):
    seen = counted(offloaded)
    assert seen == counted(pipeline(SEED))
    assert {key[0] for key in seen} == set(range(len(sites(offloaded))))
    assert set(seen.values()) == {4}  # two renders, two forwards an expert


def test_a_hook_that_comes_later_may_change_the_arguments_and_the_output(stock, offloaded):
    pipe = pipeline(SEED)
    for each in (pipe, offloaded):
        for module in sites(each)[2:]:
            module.register_forward_pre_hook(lambda _module, args: (args[0] * 1.5, *args[1:]))
            module.register_forward_hook(lambda _module, _args, output: output * 0.5)
    changed = call(pipe)
    assert not torch.equal(changed, stock)
    assert torch.equal(changed, call(offloaded))


def test_the_seam_attaches_after_offloading(stock, offloaded):
    pipe = pipeline(SEED)
    with attach(pipe, plain) as wanted:
        call(pipe)
    for _ in range(2):
        with attach(offloaded, plain) as seam:
            assert torch.equal(stock, call(offloaded))
        assert seam.calls == wanted.calls
    PipelineModel(offloaded).self_test()
    assert torch.equal(stock, call(offloaded))


def test_the_seam_stays_when_it_was_there_before(stock):
    for offload in OFFLOADS.values():
        pipe = pipeline(SEED)
        with attach(pipe, plain) as seam:
            offload(pipe, "cpu")
            assert torch.equal(stock, call(pipe))
        assert seam.calls and torch.equal(stock, call(pipe))


@pytest.mark.parametrize("offload", OFFLOADS.values(), ids=OFFLOADS)
@pytest.mark.parametrize("family", ["hunyuan", "hunyuan15"])
def test_other_families_are_offloaded_with_the_seam(family, offload):
    """HunyuanVideo-1.5's attention gets a mask without values from the seam, which no hook may move."""
    render = getattr(tiny, f"call_{family}")
    pipe, other = (getattr(tiny, family)() for _ in range(2))
    for each in (pipe, other):
        each.set_progress_bar_config(disable=True)
    offload(other, "cpu")
    assert torch.equal(render(pipe), render(other))
    with attach(pipe, "mxattn"):
        wanted = render(pipe)
    with attach(other, "mxattn"):
        assert torch.equal(wanted, render(other))


def test_a_modular_pipeline_streams_its_blocks():
    pipe = tiny.minimax()
    inputs = PipelineModel(pipe).family.inputs(pipe.transformer)
    with torch.no_grad():
        wanted = pipe.transformer(**inputs)[0]
        memory._group(pipe, "cpu")
        assert torch.equal(wanted, pipe.transformer(**inputs)[0])
    PipelineModel(pipe).self_test()


# refusing


@pytest.mark.parametrize("name", OFFLOADS)
def test_a_cpu_has_nothing_to_offload_to(name):
    pipe = pipeline(SEED)
    with pytest.raises(
        UserError, match=rf"--memory {name} on cpu: there is nothing to offload to; use --memory whole$"
    ):
        place(pipe, "cpu", name)
    assert not pipe.vae.use_tiling


def test_a_modular_pipeline_moves_one_part_at_a_time():
    """CPU to CPU, where a move leaves bits alone: every part has a hook, and none is taken from under a call."""
    from mxbench.models import facts, load
    from mxbench.policy import as_schedule

    sampling = facts("minimax-h3", "random:tiny").sampling
    wanted, model = (load("minimax-h3", "cpu", "random:tiny") for _ in range(2))
    memory._model(model.pipe, "cpu")
    assert {name for name, part in parts(model.pipe).items() if hasattr(part, "_hf_hook")} == set(parts(model.pipe))
    frames = [each.render("x", 0, sampling, as_schedule("mxattn"), "reference").frames for each in (wanted, model)]
    assert (frames[0] == frames[1]).all()


def test_a_vae_without_tiles_is_refused_and_no_vae_is_not():
    from diffusers import AutoencoderKLTemporalDecoder

    pipe = tiny.hunyuan()
    place(pipe, "cpu", "whole-tiled")
    pipe.vae = AutoencoderKLTemporalDecoder(block_out_channels=(32,), layers_per_block=1)
    with pytest.raises(UserError, match="AutoencoderKLTemporalDecoder cannot decode in tiles; use --memory whole"):
        place(pipe, "cpu", "whole-tiled")


def test_a_pipeline_is_placed_again_further_down_and_not_further_up(stock, monkeypatch):
    done = []
    for name in OFFLOADS:
        monkeypatch.setattr(memory, f"_{name}", lambda _pipe, device, name=name: done.append((name, device)))
    pipe = pipeline(SEED)
    for name in ("whole", "whole", "whole-tiled"):
        place(pipe, "cpu", name)
    assert torch.equal(stock, call(pipe))
    with pytest.raises(UserError) as caught:
        place(pipe, "cpu", "whole")
    assert str(caught.value) == (
        "the pipeline is placed as whole-tiled on cpu, which cannot be undone; "
        "load it again to place it as whole on cpu"
    )
    for device, name in [("cuda:0", "model"), ("cuda:1", "model"), ("cuda:0", "group"), ("cuda:0", "group")]:
        place(pipe, device, name)
    assert done == [("model", "cuda:0"), ("model", "cuda:1"), ("group", "cuda:0")]
    for device, name in [("cuda:1", "group"), ("cuda:0", "model"), ("cpu", "whole")]:
        with pytest.raises(UserError, match=f"placed as group on cuda:0.*place it as {name} on {device}"):
            place(pipe, device, name)


def test_offloading_by_blocks_takes_over_from_offloading_by_parts(stock):
    pipe = pipeline(SEED)
    memory._model(pipe, "cpu")
    assert torch.equal(stock, call(pipe))
    memory._group(pipe, "cpu")
    assert torch.equal(stock, call(pipe))
    assert [name for name, part in parts(pipe).items() if hasattr(part, "_hf_hook")] == ["vae"]


def test_a_placement_that_failed_leaves_nothing_behind(monkeypatch):
    pipe = pipeline(SEED)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(type(pipe), "to", full)
        with pytest.raises(torch.OutOfMemoryError):
            place(pipe, "cuda:0", "whole-tiled")
    assert not pipe.vae.use_tiling
    place(pipe, "cpu", "whole")
    place(pipe, "cpu", "whole-tiled")
    assert pipe.vae.use_tiling


# on a GPU


@pytest.mark.gpu
def test_no_choice_changes_a_bit_on_cuda():
    repeatable("cuda:0")
    latents, peaks = {}, {}
    for name in MEMORY:
        pipe = pipeline(SEED)
        halve(pipe)
        place(pipe, "cuda:0", name)
        with attach(pipe, "mxattn", impl="reference"):
            call(pipe)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            latents[name] = call(pipe).cpu()  # the second one prefetches
        peaks[name] = torch.cuda.max_memory_allocated()
        frames = call(pipe, "np")
        assert frames.shape == (1, 5, 32, 32, 3)
        del pipe
        gc.collect()
        torch.cuda.empty_cache()
    assert all(torch.equal(latents["whole"], other) for other in latents.values())
    assert peaks["group"] < peaks["model"] < peaks["whole-tiled"]
