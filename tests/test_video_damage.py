"""A damaged, cut or foreign file is an error that names it, never fewer frames."""

import subprocess
from fractions import Fraction

import av
import cv2
import imageio_ffmpeg
import numpy as np
import pytest

from mxbench.errors import UserError
from mxbench.video import read_clip, read_lossless, write_lossless, write_preview

FPS = Fraction(16)


@pytest.fixture(scope="module")
def frames():
    """24 frames that move, with enough detail that every packet has some bytes."""
    grain = np.random.default_rng(0).normal(size=(100, 130, 3)).astype(np.float32)
    picture = np.clip(cv2.GaussianBlur(grain, (0, 0), 2) * 200 + 128, 0, 255).astype(np.uint8)
    return np.stack([picture[i : i + 64, i : i + 96] for i in range(24)])


def ffmpeg(frames, path, *arguments):
    _, height, width, _ = frames.shape
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", "16", "-i", "-", *arguments, str(path)]
    subprocess.run(command, input=frames.tobytes(), check=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory, frames):
    folder = tmp_path_factory.mktemp("whole")
    write_lossless(folder / "lossless.mkv", frames, FPS)
    write_preview(folder / "faststart.mp4", frames, FPS)
    ffmpeg(frames, folder / "plain.mp4", "-c:v", "libx264", "-pix_fmt", "yuv420p")
    ffmpeg(frames, folder / "h264.mkv", "-c:v", "libx264", "-pix_fmt", "yuv420p")
    ffmpeg(frames, folder / "vp9.webm", "-c:v", "libvpx-vp9", "-pix_fmt", "yuv420p", "-deadline", "realtime")
    ffmpeg(frames, folder / "mpeg4.avi", "-c:v", "mpeg4", "-q:v", "3")
    return {path.name: path for path in folder.iterdir()}


NAMES = ["lossless.mkv", "faststart.mp4", "plain.mp4", "h264.mkv", "vp9.webm", "mpeg4.avi"]


@pytest.mark.parametrize("name", NAMES)
def test_whole_files_give_all_frames(files, frames, name):
    clip = read_clip(files[name])
    assert (clip.shape, clip.fps) == (frames.shape, FPS)
    assert np.abs(clip.frames.astype(int) - frames).mean() < 8


@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("name", NAMES)
def test_cut_files_raise(files, tmp_path, name, share):
    data = files[name].read_bytes()
    cut = tmp_path / name
    cut.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(UserError) as caught:
        read_clip(cut)
    assert str(cut) in caught.value.problem


@pytest.mark.parametrize("share", np.linspace(0.1, 0.9, 9))
def test_a_damaged_lossless_file_raises(files, tmp_path, share):
    data = bytearray(files["lossless.mkv"].read_bytes())
    data[int(len(data) * share)] ^= 0x10
    (tmp_path / "a.mkv").write_bytes(data)
    with pytest.raises(UserError, match=r"a\.mkv"):
        read_lossless(tmp_path / "a.mkv")


def test_a_damaged_preview_raises_or_gives_all_frames(files, frames, tmp_path):
    data = files["faststart.mp4"].read_bytes()
    body = data.index(b"mdat") + 4
    raised = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        damaged = bytearray(data)
        start = int(rng.integers(body, len(data) - 64))
        damaged[start : start + 64] = rng.integers(0, 256, 64, dtype=np.uint8).tobytes()
        (tmp_path / "a.mp4").write_bytes(damaged)
        try:
            assert len(read_clip(tmp_path / "a.mp4").frames) == len(frames)
        except UserError:
            raised += 1
    assert raised >= 4


def test_a_lossless_file_is_not_any_file(files):
    with pytest.raises(UserError, match="lossless store"):
        read_lossless(files["plain.mp4"])


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".txt", ".png", ".m3u8"])
def test_what_is_no_video(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".png":
        cv2.imwrite(str(path), np.zeros((32, 32, 3), np.uint8))
    elif suffix == ".m3u8":
        path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nother.ts\n#EXT-X-ENDLIST\n")
    else:
        path.write_text("no video, but words\n" * 500)
    with pytest.raises(UserError, match=rf"a\{suffix} cannot be decoded"):
        read_clip(path)


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "none.mp4", tmp_path):
        with pytest.raises(UserError, match="is not a file"):
            read_clip(path)


def test_sound_alone_is_no_video(tmp_path):
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "lavfi", "-i", "sine=duration=0.2"]
    subprocess.run([*command, str(tmp_path / "a.mp4")], check=True)
    with pytest.raises(UserError, match="0 video streams"):
        read_clip(tmp_path / "a.mp4")


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_longer_sound_does_not_look_like_lost_frames(files, frames, tmp_path, suffix):
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(files["plain.mp4"]), "-f", "lavfi"]
    command += ["-i", "sine=duration=4", "-c:v", "copy", str(tmp_path / f"a{suffix}")]
    subprocess.run(command, check=True)
    clip = read_clip(tmp_path / f"a{suffix}")
    assert (clip.shape, clip.fps) == (frames.shape, FPS)


def test_rotation_is_refused(files, tmp_path):
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-display_rotation", "90", "-i"]
    subprocess.run([*command, str(files["plain.mp4"]), "-c", "copy", str(tmp_path / "a.mp4")], check=True)
    with pytest.raises(UserError, match="rotated"):
        read_clip(tmp_path / "a.mp4")


def test_a_changing_size_is_refused(frames, tmp_path):
    ffmpeg(frames, tmp_path / "one.ts", "-c:v", "libx264", "-pix_fmt", "yuv420p")
    ffmpeg(frames, tmp_path / "two.ts", "-vf", "scale=64:48", "-c:v", "libx264", "-pix_fmt", "yuv420p")
    (tmp_path / "list").write_text("file one.ts\nfile two.ts\n")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "concat", "-i", "list", "-c", "copy", "a.ts"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with pytest.raises(UserError, match="changes from 96×64 to 64×48"):
        read_clip(tmp_path / "a.ts")


def test_uneven_frames_are_refused(frames, tmp_path):
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=16)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for i, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = i + 8 * (i > 10), Fraction(1, 16)  # eight frames are gone
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(UserError, match="no constant frame rate"):
        read_clip(tmp_path / "a.mp4")
