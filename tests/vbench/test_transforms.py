"""The stand-in for torchvision's transforms, against torch's own operations and what it refuses."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[2] / "mxbench/vbench/inside/transforms.py"
spec = importlib.util.spec_from_file_location("stand_in_transforms", FILE)
transforms = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = transforms
spec.loader.exec_module(transforms)

MODES = transforms.InterpolationMode


def frames(height, width, count=2):
    return 255 * torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(height * width))


@pytest.mark.parametrize(
    ("height", "width", "size"), [(480, 853, (224, 398)), (853, 480, (398, 224)), (224, 300, (224, 300))]
)
def test_the_shorter_side_becomes_the_size(height, width, size):
    out = transforms.Resize(224, interpolation=MODES.BICUBIC, antialias=False)(frames(height, width))
    assert out.shape[-2:] == size
    wanted = torch.nn.functional.interpolate(frames(height, width), size=size, mode="bicubic", align_corners=False)
    assert torch.equal(out, wanted if size != (height, width) else frames(height, width))


def test_a_size_of_both_sides_and_bilinear():
    x = frames(33, 47)
    wanted = torch.nn.functional.interpolate(x, size=(20, 30), mode="bilinear", align_corners=False)
    assert torch.equal(transforms.Resize((20, 30), antialias=False)(x), wanted)


@pytest.mark.parametrize(("height", "width", "top", "left"), [(225, 228, 0, 2), (224, 227, 0, 2), (226, 224, 1, 0)])
def test_the_middle_is_cut_as_python_rounds(height, width, top, left):
    x = frames(height, width)
    assert torch.equal(transforms.CenterCrop(224)(x), x[..., top : top + 224, left : left + 224])


def test_a_chain_normalises():
    x = frames(8, 8)
    chain = transforms.Compose(
        [transforms.Lambda(lambda y: y.float().div(255.0)), transforms.Normalize((0.5, 0.25, 0), (2, 4, 1))]
    )
    mean, std = torch.tensor([0.5, 0.25, 0.0]).view(3, 1, 1), torch.tensor([2.0, 4.0, 1.0]).view(3, 1, 1)
    assert torch.equal(chain(x), (x / 255 - mean) / std)


@pytest.mark.parametrize(
    "call",
    [
        lambda: transforms.Resize(8, max_size=10),
        lambda: transforms.Resize(8)(torch.zeros(3, 8, 9, dtype=torch.uint8)),
        lambda: transforms.CenterCrop(9)(torch.zeros(3, 8, 9)),
        lambda: transforms.Normalize((0,), (1,), inplace=True),
    ],
)
def test_what_vbench_does_not_ask_for_is_refused(call):
    with pytest.raises(NotImplementedError):
        call()
