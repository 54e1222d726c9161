"""The reader: right on true clips, also soft ones, and at chance on other clips' prompts."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from mxbench.errors import UserError
from mxbench.models.nano import heldout
from mxbench.models.nano.evaluate import evaluate, main, seen, table, true_clips
from mxbench.models.nano.judge import compare, judge, rates, total
from mxbench.models.nano.reader import Object, Reading
from mxbench.models.nano.scene import Scene, Thing, held_out
from mxbench.models.nano.show import SHOWN, cut, strips

SCENES = heldout.scenes()[:24]


@pytest.fixture(scope="module")
def clips() -> np.ndarray:
    return true_clips(SCENES)


def soften(clip: np.ndarray, how: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    match how:
        case "blur":
            return np.stack([cv2.GaussianBlur(f, (0, 0), 1.2) for f in clip])
        case "noise":
            return np.clip(clip + rng.normal(0, 8, clip.shape), 0, 255).astype(np.uint8)
        case "blocks":
            flat = (cv2.imencode(".jpg", np.ascontiguousarray(f), [cv2.IMWRITE_JPEG_QUALITY, 40])[1] for f in clip)
            return np.stack([cv2.imdecode(f, cv2.IMREAD_COLOR) for f in flat])
    return clip


@pytest.mark.parametrize("how", ["true", "blur", "noise", "blocks"])
def test_true_clips_are_read(clips, how):
    frames = slice(None, None, 4 if how != "true" else 1)
    tally = total(judge(soften(clip[frames], how), scene) for clip, scene in zip(clips, SCENES, strict=True))
    assert min(rates(tally).values()) >= 0.95, tally
    assert set(tally) >= {"count", "colour", "shape", "motion", "size", "background"}


def test_other_prompts_are_at_chance_and_a_picture_keeps_the_clips(clips):
    again = cut(strips(clips))
    assert np.array_equal(again[: len(clips)], clips[:, list(SHOWN)])
    found = evaluate(again[: len(SCENES)], SCENES)
    assert found["clips"]["all"] >= 0.95
    assert found["shuffled"]["colour"] < 0.5
    assert found["shuffled"]["shape"] < 0.5
    assert found["shuffled"]["motion"] < 0.5
    assert found["shuffled"]["background"] < 0.5
    lines = table(found).splitlines()
    assert lines[0].split() == ["clips", "shuffled"]
    assert lines[-1].startswith("all")


def test_a_few_clips_are_shuffled_among_themselves_and_one_has_no_other_prompt(clips):
    found = evaluate(clips[:3], SCENES[:3])
    assert found["shuffled"]["all"] < found["clips"]["all"]
    assert evaluate(clips[:1], SCENES[:1])["shuffled"] == {}
    assert "–" in table(evaluate(clips[:1], SCENES[:1])).splitlines()[-1]


def test_prompts_to_choose_settings_on_are_not_held_out():
    things = [(t.colour, t.shape, t.motion) for scene in seen(50) for t in scene.things]
    assert len(things) > 60
    assert not any(held_out(*thing) for thing in things)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--limit", "0"], "--limit 0 leaves nothing to do"),
        (["--seen", "-2"], "--seen -2 leaves nothing to do"),
        (["--strips", "missing.png"], "no picture that --out has made"),
        (["--weights", "missing"], "missing"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(arguments, said):
    with pytest.raises(UserError, match=said):
        main(arguments)


@pytest.mark.parametrize("frames", [np.zeros((5, 128, 128, 3), np.uint8), np.full((3, 96, 128, 3), 112, np.uint8)])
def test_a_clip_of_nothing_is_read_as_nothing(frames):
    reading = judge(frames, SCENES[0])
    assert reading["count"] == (0, 1)
    assert reading["colour"] == (0, 1)


def test_noise_is_read_without_a_fault():
    noise = np.random.default_rng(0).integers(0, 256, (5, 128, 128, 3)).astype(np.uint8)
    assert sum(hits for hits, _ in judge(noise, SCENES[3]).values()) <= 3


def test_objects_are_matched_so_that_most_is_found():
    scene = Scene(
        (Thing("red", "star", "left", "small"), Thing("blue", "ring", "grows", None, True)), "gray", "striped"
    )
    red, blue = Object("red", "star", "left", "large", False), Object("blue", "ring", "grows", "small", True)
    got = compare(Reading((blue, red), "gray", "plain"), scene)
    assert got == {
        "count": (1, 1),
        "colour": (2, 2),
        "shape": (2, 2),
        "motion": (2, 2),
        "size": (0, 1),
        "texture": (1, 1),
        "background": (1, 1),
        "pattern": (0, 1),
    }
    assert compare(Reading((red,), "gray", "plain"), scene)["colour"] == (1, 2)
    assert compare(Reading((), "navy", "plain"), scene)["background"] == (0, 1)


def test_under_a_pan_things_move_the_other_way():
    scene = Scene((Thing("red", "star", "still", "small"),), "gray", "striped", "left")
    seen = Object("red", "star", "right", "small", False)
    assert compare(Reading((seen,), "gray", "striped"), scene)["motion"] == (1, 1)
