"""Weights of the right shape for VBench's seven dimensions, small where the packages allow it, random from a seed.

``python vbench_weights.py FOLDER`` in an environment that has vbench; FOLDER is then a VBENCH_CACHE_DIR. Scores made
with them say nothing of a video. The transformer that stands in for DINO's is our own.

``python vbench_weights.py FOLDER --full DINO_CODE_FOLDER`` makes CLIP's ViT-B/32 and L/14 and DINO's ViT-B/16 of the
published shapes, 2.8 GB, so that times and memory can be measured without the published files. DINO_CODE_FOLDER holds
``hubconf.py``, ``vision_transformer.py`` and ``utils.py`` of github.com/facebookresearch/dino. CLIP's are in FP32, as
a trace on a CPU is, and so twice as large as the published ones.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "mxbench/vbench/inside"))

import shims
import torch

HUBCONF = """
import torch
from torchvision.models.resnet import resnet50

import vision_transformer as vits

dependencies = ["torch", "torchvision"]


def dino_vitb16(pretrained=True, **kwargs):
    model = vits.Small(**kwargs)
    if pretrained:
        url = "https://dl.fbaipublicfiles.com/dino/dino_vitbase16_pretrain/dino_vitbase16_pretrain.pth"
        model.load_state_dict(torch.hub.load_state_dict_from_url(url=url, map_location="cpu"))
    return model.eval()
"""
TRANSFORMER = """
from torch import nn
from utils import WIDTH


class Small(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 96, batch_first=True, dropout=0.0)

    def forward(self, x):
        return self.layer(self.patches(x).flatten(2).transpose(1, 2)).mean(1)
"""


def dino(folder: Path, full: Path | None) -> None:
    code = folder / "facebookresearch_dino_main"
    code.mkdir(parents=True)
    for name, text in (("hubconf", HUBCONF), ("vision_transformer", TRANSFORMER), ("utils", "WIDTH = 48\n")):
        if full is None:
            (code / f"{name}.py").write_text(text)
        else:
            shutil.copy(full / f"{name}.py", code)
    model = torch.hub.load(str(code), "dino_vitb16", source="local", pretrained=False)
    torch.save(model.state_dict(), folder / "dino_vitbase16_pretrain.pth")


SMALL = (2, 64, 512, 64, 1, 2)
"""Of CLIP: layers and width of its pictures; words, width, heads and layers of its texts."""


def clip(path: Path, patch: int, width: int, shape: tuple[int, ...] = SMALL) -> None:
    from clip.model import CLIP

    path.parent.mkdir(parents=True, exist_ok=True)
    layers, inner, words, text_width, heads, text_layers = shape
    model = CLIP(width, 224, layers, inner, patch, 77, words, text_width, heads, text_layers).eval()
    example = (torch.zeros(1, 3, 224, 224), torch.zeros(1, 77, dtype=torch.int64))
    torch.jit.save(torch.jit.trace(model, example, check_trace=False), str(path))


def musiq(path: Path) -> None:
    from pyiqa.archs.musiq_arch import MUSIQ

    path.parent.mkdir(parents=True)
    torch.save(MUSIQ(pretrained=None).state_dict(), path)


def aesthetic(path: Path) -> None:
    path.parent.mkdir(parents=True)
    torch.save(torch.nn.Linear(768, 1).state_dict(), path)


def amt(path: Path) -> None:
    import vbench
    from omegaconf import OmegaConf
    from vbench.third_party.amt.utils.build_utils import build_from_cfg

    path.parent.mkdir(parents=True)
    config = OmegaConf.load(Path(vbench.__file__).parent / "third_party/amt/cfgs/AMT-S.yaml").network
    import vbench.motion_smoothness  # its folder holds the networks

    torch.save({"state_dict": build_from_cfg(config).state_dict()}, path)


def raft(path: Path) -> None:
    from easydict import EasyDict
    from vbench.dynamic_degree import RAFT

    path.parent.mkdir(parents=True)
    model = RAFT(EasyDict(small=False, mixed_precision=False, alternate_corr=False))
    torch.save({f"module.{name}": value for name, value in model.state_dict().items()}, path)


def main(folder: Path, full: Path | None) -> None:
    shims.fit()
    torch.manual_seed(0)
    dino(folder / "dino_model", full)
    clip(folder / "clip_model/ViT-L-14.pt", 14, 768, SMALL if full is None else (24, 1024, 49408, 768, 12, 12))
    clip(folder / "clip_model/ViT-B-32.pt", 32, 512, SMALL if full is None else (12, 768, 49408, 512, 8, 12))
    aesthetic(folder / "aesthetic_model/emb_reader/sa_0_4_vit_l_14_linear.pth")
    musiq(folder / "pyiqa_model/musiq_spaq_ckpt-358bb6af.pth")
    amt(folder / "amt_model/amt-s.pth")
    raft(folder / "raft_model/models/raft-things.pth")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full", type=Path, metavar="DINO_CODE_FOLDER")
    asked = parser.parse_args()
    main(asked.folder, asked.full)
