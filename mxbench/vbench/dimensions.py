"""DIMENSIONS: the seven of VBench's dimensions that work on videos of one's own, and the files that each needs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DIMENSIONS", "VERSION", "Dimension", "File"]

VERSION = "0.1.5"
"""Of the package vbench whose scores these are."""

_CLIP = "https://openaipublic.azureedge.net/clip/models"


@dataclass(frozen=True, slots=True)
class File:
    """A file that the package reads from its cache.

    Attributes:
        path: below the cache folder.
        size: about how many bytes, to a few percent.
        source: where it comes from.
        licence: its terms, as its authors state them.
        sha256: of its bytes, where its authors publish it or the file itself in their repository; otherwise None.
        member: its path inside an archive that ``source`` is; None where it is the file itself.
    """

    path: str
    size: int
    source: str
    licence: str
    sha256: str | None = None
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Dimension:
    """One of VBench's dimensions.

    Attributes:
        name: VBench's.
        files: what it needs below the cache folder.
        frames: the fewest of a video that it has a value for.
        divisor: what the package divides its value of a video by when it makes its total. Ours are divided too.
        by_frames: whether the package's total weighs a video by its frames; ours never does.
    """

    name: str
    files: tuple[File, ...]
    frames: int
    divisor: float = 1.0
    by_frames: bool = False


_DINO = File(
    "dino_model/dino_vitbase16_pretrain.pth",
    343_000_000,
    "https://dl.fbaipublicfiles.com/dino/dino_vitbase16_pretrain/dino_vitbase16_pretrain.pth",
    "Apache 2.0",
)
_DINO_CODE = tuple(
    File(
        f"dino_model/facebookresearch_dino_main/{name}",
        size,
        f"https://raw.githubusercontent.com/facebookresearch/dino/7c446df5b9f45747937fb0d72314eb9f7b66930a/{name}",
        "Apache 2.0",
        sha256,
    )
    for name, size, sha256 in (
        ("hubconf.py", 5_653, "fa80babf82c71d2123e23b05061eb1991a1fbc9877238f250b2a25023e910f72"),
        ("vision_transformer.py", 11_150, "b1f998d5f49ab43666b9fc6d007c5f6540c3ead2e8645e144f74045f63ff44d7"),
        ("utils.py", 28_039, "962a97e1acda1c986dfd921275325e4083f9016dddadcf018f1ccf03fa600eab"),
    )
)
_VIT_B_32 = File(
    "clip_model/ViT-B-32.pt",
    354_000_000,
    f"{_CLIP}/40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af/ViT-B-32.pt",
    "MIT",
    "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af",
)
_VIT_L_14 = File(
    "clip_model/ViT-L-14.pt",
    932_000_000,
    f"{_CLIP}/b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836/ViT-L-14.pt",
    "MIT",
    "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836",
)
_AESTHETIC = File(
    "aesthetic_model/emb_reader/sa_0_4_vit_l_14_linear.pth",
    4_071,
    "https://github.com/LAION-AI/aesthetic-predictor/raw/6d122adad522ab246644d9dc1c6d7a3810ee255f/"
    "sa_0_4_vit_l_14_linear.pth",
    "MIT",
    "2cd4e60f4f24ae3bcd57b847b13c1f3ba27edc28cc1a7f9ce74ee9f421243cba",
)
_MUSIQ = File(
    "pyiqa_model/musiq_spaq_ckpt-358bb6af.pth",
    109_000_000,
    "https://github.com/chaofengc/IQA-PyTorch/releases/download/v0.1-weights/musiq_spaq_ckpt-358bb6af.pth",
    "CC BY-NC-SA 4.0, as pyiqa's weights on the hub: not for commercial use",
    "358bb6af275e28ea56821d44fb55c6cb83645db11f394d3ad65b2d149965ab50",
)
_AMT = File(
    "amt_model/amt-s.pth",
    12_038_359,
    "https://huggingface.co/lalala125/AMT/resolve/main/amt-s.pth",
    "CC BY-NC-SA 4.0, as its page on the hub: not for commercial use",
    "07e7e03405c213fe4405678db9b42d05671e48c56faf6a441b99bb0047d3cf77",
)
_RAFT = File(
    "raft_model/models/raft-things.pth",
    21_108_000,
    "https://dl.dropboxusercontent.com/s/4j4z58wuv8o0mfz/models.zip",
    "BSD 3-Clause",
    "fcfa4125d6418f4de95d84aec20a3c5f4e205101715a79f193243c186ac9a7e1",
    "models/raft-things.pth",
)

DIMENSIONS: dict[str, Dimension] = {
    each.name: each
    for each in (
        Dimension("subject_consistency", (*_DINO_CODE, _DINO), 2, by_frames=True),
        Dimension("background_consistency", (_VIT_B_32,), 2, by_frames=True),
        Dimension("temporal_flickering", (), 2),
        Dimension("motion_smoothness", (_AMT,), 3),
        Dimension("dynamic_degree", (_RAFT,), 2),
        Dimension("aesthetic_quality", (_VIT_L_14, _AESTHETIC), 1),
        Dimension("imaging_quality", (_MUSIQ,), 1, divisor=100.0),
    )
}
