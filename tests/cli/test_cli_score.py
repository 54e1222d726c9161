"""``mxbench score``: videos of any engine, paired by name."""

import json

import pytest
from cli_checks import clip, error, one_line


def test_score_pairs_folders_by_name_and_survives_bad_clips(mxbench_cli, tmp_path):
    for name in ("a", "b", "short", "small", "fast", "corrupt", "lonely", "one"):
        frames = 1 if name == "one" else 5
        clip(tmp_path / "mine" / f"{name}.mp4", noise=20, frames=frames)
        if name != "lonely":
            clip(
                tmp_path / "ref" / f"{name}.mkv",
                frames=9 if name == "short" else frames,
                size=(64, 64) if name == "small" else (32, 48),
                fps=24 if name == "fast" else 8,
            )
    whole = (tmp_path / "mine" / "corrupt.mp4").read_bytes()
    (tmp_path / "mine" / "corrupt.mp4").write_bytes(whole[: len(whole) // 2])
    code, out, _ = mxbench_cli("score", "mine", "-R", "ref", "-M", "psnr", "-M", "temporal_flickering", "--json")
    found = json.loads(out)
    assert code == 1
    assert set(found["scores"]) == {"a", "b", "one"}
    assert set(found["problems"]) == {"short", "small", "fast", "corrupt", "lonely"}
    assert "5 frames" in found["problems"]["short"]
    assert "48×32" in found["problems"]["small"]
    assert "frame rate" in found["problems"]["fast"]
    assert found["scores"]["one"]["temporal_flickering"]["unscored"]
    code, out, _ = mxbench_cli("score", "mine", "-R", "ref", "-M", "psnr", "--align")
    assert "cut from 9 to 5 frames" in out
    assert "mean of 4" in out


def test_score_takes_single_files_and_tiny_frames(mxbench_cli, tmp_path):
    clip(tmp_path / "a.mkv", size=(5, 5))
    clip(tmp_path / "b.mkv", size=(5, 5), noise=9)
    code, out, _ = mxbench_cli("score", "a.mkv", "-R", "b.mkv")
    assert code == 0
    assert "unscored" in out
    assert "SSIM" in out
    code, out, _ = mxbench_cli("score", "a.mkv", "-R", "a.mkv", "-M", "psnr", "-M", "cosine", "--json")
    score = json.loads(out)["scores"]["a.mkv"]
    assert score["psnr"]["value"] == 100
    assert score["cosine"]["value"] == 1
    assert score["psnr"]["details"]["identical_frames"] == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.mp4", "-R", "none.mp4"], "no video or folder"),
        (["a.mkv", "-R", "."], "a folder and a file"),
        (["empty", "-R", "empty2"], "no video in"),
        (["a.mkv", "-R", "a.mkv", "-M", "pnsr"], "did you mean psnr"),
    ],
)
def test_score_names_what_is_wrong(mxbench_cli, tmp_path, arguments, said):
    clip(tmp_path / "a.mkv")
    for name in ("empty", "empty2"):
        (tmp_path / name).mkdir()
    one_line(*error(mxbench_cli("score", *arguments)), said)
