"""Scenes, where their objects are, and how they are drawn and said."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mxbench.models.nano import heldout, tokenizer
from mxbench.models.nano.draw import draw, to_device
from mxbench.models.nano.layout import EDGE, EXTENT, FRAMES, Clips, lay_out, sample
from mxbench.models.nano.scene import (
    BACKGROUNDS,
    COLOURS,
    MOTIONS,
    PATTERNS,
    SHAPES,
    Scene,
    Thing,
    allowed,
    caption,
    held_out,
    random_scene,
    triples,
)


def one(thing: Thing, background: str = "black", pattern: str = "plain", pan: str | None = None) -> torch.Tensor:
    clips, fit = lay_out([Scene((thing,), background, pattern, pan)], np.random.default_rng(3))
    assert fit.all()
    return draw(to_device(clips, "cpu"))[0]


def centres(clip: torch.Tensor, colour: str) -> np.ndarray:
    near = (clip - torch.tensor(COLOURS[colour]).view(3, 1, 1, 1) / 255).abs().amax(0) < 0.1
    return np.array([np.argwhere(frame.numpy()).mean(0)[::-1] for frame in near])


def test_the_same_seed_gives_the_same_clips():
    (words, a), (again, b) = (sample(np.random.default_rng(11), 5) for _ in range(2))
    assert words == again
    assert torch.equal(draw(to_device(a, "cpu")), draw(to_device(b, "cpu")))
    other, _ = sample(np.random.default_rng(12), 5)
    assert words != other


def test_a_clip_is_what_the_pipeline_takes():
    _, clips = sample(np.random.default_rng(0), 3)
    pixels = draw(to_device(clips, "cpu"))
    assert pixels.shape == (3, 3, FRAMES, EDGE, EDGE)
    assert pixels.dtype == torch.float32
    assert 0 <= float(pixels.min()) < float(pixels.max()) <= 1


def test_batches_change_nothing():
    _, clips = sample(np.random.default_rng(5), 4)
    whole = draw(to_device(clips, "cpu"))
    alone = draw(to_device(clips.take(slice(2, 3)), "cpu"))
    torch.testing.assert_close(alone[0], whole[2])


def test_held_out_objects_are_never_sampled():
    rng = np.random.default_rng(1)
    scenes = [random_scene(rng) for _ in range(4000)]
    things = [t for s in scenes for t in s.things]
    assert not any(held_out(t.colour, t.shape, t.motion) for t in things)
    assert all(allowed(t.colour, t.shape, t.motion) for t in things)
    assert {(t.colour, t.shape, t.motion) for t in things} == set(triples(unseen=False))
    assert {s.background for s in scenes} == set(BACKGROUNDS)
    assert {s.pattern for s in scenes} == set(PATTERNS)
    assert 0.4 < np.mean([len(s.things) == 2 for s in scenes]) < 0.6
    assert 0 < sum(s.pan is not None for s in scenes) < 200
    assert all(s.things[0].motion == "still" and s.pattern != "plain" for s in scenes if s.pan)


def test_held_out_prompts_have_only_held_out_objects():
    scenes = heldout.scenes()
    assert len(scenes) == 64
    assert len({caption(s) for s in scenes}) == 64
    assert all(held_out(t.colour, t.shape, t.motion) for s in scenes for t in s.things)
    for axis, values in (("colour", COLOURS), ("shape", SHAPES), ("motion", MOTIONS)):
        assert {getattr(t, axis) for s in scenes for t in s.things} == set(values)


def test_what_is_held_out_is_balanced():
    unseen = list(triples(unseen=True))
    assert len(unseen) == 46
    for axis, values in ((0, COLOURS), (1, SHAPES), (2, MOTIONS)):
        numbers = [sum(t[axis] == v for t in unseen) for v in values]
        assert max(numbers) - min(numbers) <= 2, axis


def test_a_caption_says_what_the_scene_says():
    rng = np.random.default_rng(2)
    for _ in range(300):
        scene = random_scene(rng)
        words = caption(scene, rng).replace(",", "").split()
        assert words[0] in ("a", "an")
        assert scene.background in words
        striped = words.count("striped") - sum(t.striped for t in scene.things)
        assert striped == (scene.pattern == "striped")
        assert ("checkered" in words, "gradient" in words) == tuple(
            scene.pattern == p for p in ("checkered", "gradient")
        )
        assert ("camera" in words) == (scene.pan is not None)
        for thing in scene.things:
            at = words.index(thing.shape)
            before = [w for w in (thing.size, "striped" if thing.striped else None, thing.colour) if w]
            assert words[at - len(before) : at] == before
            assert words[at - len(before) - 1] in ("a", "an")
        assert [w for w in words if w in SHAPES] == [t.shape for t in scene.things]


def test_every_word_is_one_token():
    rng, words = np.random.default_rng(3), tokenizer.build()
    for _ in range(200):
        text = caption(random_scene(rng), rng)
        ids = words(text).input_ids
        assert len(ids) == len(text.replace(",", " ,").split()) + 1
        assert len(ids) <= 64


@pytest.mark.parametrize(
    ("motion", "way"), [("left", (-1, 0)), ("right", (1, 0)), ("up", (0, -1)), ("down", (0, 1)), ("still", (0, 0))]
)
def test_objects_go_where_they_are_said_to(motion, way):
    at = centres(one(Thing("red", "circle", motion, "large")), "red")
    moved = at[-1] - at[0]
    assert np.allclose(np.sign(np.round(moved)), way)
    assert 40 <= abs(moved).max() <= 66 or motion == "still"
    assert np.abs(np.diff(at, axis=0, n=2)).max() < 0.6, "the pace is even"


def test_growing_and_shrinking():
    for motion, bigger in (("grows", True), ("shrinks", False)):
        clip = one(Thing("yellow", "square", motion))
        areas = (clip[0] > 0.5).sum((1, 2))
        assert bool(areas[-1] > 3 * areas[0]) is bigger
        assert bool(areas[0] > 3 * areas[-1]) is not bigger


def test_a_pan_moves_the_screen_against_it():
    clip = one(Thing("white", "cross", "still", "small"), "navy", "striped", "left")
    at = centres(clip, "white")
    assert 28 < at[-1][0] - at[0][0] < 36
    shifted = torch.roll(clip[:, 0], 32, -1)
    assert float((shifted - clip[:, -1]).abs()[:, :, 40:].mean()) < 0.01


def test_objects_are_in_view_and_apart():
    _, clips = sample(np.random.default_rng(4), 500)
    reach = clips.radius * EXTENT
    here = clips.present[:, :, None, None] > 0
    low, high = clips.position - reach[..., None], clips.position + reach[..., None]
    assert np.all((low > 0) | ~here)
    assert np.all((high < EDGE) | ~here)
    pair = clips.take(np.flatnonzero(clips.present[:, 1]))
    when = np.linspace(0, 1, FRAMES)[None, None, :, None]
    path = pair.position[:, :, 0, None] * (1 - when) + pair.position[:, :, 1, None] * when
    assert np.all(np.linalg.norm(path[:, 0] - path[:, 1], axis=-1) > pair.radius.max(-1).sum(1)[:, None])


def test_an_absent_object_leaves_no_trace():
    _, clips = sample(np.random.default_rng(6), 6)
    params = to_device(clips, "cpu")
    gone = draw(params | {"present": torch.zeros_like(params["present"])})
    ground = params["ground"][:, :, None, None, None]
    assert float((gone - ground).abs().max()) < 0.3
    assert isinstance(clips, Clips)
