"""Frames through files and back: exactness, determinism, colours, previews."""

import subprocess
import sys
from fractions import Fraction

import av
import cv2
import imageio_ffmpeg
import numpy as np
import pytest

from mxbench.errors import CellFailed, UserError
from mxbench.video import Clip, find_clips, read_clip, read_lossless, to_uint8, write_lossless, write_preview

FPS = Fraction(16)


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size=(*shape, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "shape", [(1, 128, 128), (1, 5, 5), (3, 2, 2), (2, 2, 40), (2, 3, 7), (2, 31, 33), (4, 17, 2), (17, 128, 128)]
)
def test_lossless_round_trip_is_exact(tmp_path, shape):
    frames = noise(*shape)
    write_lossless(tmp_path / "a.mkv", frames, FPS)
    for read in (read_lossless, read_clip):
        clip = read(tmp_path / "a.mkv")
        np.testing.assert_array_equal(clip.frames, frames)
        assert clip.frames.dtype == np.uint8
        assert clip.shape == (*shape, 3)
        assert clip.fps == FPS


def test_lossless_extremes_and_views(tmp_path):
    base = noise(4, 24, 40)
    base[0], base[1] = 0, 255
    write_lossless(tmp_path / "a.mkv", base[::-1, :, ::2], FPS)  # neither contiguous nor writable by accident
    np.testing.assert_array_equal(read_clip(tmp_path / "a.mkv").frames, base[::-1, :, ::2])


