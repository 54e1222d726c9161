import io
import re

import pytest
from report_data import small_run
from rich.cells import cell_len
from rich.console import Console
from test_report_markdown import with_trouble

from mxbench.report.layout import page
from mxbench.report.tables import build
from mxbench.report.terminal import print_page, to_text


@pytest.mark.parametrize("width", [60, 80, 90, 100, 120, 160, 250])
def test_no_line_is_wider_than_the_terminal(width):
    assert max(cell_len(line) for line in to_text(page(build(with_trouble())), width).splitlines()) <= width


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_nothing_is_dropped_at_any_width(width):
    shown = page(build(with_trouble()))
    text = to_text(shown, width)
    words = text.split()
    joined = " ".join(words)
    assert "…" not in text
    for grid in shown.grids:
        for head in grid.heads:
            assert head.label in text
        for row in grid.rows:
            for cell in row[grid.stub :]:
                assert cell.main in text
                assert cell.sub in text
        for note in (*grid.notes, *grid.footnotes):
            assert " ".join(note.split()) in joined


def test_columns_that_do_not_fit_continue_with_the_method_beside_them():
    text = to_text(page(build(small_run())), 80)
    first = text.split("Paired differences")[0]
    assert first.count("(continued)") == 2
    assert first.count("MXAttention ") == 3
    assert to_text(page(build(small_run())), 170).split("Paired")[0].count("(continued)") == 0


def test_groups_stand_over_their_columns():
    lines = to_text(page(build(small_run())), 170).splitlines()
    at = next(i for i, line in enumerate(lines) if "VBench Metrics" in line)
    groups, heads = lines[at], lines[at + 1]
    spans = [m.span() for m in re.finditer(r"─+ .+? ─+", groups)]
    assert len(spans) == 2
    for span, names in zip(spans, (("Subject", "Imaging", "Aesthetic"), ("Cosine", "SSIM", "PSNR")), strict=True):
        for name in names:
            assert span[0] <= heads.index(name) < heads.index(name) + len(name) <= span[1]
    assert heads.index("PSNR") + 4 == spans[1][1]


def test_leaders_are_bold_and_starred():
    shown = page(build(small_run()))
    leaders = sum(text.bold for row in shown.grids[0].rows for text in row)
    assert leaders
    plain = to_text(shown, 170)
    assert len(re.findall(r"\*\d", plain)) == leaders
    assert "* marks bold numbers" in plain
    out = io.StringIO()
    print_page(shown, Console(file=out, width=170, force_terminal=True, color_system="standard"))
    assert len(re.findall(r"\x1b\[1m\*\d", out.getvalue())) == leaders


def test_labels_with_markup_are_printed_as_they_are():
    data = small_run(title="[bold]x[/bold] [red]")
    assert to_text(page(build(data)), 100).startswith("[bold]x[/bold] [red]\n")
