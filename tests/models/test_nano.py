"""The built-in model: the same on every machine and in every process."""

import hashlib
import subprocess
import sys

import numpy as np
import torch

from mxbench.models import facts, load
from mxbench.models.nano import build, tokenizer
from mxbench.models.nano.model import Nano, RandomNano
from mxbench.policy import as_schedule

SCRIPT = """
import hashlib
from mxbench.models.nano.model import Nano
from mxbench.models.base import Sampling
from mxbench.policy import as_schedule
tiny = Sampling(height=32, width=32, frames=5, fps=8, steps=3, guidance=(4.0, 3.0), max_sequence_length=16)
render = Nano().render("a red circle", 3, tiny, as_schedule("fp16"), "auto")
print(hashlib.sha256(render.frames.tobytes() + render.latents.tobytes()).hexdigest())
"""


def test_two_renders_of_one_cell_are_identical_to_the_byte_in_two_processes_too(nano, tiny):
    first = nano.render("a red circle", 3, tiny, as_schedule("fp16"), "auto")
    second = nano.render("a red circle", 3, tiny, as_schedule("fp16"), "auto")
    assert first.frames.tobytes() == second.frames.tobytes()
    assert first.latents.tobytes() == second.latents.tobytes()
    here = hashlib.sha256(first.frames.tobytes() + first.latents.tobytes()).hexdigest()
    other = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == here


def test_prompt_seed_and_method_each_change_the_render(nano, tiny):
    def frames(prompt="a red circle", seed=0, method="fp16"):
        return nano.render(prompt, seed, tiny, as_schedule(method), "auto").frames

    base = frames()
    assert base.shape == (5, 32, 32, 3)
    assert base.dtype == np.uint8
    assert 5 < base.std() < 100
    for other in (frames(prompt="two blue squares"), frames(seed=1), frames(method="mxfp4")):
        assert not np.array_equal(base, other)


def test_it_has_everything_that_wan22_has(nano):
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
    from transformers import UMT5EncoderModel

    pipe = nano.pipe
    assert type(pipe) is WanPipeline
    assert type(pipe.vae) is AutoencoderKLWan
    assert type(pipe.scheduler) is UniPCMultistepScheduler
    assert type(pipe.text_encoder) is UMT5EncoderModel
    assert type(pipe.transformer) is type(pipe.transformer_2) is WanTransformer3DModel
    assert pipe.config.boundary_ratio == 0.875
    known, sampling = facts("nano"), facts("nano").sampling
    config = pipe.transformer.config
    assert config.attention_head_dim in (64, 128)
    assert (known.n_layers, known.n_experts) == (len(pipe.transformer.blocks), 2)
    tokens = ((sampling.frames - 1) // 4 + 1) * (sampling.height // 8) * (sampling.width // 8)
    assert tokens // np.prod(config.patch_size) >= 512


def test_building_leaves_the_callers_generator_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    build.pipeline()
    assert torch.equal(torch.rand(3), wanted)


def test_the_tokenizer_falls_back_to_bytes_and_comes_back():
    words = tokenizer.build()
    for text in ("a red circle moves left", "Ünïcode 🎈 “quoted”", "qux"):
        assert words.decode(words(text).input_ids, skip_special_tokens=True) == text
    assert len(words("a red circle").input_ids) == 4
    assert words.unk_token_id not in words("🎈 \t zebra").input_ids


def test_load_finds_it_by_name():
    assert type(load("nano")) is Nano
    assert Nano.FACTS.weights.startswith("trained, ")
    assert Nano.FACTS.identity != RandomNano.FACTS.identity
