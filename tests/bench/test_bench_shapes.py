"""Shapes as they are written, and those of the models."""

import math

import pytest

from mxbench.bench.shapes import MODEL_SHAPES, Shape, chosen_shapes, parse_shape
from mxbench.errors import UserError
from mxbench.models import facts
from mxbench.models.nano import build


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("1x40x75600x128", Shape(1, 40, 75_600, 75_600, 128)),
        (" 2X3x17x64:129 ", Shape(2, 3, 17, 129, 64)),
        ("1×1×1×1:1", Shape(1, 1, 1, 1, 1)),
    ],
)
def test_shapes_are_read_and_written_alike(text, shape):
    assert parse_shape(text) == shape
    assert parse_shape(str(shape)) == shape
    assert parse_shape(shape.title) == shape


@pytest.mark.parametrize("text", ["", "1x2x3", "1x2x3x4x5", "1x2x-3x4", "1x2x3x4:", "1x2x3.5x4", "axbxcxd", "1,2,3,4"])
def test_what_is_no_shape_is_said_with_an_example(text):
    with pytest.raises(UserError, match="is no shape; write BxHxNxD"):
        parse_shape(text)


@pytest.mark.parametrize("text", ["0x1x1x1", "1x0x1x1", "1x1x0x1", "1x1x1x0", "1x1x1x1:0"])
def test_nothing_is_no_shape(text):
    with pytest.raises(UserError, match="nothing in it"):
        parse_shape(text)


def test_operations_are_those_of_two_products():
    shape = Shape(2, 3, 5, 7, 11)
    q_by_k = 2 * math.prod((2, 3, 5, 7, 11))
    assert shape.flop == 2 * q_by_k
    wan = next(each.shape for each in MODEL_SHAPES if each.model == "wan2.2")
    assert wan.flop / 1e12 == pytest.approx(117.0, abs=0.1)


def test_tokens_are_those_of_the_latent_grids():
    """4n + 1 frames make n + 1 latent ones; 8 by the VAE and 2 by the patches leave a 16th of each side."""

    def tokens(frames, height, width):
        return ((frames - 1) // 4 + 1) * (height // 16) * (width // 16)

    known = {(each.model, each.label): each.shape.queries for each in MODEL_SHAPES}
    assert len(known) == len(MODEL_SHAPES)
    of = {model: count for (model, _), count in known.items()}
    assert of["wan2.2"] == tokens(81, 720, 1280)
    assert of["hunyuanvideo"] == tokens(129, 720, 1280) + 256
    assert of["hunyuanvideo-1.5"] == tokens(121, 720, 1280) + 1985
    for frames in (243, 124):  # 17n + 5 frames make 5n + 2; sound in two channels at 40 a second; some text
        video = ((frames - 5) // 17 * 5 + 2) * (768 // 32) * (1344 // 32)
        label = f"MiniMax-H3, {frames} frames of 1344×768"
        assert known["minimax-h3", label] == video + 2 * round(frames / 24 * 40) + 100
    assert of["longcat-video"] == tokens(93, 480, 832)
    assert all(each.source and each.label for each in MODEL_SHAPES)


def test_nano_is_what_it_is_built_as():
    parts = build.ARCHITECTURE["transformer"]
    sampling = facts("nano").sampling
    side = build.ARCHITECTURE["vae"]["scale_factor_spatial"] * parts["patch_size"][1]
    grid = ((sampling.frames - 1) // 4 + 1) * (sampling.height // side) * (sampling.width // side)
    shape = next(each.shape for each in MODEL_SHAPES if each.model == "nano")
    assert shape == Shape(1, parts["num_attention_heads"], grid, grid, parts["attention_head_dim"])


def test_models_and_written_shapes_come_together_once_each():
    assert [str(shape) for _, shape in chosen_shapes([], [])] == ["1x2x1280x128"]
    assert [str(shape) for _, shape in chosen_shapes([], ["1x1x8x16"])] == ["1x1x8x16"]
    found = chosen_shapes(["Wan2.2", "minimax-h3"], ["1x40x75600x128", "1x1x8x16", "1x1x8x16"])
    assert [str(shape) for _, shape in found] == [
        "1x40x75600x128",
        "1x56x73486x128",
        "1x56x37810x128",
        "1x1x8x16",
    ]
    assert [bool(label) for label, _ in found] == [True, True, True, False]
    assert chosen_shapes([], ["1x2x1280x128"])[0][0] == "nano, 17 frames of 128×128"
    with pytest.raises(UserError, match=r"unknown model 'wan2.3'; did you mean wan2.2"):
        chosen_shapes(["wan2.3"], [])
