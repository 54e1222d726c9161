"""The training: the whole-clip VAE is diffusers', and every stage runs, stops, goes on and exports at toy size."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch

from mxbench.errors import UserError
from mxbench.models.nano import build, tokenizer, weights
from mxbench.models.nano.scene import Scene, Thing
from mxbench.models.nano.train import __main__ as command
from mxbench.models.nano.train.blocks import Rotating
from mxbench.models.nano.train.codec import Codec
from mxbench.models.nano.train.data import tokens
from mxbench.models.nano.train.optimise import Muon, adamw, orthogonal
from mxbench.models.nano.train.options import parse
from mxbench.models.nano.train.state import TOY
from mxbench.models.nano.train.step import Recorded, eager
from mxbench.models.nano.train.text import CLASSES, embed, labelled
from mxbench.models.nano.train.trainee import Task, Trainee
from mxbench.models.nano.train.world import World


@pytest.fixture(scope="module")
def parts():
    return build.modules(TOY)


def test_the_codec_computes_what_diffusers_does(parts):
    torch.manual_seed(0)
    vae, codec = parts["vae"], Codec(parts["vae"])
    clip, latents = torch.rand(2, 3, 9, 32, 48) * 2 - 1, torch.randn(2, 16, 3, 4, 6)
    with torch.no_grad():
        posterior = vae.encode(clip).latent_dist
        mean, log_variance = codec.encode(clip)
        torch.testing.assert_close(mean, posterior.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(log_variance, posterior.logvar, rtol=1e-4, atol=1e-5)
        out = codec.decode(latents)
        torch.testing.assert_close(out.clamp(-1, 1), vae.decode(latents).sample, rtol=1e-4, atol=1e-5)


def test_the_codec_has_diffusers_gradients(monkeypatch):
    torch.manual_seed(1)
    vae = build.modules(TOY)["vae"]
    latents = torch.randn(1, 16, 3, 2, 2)
    Codec(vae).decode(latents).square().sum().backward()
    mine = {n: p.grad.clone() for n, p in vae.decoder.named_parameters()}
    vae.zero_grad()
    monkeypatch.setattr(torch, "clamp", lambda x, **_: x)
    vae.decode(latents).sample.square().sum().backward()
    for name, parameter in vae.decoder.named_parameters():
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(mine[name], parameter.grad, rtol=1e-3, atol=1e-4 * scale)


def test_prompts_are_embedded_as_the_pipeline_does_it(parts):
    pipe = build.assemble(parts, TOY)
    prompts = ["a small red circle moves left over a navy background", ""]
    with torch.no_grad():
        true = pipe.encode_prompt(prompts, do_classifier_free_guidance=False, max_sequence_length=64)[0]
        mine = embed(parts["text_encoder"], tokens(tokenizer.build(), prompts))
    torch.testing.assert_close(mine, true)


def test_the_processor_for_training_computes_what_diffusers_does():
    torch.manual_seed(3)
    architecture = TOY["transformer"] | {"num_attention_heads": 3, "cross_attn_norm": True}
    dit = build.modules(TOY | {"transformer": architecture})["transformer"].double()
    rotary = dit.rope(torch.zeros(1, 16, 3, 4, 5))
    text, x = torch.randn(2, 7, 48).double(), torch.randn(2, 60, 48).double()
    for attention, more in ((dit.blocks[0].attn1, {"rotary_emb": rotary}), (dit.blocks[0].attn2, {})):
        arguments = (x, text if attention is dit.blocks[0].attn2 else None)
        stock = attention(*arguments, **more)
        attention.set_processor(Rotating(16, x))
        torch.testing.assert_close(attention(*arguments, **more), stock, rtol=1e-10, atol=1e-12)


@pytest.mark.gpu
def test_a_recorded_step_is_the_step():
    device, ends = torch.device("cuda"), []
    x, y = torch.randn(64, 32, device=device), torch.randn(64, 16, device=device)
    for record in (False, True):
        torch.manual_seed(5)
        net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 16)).to(device)
        trainee = Trainee({"net": net}, [Muon([net[0].weight], 0.02), adamw([(net[2].parameters(), 1e-3)], device)])
        world = World(0, 1, device)
        task = Task(lambda _: None, lambda net=net: ((net(x) - y).square().mean(), {}))
        told = []
        run = partial(eager, task, trainee, world)
        for i in range(30):
            if record and i == 3:
                run = Recorded(task, trainee, world)
            trainee.plan(1 - i / 30)
            told.append({k: float(v) for k, v in run().items()})
        ends.append((told, [a.clone() for a in trainee.averages], [p.detach().clone() for p in net.parameters()]))
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-5)
    for a, b in zip((*ends[0][1], *ends[0][2]), (*ends[1][1], *ends[1][2]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_every_word_is_labelled_with_what_it_is_of():
    words = tokenizer.build()
    scene = Scene(
        (Thing("red", "ring", "left", "small"), Thing("cyan", "star", "grows", None, striped=True)), "navy", "gradient"
    )
    ids, labels = labelled(words, [scene])
    pieces = [words.convert_ids_to_tokens(int(i)).strip("▁") for i in ids[0]]
    told = {
        at: {n: v[int(c)] for (n, v), c in zip(CLASSES.items(), labels[0, at], strict=True) if int(c) != -100}
        for at in range(64)
    }
    first = {"colour": "red", "shape": "ring", "motion": "left", "size": "small", "striped": False}
    second = {"colour": "cyan", "shape": "star", "motion": "grows", "size": None, "striped": True}
    both = {"count": 2, "pan": None}
    assert told[pieces.index("left")] == told[pieces.index("red")] == first | both
    assert told[pieces.index("striped")] == told[pieces.index("grows")] == second | both
    assert told[pieces.index("and")] == {"count": 2}
    assert told[pieces.index("navy")] == {"background": "navy", "pattern": "gradient", "count": 2}
    assert told[pieces.index("</s>")] == told[63] == {}
    panned = Scene((Thing("red", "ring", "still"),), "navy", "striped", "up")
    ids, labels = labelled(words, [panned] * 40, np.random.default_rng(0))
    spoken = {words.decode([int(i) for i in row if i]) for row in ids}
    assert len(spoken) > 5
    assert (labels[..., list(CLASSES).index("pan")] == list(CLASSES["pan"]).index("up")).any(1).all()


def test_muon_turns_a_gradient_into_an_orthogonal_step():
    torch.manual_seed(2)
    for shape in ((3, 16, 16), (2, 32, 8), (2, 8, 32)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert float(values.min()) > 0.3
        assert float(values.max()) < 1.3
    weight = torch.nn.Parameter(torch.zeros(8, 8))
    target = torch.randn(8, 8)
    optimiser = Muon([weight], 0.05)
    for _ in range(200):
        loss = (weight - target).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    assert float(loss.detach()) < 0.05 * float(target.square().mean())


def toy(tmp_path, *more: str) -> None:
    command.main(["--toy", "--folder", str(tmp_path / "work"), "--out", str(tmp_path / "out"), *more])


def lines(tmp_path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "work" / "log.jsonl").read_text().splitlines()]


def test_a_toy_takes_toy_times_unless_told_otherwise():
    assert sum(parse([]).minutes.values()) == 38
    assert sum(parse(["--toy"]).minutes.values()) < 0.5
    told = parse(["--toy", "--minutes-joint", "3"]).minutes
    assert told == parse(["--toy"]).minutes | {"joint": 3}


@pytest.mark.slow
def test_every_stage_from_nothing_to_weights(tmp_path):
    short = ["--minutes-vae", "0.01", "--minutes-text", "0.01", "--minutes-joint", "0.01", "--minutes-experts", "0.01"]
    with pytest.raises(UserError, match="stage vae was not trained yet"):
        toy(tmp_path, "--stage", "joint", *short)
    toy(tmp_path, "--stage", "vae,text,export", *short)
    assert set(weights.load(tmp_path / "out").parts) == {"vae", "text_encoder"}
    # Stopped at once: the stage goes on, from its own checkpoint, where it was.
    toy(tmp_path, "--stage", "joint", "--stop-after", "0", "--minutes-joint", "60")
    before = weights_of(tmp_path / "work" / "joint.pt")
    assert before["facts"] == {"elapsed": 0.0, "step": 1, "done": False}
    toy(tmp_path, "--stage", "joint,experts,export", *short)
    after = weights_of(tmp_path / "work" / "joint.pt")
    assert after["facts"]["done"]
    assert after["facts"]["step"] > 1
    found = weights.load(tmp_path / "out")
    assert set(found.parts) == {"vae", "text_encoder", "transformer", "transformer_2"}
    first, second = (found.parts[n]["blocks.0.attn1.to_q.weight"] for n in ("transformer", "transformer_2"))
    assert not torch.equal(first, second)
    assert len(found.architecture["vae"]["latents_std"]) == 16
    assert all(found.training[stage]["done"] for stage in ("vae", "text", "joint", "expert-1", "expert-2"))
    # Elsewhere, from the exported weights alone.
    toy(tmp_path / "elsewhere", "--from", str(tmp_path / "out"), "--stage", "experts,export")
    again = weights.load(tmp_path / "elsewhere" / "out")
    assert again.digest == found.digest
    assert (tmp_path / "out" / "preview.png").stat().st_size > 1000
    assert any("psnr_db" in line for line in lines(tmp_path))
    assert all(np.isfinite(line["loss"]) for line in lines(tmp_path) if "loss" in line)


def weights_of(path):
    return torch.load(path, weights_only=True)
