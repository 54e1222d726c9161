from pathlib import Path

import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file
from saved_pipelines import INDEX, SHARDS, TEXT, VAE, tensors, write

from mxbench.models.base import Sampling


@pytest.fixture(scope="session")
def nano():
    from mxbench.models.nano.model import Nano

    return Nano()


@pytest.fixture(scope="session")
def tiny():
    """16 tokens a frame: a render takes a fraction of a second."""
    return Sampling(height=32, width=32, frames=5, fps=8, steps=3, guidance=(4.0, 3.0), max_sequence_length=16)


@pytest.fixture
def folder(tmp_path):
    """A pipeline as ``hf download --local-dir`` leaves it, without values that mean anything."""
    root = tmp_path / "pipeline"
    write(root / "model_index.json", INDEX)
    write(root / "scheduler/scheduler_config.json", {"flow_shift": 12.0})
    write(root / "tokenizer/tokenizer.json", {"model": {}})
    write(root / "tokenizer/tokenizer_config.json", {"extra_ids": 300})
    write(root / "tokenizer/spiece.model", "pieces")
    for number, name in enumerate([*SHARDS, VAE, TEXT]):
        write((root / name).parent / "config.json", {"layers": 2})
        save_file(tensors(number), root / name)
    mapping = {f"blocks.{i}.w": Path(name).name for i, name in enumerate(SHARDS)}
    write(root / "transformer/diffusion_pytorch_model.safetensors.index.json", {"weight_map": mapping})
    write(root / "README.md", "# Video")
    write(root / ".gitattributes", "*.safetensors filter=lfs")
    return root


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache, and no network to fill it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return tmp_path / "hub"
