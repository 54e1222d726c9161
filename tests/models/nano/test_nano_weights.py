"""Weights in a folder: what comes back, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch

from mxbench.errors import UserError
from mxbench.models.nano import build, weights
from mxbench.models.nano.model import Nano, RandomNano
from mxbench.models.nano.train.state import TOY

ARCHITECTURE = {k: v for k, v in TOY.items() if k != "gains"}


@pytest.fixture
def saved(tmp_path):
    parts = build.modules(ARCHITECTURE, seed=3)
    weights.save(tmp_path, {k: m.state_dict() for k, m in parts.items()}, ARCHITECTURE, {"steps": 5})
    return parts, tmp_path


def test_weights_come_back_to_half_precision(saved):
    parts, folder = saved
    found = weights.load(folder)
    assert found.training == {"steps": 5}
    assert found.architecture == json.loads(json.dumps(ARCHITECTURE))
    for name, other in build.modules(ARCHITECTURE, seed=4).items():
        weights.fill(other, found.parts[name])
        for key, tensor in parts[name].state_dict().items():
            torch.testing.assert_close(other.state_dict()[key], tensor.half().float(), rtol=0, atol=0)


def test_a_pipeline_from_a_folder(saved):
    pipe = build.trained(saved[1])
    for name in ("transformer", "transformer_2", "vae", "text_encoder"):
        own, true = getattr(pipe, name).state_dict(), saved[0][name].state_dict()
        assert all(torch.equal(own[k], v.half().float()) for k, v in true.items())


def test_files_are_small_enough_to_travel(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_LIMIT", 1 << 18)
    states = {"a": {f"w{i}": torch.randn(200, 200) for i in range(9)}}
    weights.save(tmp_path, states, ARCHITECTURE, {})
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 3
    assert all(f.stat().st_size < (1 << 18) + 4096 for f in files)
    weights.save(tmp_path, {"a": {"w": torch.ones(2)}}, ARCHITECTURE, {})
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_the_digest_changes_with_the_weights(saved, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    weights.save(other, {"vae": saved[0]["vae"].state_dict()}, ARCHITECTURE, {})
    assert weights.load(other).digest != weights.load(saved[1]).digest


def test_a_flipped_bit_is_refused(saved):
    path = next(saved[1].glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"checksum differs.*install mxbench again"):
        weights.load(saved[1])


def test_what_is_missing_is_named(saved, tmp_path_factory):
    with pytest.raises(UserError, match="there are no weights"):
        weights.load(tmp_path_factory.mktemp("empty"))
    next(saved[1].glob("*.safetensors")).unlink()
    with pytest.raises(UserError, match="cannot be read"):
        weights.load(saved[1])
    (saved[1] / weights.MANIFEST).write_text("{")
    with pytest.raises(UserError, match="damaged"):
        weights.load(saved[1])


def test_another_architecture_is_refused(saved):
    found = weights.load(saved[1])
    with pytest.raises(UserError, match="do not fit"):
        weights.fill(build.modules(ARCHITECTURE | {"vae": TOY["vae"] | {"base_dim": 8}})["vae"], found.parts["vae"])
    with pytest.raises(UserError, match="do not fit"):
        weights.fill(torch.nn.Linear(2, 2), {"weight": torch.zeros(2, 2)})


def test_a_number_that_fp16_cannot_hold_is_refused(tmp_path):
    with pytest.raises(UserError, match="FP16 cannot"):
        weights.save(tmp_path, {"a": {"w": torch.tensor([1e6])}}, ARCHITECTURE, {})


def test_the_model_says_which_weights_it_has():
    assert RandomNano.FACTS.weights == "random weights, seed 0"
    assert Nano.FACTS.weights.startswith("trained, ")
    assert sum(f.stat().st_size for f in weights.SHIPPED.iterdir()) < 40e6
    assert Nano.FACTS.identity["weights"] == weights.load().digest


def test_without_weights_there_is_an_error_and_no_random_model(tmp_path):
    with pytest.raises(UserError, match="no weights of the nano model"):
        build.trained(tmp_path)