@pytest.mark.parametrize("fps", ["24", "25", "15", "60", "30000/1001", "24000/1001", "1", "7/3", "999/100"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_frame_rate_survives(tmp_path, fps, count):
    fps = Fraction(fps)
    frames = noise(count, 8, 8)
    write_lossless(tmp_path / "a.mkv", frames, fps)
    write_preview(tmp_path / "a.mp4", frames, fps)
    for name in ("a.mkv", "a.mp4"):
        clip = read_clip(tmp_path / name)
        assert clip.fps == fps
        assert len(clip.frames) == count


def test_the_stream_is_what_the_store_promises(tmp_path):
    write_lossless(tmp_path / "a.mkv", noise(3, 32, 48), FPS)
    with av.open(str(tmp_path / "a.mkv")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("ffv1", "bgr0")
        assert container.format.name == "matroska,webm"
        assert stream.codec_context.extradata  # level 3 keeps its header here, level 1 has none
    done = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", tmp_path / "a.mkv", "-f", "rawvideo", "-pix_fmt",
         "rgb24", "-"], capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == noise(3, 32, 48).tobytes()  # another decoder sees the same pixels


WRITE = """
import sys, numpy as np
from fractions import Fraction
from mxbench.video import write_lossless, write_preview
frames = np.random.default_rng(0).integers(0, 256, size=(9, 50, 70, 3), dtype=np.uint8)
write_lossless(sys.argv[1] + ".mkv", frames, Fraction(16))
write_preview(sys.argv[1] + ".mp4", frames, Fraction(16))
"""


def test_files_are_byte_identical_in_two_processes_and_here(tmp_path):
    for name in ("one", "two"):
        subprocess.run([sys.executable, "-c", WRITE, str(tmp_path / name)], check=True)
    frames = noise(9, 50, 70)
    write_lossless(tmp_path / "three.mkv", frames, FPS)
    write_preview(tmp_path / "three.mp4", frames, FPS)
    for suffix in (".mkv", ".mp4"):
        files = {(tmp_path / name).with_suffix(suffix).read_bytes() for name in ("one", "two", "three")}
        assert len(files) == 1


def test_previews_do_not_depend_on_what_the_memory_held_before(tmp_path):
    """x264's macroblock tree gave a second file here in one run of ten."""
    frames = noise(9, 50, 74)
    seen = set()
    for _ in range(40):
        write_lossless(tmp_path / "a.mkv", frames, FPS)
        write_preview(tmp_path / "a.mp4", frames, FPS)
        seen.add((tmp_path / "a.mp4").read_bytes())
    assert len(seen) == 1


@pytest.mark.parametrize(("height", "width"), [(64, 96), (5, 5), (31, 48), (48, 31)])
def test_preview_plays_in_browsers(tmp_path, height, width):
    ramp = np.linspace(30, 220, width)[None, None, :, None] + np.zeros((6, height, 1, 3))
    frames = np.rint(ramp).astype(np.uint8)
    write_preview(tmp_path / "a.mp4", frames, FPS)
    even = (height + height % 2, width + width % 2)
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert (context.name, context.pix_fmt, stream.frames) == ("h264", "yuv420p", 6)
        assert (stream.height, stream.width) == even
        assert (context.colorspace, context.color_primaries, context.color_trc, context.color_range) == (1, 1, 1, 1)
    data = (tmp_path / "a.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    clip = read_clip(tmp_path / "a.mp4")
    assert clip.shape == (6, *even, 3)
    assert np.abs(clip.frames[:, :height, :width].astype(int) - frames).max() < 12


COLOURS = np.array(
    [[220, 40, 30], [20, 200, 60], [10, 30, 180], [128] * 3, [255] * 3, [0] * 3, [250, 240, 20]], np.uint8
)
PATCHES = np.tile(COLOURS.repeat(32, axis=0), (3, 64, 1, 1))


@pytest.mark.parametrize("matrix", ["bt709", "smpte170m", "bt2020nc", None])
@pytest.mark.parametrize("limits", ["tv", "pc", None])
def test_colours_follow_the_stream_of_another_engine(tmp_path, matrix, limits):
    scale = (
        ":".join(f"{k}={v}" for k, v in (("out_color_matrix", matrix), ("out_range", limits)) if v) or "flags=bicubic"
    )
    tags = (["-colorspace", matrix] if matrix else []) + (["-color_range", limits] if limits else [])
    subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "224x64", "-r",
         "16", "-i", "-", "-vf", f"scale={scale}", "-c:v", "libx264", "-crf", "1", "-pix_fmt",
         "yuvj420p" if limits == "pc" else "yuv420p", *tags, tmp_path / "CLIP.MP4"],
        input=PATCHES.tobytes(), check=True,
    )  # fmt: skip
    clip = read_clip(tmp_path / "CLIP.MP4")
    middle = clip.frames[:, 32, 16::32].astype(int)
    assert np.abs(middle - COLOURS).max() <= 3
    assert clip.fps == 16


def test_what_opencv_writes(tmp_path):
    writer = cv2.VideoWriter(str(tmp_path / "a.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 16, (224, 64))
    for frame in PATCHES:
        writer.write(frame[..., ::-1])
    writer.release()
    clip = read_clip(tmp_path / "a.mp4")
    assert (clip.shape, clip.fps) == ((3, 64, 224, 3), 16)
    assert np.abs(clip.frames[:, 32, 16::32].astype(int) - COLOURS).max() <= 6


@pytest.mark.parametrize("name", ["a:b.mkv", "100%03d.mkv", "it's [1] & 'x'.mkv", "http:x.mkv", "é 日.mkv"])
def test_odd_names(tmp_path, name):
    frames = noise(2, 16, 16)
    write_lossless(tmp_path / name, frames, FPS)
    np.testing.assert_array_equal(read_lossless(tmp_path / name).frames, frames)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_to_uint8_rounds(dtype):
    levels = np.arange(256).reshape(1, 16, 16, 1).repeat(3, axis=3)
    np.testing.assert_array_equal(to_uint8((levels / 255).astype(dtype)), levels.astype(np.uint8))
    assert to_uint8(np.full((1, 1, 1, 3), 200.7 / 255, np.float32)).tolist() == [[[[201] * 3]]]  # truncation says 200


def test_to_uint8_says_what_is_sick():
    frames = np.full((4, 2, 2, 3), 0.5, np.float32)
    frames[2, 1, 1, 0] = np.nan
    with pytest.raises(CellFailed, match="NaN pixels from frame 2"):
        to_uint8(frames)
    frames[2, 1, 1, 0], frames[1, 0, 0, 0] = 0.5, np.inf
    with pytest.raises(CellFailed, match="infinite pixels from frame 1"):
        to_uint8(frames)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        to_uint8(np.full((1, 2, 2, 3), -0.5, np.float32))
    with pytest.raises(ValueError, match="floats"):
        to_uint8(np.zeros((1, 2, 2, 3), np.uint8))
    np.testing.assert_array_equal(to_uint8(np.float32([[[[-1e-4, 1.0001, 1.0]]]])), [[[[0, 255, 255]]]])


@pytest.mark.parametrize(
    ("frames", "fps"),
    [
        (np.zeros((1, 2, 2, 3), np.float32), FPS),
        (np.zeros((2, 2, 3), np.uint8), FPS),
        (np.zeros((0, 2, 2, 3), np.uint8), FPS),
        (np.zeros((1, 2, 2, 4), np.uint8), FPS),
        (np.zeros((1, 2, 2, 3), np.uint8), Fraction(0)),
        (np.zeros((1, 2, 2, 3), np.uint8), 16.0),
    ],
)
def test_clips_hold_frames_and_nothing_else(tmp_path, frames, fps):
    for make in (
        Clip,
        lambda a, b: write_lossless(tmp_path / "a", a, b),
        lambda a, b: write_preview(tmp_path / "a", a, b),
    ):
        with pytest.raises(ValueError, match="must be"):
            make(frames, fps)
    assert not (tmp_path / "a").exists()


def test_find_clips(tmp_path):
    for name in ("b.mp4", "A.MKV", "c.d.WebM", ".hidden.mp4", "notes.txt", "frame.png"):
        (tmp_path / name).touch()
    (tmp_path / "folder.mp4").mkdir()
    assert find_clips(tmp_path) == {"A": tmp_path / "A.MKV", "b": tmp_path / "b.mp4", "c.d": tmp_path / "c.d.WebM"}
    (tmp_path / "b.mkv").touch()
    with pytest.raises(UserError, match=r"b\.mkv and b\.mp4"):
        find_clips(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        find_clips(tmp_path / "none")
