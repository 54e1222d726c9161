"""The plot, by what its axes hold."""

from dataclasses import replace

import pytest
from bench_cases import result

from mxbench.bench.plot import draw, figure
from mxbench.errors import UserError


def test_a_bar_a_row_with_a_ratio_and_a_mark_a_floor():
    found = result()
    axes = figure(found).axes[0]
    rows = [row for row in found.shapes[0].rows if row.ratio_call is not None]
    assert len(axes.patches) == len(rows) == 8
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([(row.ratio_kernel or row.ratio_call).median for row in rows])
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[0] == "FlashAttention-4"
    assert "mxattn, fast (FP4 emulated)" in names
    assert "vc8, fast" in names
    assert [bar.get_hatch() is not None for bar in axes.patches] == ["emulated" in name for name in names]
    floors = [line for line in axes.lines if line.get_color() == "#B00020"]
    assert sorted(line.get_xdata()[0] for line in floors) == [0.6, 0.6, 1.0, 1.46]
    diamonds = [line for line in axes.lines if line.get_marker() == "D"]
    assert len(diamonds) == 5  # SageAttention's bar is its call
    spans = [line for line in axes.lines if line.get_linewidth() == 1.1]
    assert len(spans) == 8
    assert axes.get_xlabel() == "times as fast as FlashAttention-4"
    assert axes.get_title(loc="left") == "Wan2.2, 1×40×75600×128"
    assert [text.get_text() for text in axes.texts] == [f"{width:.2f}" for width in widths]


def test_one_colour_an_implementation_and_grey_for_peers():
    found = result()
    drawn = figure(found)
    bars = dict(zip((row.impl for row in found.shapes[0].rows if row.ratio_call), drawn.axes[0].patches, strict=False))
    assert bars["fa4"].get_facecolor() == bars["sage2-sm90"].get_facecolor()
    assert len({bars[impl].get_facecolor() for impl in ("fa4", "fast", "conformance")}) == 3
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert labels == ["conformance", "fast", "peer", "with its pre-pass", "floor"]


def test_a_panel_a_shape_and_none_without_ratios(tmp_path):
    found = result()
    shape = found.shapes[0]
    bare = replace(shape, rows=tuple(replace(row, ratio_call=None, ratio_kernel=None) for row in shape.rows))
    assert len(figure(replace(found, shapes=(shape, bare, shape))).axes) == 2
    assert figure(replace(found, shapes=(bare,))) is None
    assert draw(replace(found, shapes=(bare,)), tmp_path / "none.png") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["bench.png", "bench.svg"])
def test_files_are_the_same_twice(tmp_path, name):
    first = draw(result(), tmp_path / name, dpi=50).read_bytes()
    (tmp_path / "again").mkdir()
    assert draw(result(), tmp_path / "again" / name, dpi=50).read_bytes() == first
    assert len(first) > 1000


def test_what_cannot_be_drawn_to_is_said(tmp_path):
    with pytest.raises(UserError, match=r"ends in \.png or \.svg"):
        draw(result(), tmp_path / "bench.gif")
    with pytest.raises(UserError, match="cannot write"):
        draw(result(), tmp_path / "no" / "bench.png")
