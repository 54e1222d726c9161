"""Which way to place a model fits a device, what is said where none does, and what parts weigh."""

from itertools import product

import pytest
import tiny
import torch

from mxbench.errors import UserError
from mxbench.models import memory
from mxbench.models.memory import MEMORY, Need, bytes_of, choose, gib, out_of_memory, parts, place, smaller
from mxbench.models.nano.build import SEED, pipeline

GIB = 2**30


@pytest.mark.parametrize(
    ("free", "wanted"),
    [
        (90, "whole"),  # 64 + 20, and 84 / 0.94 = 89.4
        (89, "whole-tiled"),  # 64 + 10
        (79, "whole-tiled"),
        (78, "model"),  # 27 + 10
        (40, "model"),
        (39, "group"),  # 27 / 8 + 10
        (15, "group"),
    ],
)
def test_the_largest_choice_that_fits_is_taken(free, wanted):
    need = Need(weights=64 * GIB, largest=27 * GIB, activations=10 * GIB, decode=20 * GIB)
    assert choose(need, free * GIB, device="cuda:0") == wanted


def test_tiles_are_left_out_where_decoding_is_not_what_takes_most():
    need = Need(weights=10, largest=9, activations=100, decode=50)
    assert [choose(need, free, device="cuda:0") for free in (118, 117, 116)] == ["whole", "model", "model"]


def test_more_room_never_gives_a_smaller_choice():
    names = list(MEMORY)
    for weights, share, activations, decode in product((1, 64), (0.4, 1), (0, 10), (0, 50)):
        need = Need(weights * GIB, int(weights * share * GIB), activations * GIB, decode * GIB)
        taken = []
        for free in range(120, 0, -1):
            try:
                taken.append(names.index(choose(need, free * GIB, device="cuda:1")))
            except UserError:
                taken.append(len(names))
        assert taken == sorted(taken)
        assert taken[0] == 0 or weights + max(activations, decode) > 112


def test_where_nothing_fits_both_sizes_are_named():
    need = Need(weights=64 * GIB, largest=27 * GIB, activations=10 * GIB, decode=20 * GIB)
    with pytest.raises(UserError) as caught:
        choose(need, 14 * GIB, device="cuda:1")
    assert str(caught.value) == (
        "even --memory group needs 14.2 GiB on cuda:1, which has 14.0 GiB; "
        "use a larger GPU, fewer frames or a smaller size"
    )


def test_a_cpu_takes_the_model_whole():
    assert choose(Need(64 * GIB, 27 * GIB, 10 * GIB, 20 * GIB), 0, device="cpu") == "whole"


def test_the_names_go_from_large_to_small():
    assert list(MEMORY) == ["whole", "whole-tiled", "model", "group"]
    assert [smaller(name) for name in MEMORY] == ["whole-tiled", "model", "group", None]


@pytest.mark.parametrize(
    "use", [memory.check, smaller, lambda name: out_of_memory(name, "cpu"), lambda name: place(None, "cpu", name)]
)
def test_an_unknown_name_gets_the_nearest(use):
    with pytest.raises(UserError, match="unknown --memory 'whole-tile'; did you mean whole-tiled"):
        use("whole-tile")
    for name in MEMORY:
        memory.check(name)


@pytest.mark.parametrize(
    ("name", "device", "fix"),
    [
        ("whole", "cuda:0", "use --memory whole-tiled"),
        ("whole-tiled", "cuda:0", "use --memory model"),
        ("model", "cuda:1", "use --memory group"),
        ("group", "cuda:1", "use a smaller clip or another device"),
        ("whole", "cpu", "use --memory whole-tiled"),
        ("whole-tiled", "cpu", "use a smaller clip or another device"),
    ],
)
def test_out_of_memory_names_what_to_use_next(name, device, fix):
    assert str(out_of_memory(name, device)) == f"out of memory on {device} with --memory {name}; {fix}"


@pytest.mark.parametrize(
    ("name", "fix"), [("whole", "--memory model"), ("whole-tiled", "--memory model"), ("model", "--memory group")]
)
def test_where_the_weights_do_not_fit_tiles_are_no_help(name, fix):
    assert str(out_of_memory(name, "cuda:0", loading=True)).endswith(f"use {fix}")
    assert "--memory" not in str(out_of_memory(name, "cpu", loading=True)).split("; ")[1]


def test_bytes_are_written_in_gib():
    assert [gib(n) for n in (0, GIB // 10, 64 * 10**9, 133 * GIB)] == ["0.0 GiB", "0.1 GiB", "59.6 GiB", "133.0 GiB"]


# counting


def test_the_parts_of_a_pipeline_are_its_networks():
    assert set(parts(pipeline(SEED))) == {"text_encoder", "vae", "transformer", "transformer_2"}
    assert set(parts(tiny.hunyuan())) == {"transformer"}  # the others are None
    assert set(parts(tiny.minimax())) == {"transformer"}  # a modular pipeline


def test_bytes_count_parameters_and_buffers_and_what_is_shared_once():
    net = torch.nn.Sequential(torch.nn.Linear(3, 5, dtype=torch.bfloat16), torch.nn.Linear(5, 3, bias=False))
    net.register_buffer("angles", torch.zeros(7, dtype=torch.float64), persistent=False)
    assert bytes_of(net) == 2 * (15 + 5) + 4 * 15 + 8 * 7
    net.append(net[0])
    assert bytes_of(net) == 2 * (15 + 5) + 4 * 15 + 8 * 7
    assert bytes_of(torch.nn.Linear(1000, 1000, bias=False, device="meta")) == 4_000_000


def test_what_streams_is_at_most_an_eighth_of_the_real_transformers():
    """Two blocks and what lies outside the blocks, of the classes at their full size."""
    import diffusers

    for family in ("Wan", "HunyuanVideo", "HunyuanVideo15", "MiniMaxH3"):
        with torch.device("meta"):
            transformer = getattr(diffusers, f"{family}Transformer3DModel")()
        lists = [child for child in transformer.children() if isinstance(child, torch.nn.ModuleList)]
        blocks = [bytes_of(block) for held in lists for block in held]
        whole = bytes_of(transformer)
        assert 2 * max(blocks) + whole - sum(blocks) < whole / memory._STREAMED
