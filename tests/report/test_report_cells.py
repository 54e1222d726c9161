import math
from dataclasses import replace

import pytest
from report_data import ROWS, small_run

from mxbench.errors import UserError
from mxbench.report.cells import collect
from mxbench.report.data import Observation


def cell(*observations, prompts=2, seeds_of_other=(0, 1)):
    """Why the cell of mxattn is not full, beside a full row mxfp4."""
    full = [Observation("mxfp4", f"p{i}", s, "ssim", 0.5) for i in range(prompts) for s in seeds_of_other]
    seen = (Observation("mxattn", *o) for o in observations)
    data = small_run(rows=ROWS, metrics=("ssim",), observations=(*full, *seen), n_prompts=prompts)
    return collect(data).why("mxattn", "ssim")


def ok(prompt, seed):
    return prompt, seed, "ssim", 0.5


def failed(prompt, seed, why="black frames from step 12"):
    return prompt, seed, "ssim", None, None, why


def unscored(prompt, seed, why="weights missing: a.pth"):
    return prompt, seed, "ssim", None, why


def test_a_full_cell_needs_no_reason():
    assert cell(ok("p0", 0), ok("p0", 1), ok("p1", 0), ok("p1", 1)) is None


def test_failed_videos_are_counted():
    got = cell(ok("p0", 0), ok("p0", 1), ok("p1", 0), failed("p1", 1))
    assert got == "failed 1/4: black frames from step 12"


def test_several_reasons_stand_in_a_fixed_order():
    got = cell(unscored("p0", 0), failed("p0", 1), failed("p1", 0), failed("p1", 1, "NaN in latents"))
    assert (
        got == "failed 2/4: black frames from step 12; failed 1/4: NaN in latents; unscored 1/4: weights missing: a.pth"
    )


def test_unscored_as_a_whole_needs_no_count():
    videos = [(p, s) for p in ("p0", "p1") for s in (0, 1)]
    assert cell(*(unscored(*v) for v in videos)) == "unscored: weights missing: a.pth"


def test_missing_videos_are_said():
    assert cell() == "not scored"
    assert cell(ok("p0", 0)) == "not scored 3/4"
    assert cell(failed("p0", 0), ok("p0", 1)) == "failed 1/4: black frames from step 12; not scored 2/4"


def test_an_empty_table_is_not_scored():
    assert collect(small_run(observations=())).why("mxattn", "ssim") == "not scored"


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("weights missing: /home/u/.cache/vbench/amt-s.pth (12 MB)", "weights missing: amt-s.pth (12 MB)"),
        ("no file at ~/.cache/x/a.pth", "no file at a.pth"),
        ("see:/opt/a/b.pth,/opt/c.pth", "see:b.pth,c.pth"),
        (r"no C:\Users\me\a.pth here", "no a.pth here"),
        ("get it from https://example.org/a/b.pth", "get it from https://example.org/a/b.pth"),
        ("frames/s and 1/4 of a/b/c", "frames/s and 1/4 of a/b/c"),
        ("two\n lines", "two lines"),
    ],
)
def test_reasons_hold_no_absolute_path(given, printed):
    assert cell(unscored("p0", 0, given), ok("p0", 1), ok("p1", 0), ok("p1", 1)) == f"unscored 1/4: {printed}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row": "mxattnn"}, "unknown row 'mxattnn'; did you mean mxattn"),
        ({"metric": "ssmi"}, "unknown metric 'ssmi'; did you mean ssim"),
        ({"value": math.nan}, "is nan"),
        ({"value": math.inf}, "is inf"),
        ({"value": None}, "exactly one"),
        ({"failed": "black"}, "exactly one"),
        ({"prompt": "another"}, "2 prompts and the observations of 3"),
        ({}, "is there twice"),
    ],
)
def test_contradictions_are_refused(change, message):
    data = small_run(prompts=2, seeds=1, metrics=("ssim",))
    extra = replace(next(o for o in data.observations if o.row == "mxattn"), **change)
    with pytest.raises(UserError, match=message):
        collect(replace(data, observations=(*data.observations, extra)))


def test_rows_and_columns_have_names_of_their_own():
    data = small_run(metrics=("ssim",))
    with pytest.raises(UserError, match="the row 'mxfp4' is there 2 times"):
        collect(replace(data, rows=(*data.rows, data.rows[2])))
    with pytest.raises(UserError, match="the column 'ssim' is there 2 times"):
        collect(replace(data, metrics=data.metrics * 2))


def test_identical_frames_are_added_up():
    data = small_run(prompts=2, seeds=2, metrics=("psnr",))
    counted = tuple(replace(o, identical_frames=3) if o.row == "fp16@math" else o for o in data.observations)
    assert collect(replace(data, observations=counted)).identical["fp16@math", "psnr"] == 12
