"""Sick renders are named; fades, noise, night and still scenes are healthy."""

import numpy as np
import pytest

from mxbench.metrics import sickness


def moving(count=12, height=40, width=56, seed=0):
    """A bright square on a dark ramp, with a decoder's noise."""
    rng = np.random.default_rng(seed)
    frames = np.zeros((count, height, width, 3))
    frames += np.linspace(20, 90, width)[None, None, :, None]
    for i, frame in enumerate(frames):
        frame[10:20, 2 + 3 * i : 12 + 3 * i] = [220, 180, 60]
    return np.clip(frames + rng.normal(0, 2, frames.shape), 0, 255).astype(np.uint8)


def fade(frames, weights):
    return np.rint(frames * np.asarray(weights)[:, None, None, None]).astype(np.uint8)


POINT = np.zeros(1200, np.uint8)
POINT[:3] = 255

HEALTHY = {
    "moving": moving(),
    "one frame": moving(1),
    "tiny": moving(3, 5, 5),
    "noise": np.random.default_rng(0).integers(0, 256, size=(5, 20, 20, 3), dtype=np.uint8),
    "night": (moving() * 0.12).astype(np.uint8),
    "still scene": np.stack([moving(1, seed=i)[0] for i in range(6)]),
    "grey": np.repeat(moving()[..., :1], 3, axis=3),
    "binary": np.where(moving() > 100, 255, 0).astype(np.uint8),
    "fade in": fade(moving(), [0, 0, 0.06, 0.12, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1, 1]),
    "fade out": fade(moving(), [1, 1, 1, 1, 1, 0.9, 0.6, 0.4, 0.2, 0.1, 0, 0]),
    "fade through black": fade(moving(), [1, 1, 0.8, 0.4, 0.2, 0, 0, 0.2, 0.4, 0.8, 1, 1]),
    "one bright point that moves": np.stack([np.roll(POINT, 50 * i).reshape(20, 20, 3) for i in range(4)]),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(name):
    frames = HEALTHY[name]
    latents = np.random.default_rng(0).normal(size=(1, 16, 3, 4, 4)).astype(np.float32)
    assert sickness(frames, len(frames), None) is None
    assert sickness(frames, len(frames), latents) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("lead", [(1, 16), (16,)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_latents_that_are_not_finite(bad, lead, dtype):
    latents = np.zeros((*lead, 5, 4, 4), dtype)
    latents[..., 3, 2, 1] = bad
    kind = "NaN" if np.isnan(bad) else "Inf"
    assert sickness(moving(), 12, latents) == f"{kind} in the latents from latent frame 3 of 5"
    latents[..., 1, 0, 0] = np.nan
    assert sickness(moving(), 12, latents) == "NaN in the latents from latent frame 1 of 5"
    assert sickness(moving(), 12, latents.reshape(1, -1)) == "NaN in the latents"


def test_fewer_frames_than_asked():
    assert sickness(moving(9), 12, None) == "9 of 12 frames"
    assert sickness(moving(9)[:0], 12, None) == "0 of 12 frames"
    assert sickness(moving(9)[:0], 0, None) == "0 of 0 frames"


@pytest.mark.parametrize("start", [0, 1, 5, 11])
@pytest.mark.parametrize("level", [0, 1, 8])
def test_black_from_a_frame_on(start, level):
    frames = moving()
    frames[start:] = level
    assert sickness(frames, 12, None) == f"black frames from frame {start}"


def test_a_single_black_frame_in_between():
    frames = moving()
    frames[6] = 0
    assert sickness(frames, 12, None) == "black frames from frame 6"
    frames[6] = moving()[5]
    frames[0] = 0
    assert sickness(frames, 12, None) == "black frames from frame 0"


@pytest.mark.parametrize("colour", [(128, 128, 128), (255, 255, 255), (200, 30, 40)])
def test_constant_frames(colour):
    frames = moving()
    frames[7:] = colour
    assert sickness(frames, 12, None) == "constant frames from frame 7"
    frames[:] = colour
    assert sickness(frames, 12, None) == "constant frames from frame 0"
    assert sickness(frames[:1], 1, None) == "constant frames from frame 0"


def test_black_with_a_decoder_s_noise():
    frames = np.random.default_rng(0).integers(0, 6, size=(4, 30, 30, 3), dtype=np.uint8)
    assert sickness(frames, 4, None) == "black frames from frame 0"


def test_frozen():
    frames = np.repeat(moving(1), 12, axis=0)
    assert sickness(frames, 12, None) == "frozen: all 12 frames are the same"
    frames[5] ^= 1
    assert sickness(frames, 12, None) == "frozen: all 12 frames are the same"
    frames[11, 3, 3, 0] ^= 8
    assert sickness(frames, 12, None) is None


def test_the_cause_nearest_to_the_model_is_named():
    frames = np.zeros((5, 8, 8, 3), np.uint8)
    latents = np.full((16, 2, 4, 4), np.nan, np.float32)
    assert sickness(frames, 9, latents).startswith("NaN in the latents")
    assert sickness(frames, 9, None) == "5 of 9 frames"
    assert sickness(frames, 5, None) == "black frames from frame 0"


def test_it_takes_uint8_only():
    with pytest.raises(ValueError, match="uint8"):
        sickness(np.zeros((1, 4, 4, 3), np.float32), 1, None)
