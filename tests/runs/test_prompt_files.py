"""Prompt files with everything that real files hold, and errors that name the place and the way out."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxbench.errors import UserError
from mxbench.runs import prompt_files
from mxbench.runs.prompts import LoadedPrompts, Prompt, load, load_with_notes


@pytest.fixture
def put(tmp_path):
    """A function that writes a file and returns its path."""

    def write(content: str | bytes, name: str = "set.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def texts(source) -> list[str]:
    return [p.text for p in load(source)]


def cells(*prompts_: str, column: str = "prompt") -> str:
    return "".join(f'"{c.replace(chr(34), chr(34) * 2)}"\r\n' for c in (column, *prompts_))


# .txt


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "open"])
def test_line_ends_and_byte_order_mark(put, end, bom, last):
    content = bom + end.join(["", "one", "", "  ", "two words", "\t"]) + (end if last else "")
    assert load_with_notes(put(content)) == LoadedPrompts((Prompt("one"), Prompt("two words")))


def test_files_put_together_with_cat_have_a_mark_inside(put):
    assert texts(put("\ufeffone\n\ufefftwo\n")) == ["one", "two"]


@pytest.mark.parametrize(
    "text",
    [
        "# a prompt may begin with a hash",
        '"quoted", it\'s said; “twice”',
        "../../etc/passwd and C:\\temp\\x",
        "👩‍🚀 floats 🌌",
        "tabs\tstay\tinside",
        "a form feed\x0cand a line separator\u2028stay",
        "雨の街、夜",
        "NA",
        "word " * 279 + "ends",
        "%s {braces} $HOME `ls`",
    ],
)
def test_awkward_lines_are_prompts_as_they_stand(put, text):
    assert texts(put(f"first\n{text}\nlast\n")) == ["first", text, "last"]
    assert texts(put(cells("first", text, "last"), "set.csv")) == ["first", text, "last"]


def test_a_long_line_is_one_prompt(put):
    text = ("é" * 699 + " x").ljust(1000, "y")
    assert len(text.encode()) > 1400
    assert texts(put(text)) == [text]


def test_repeats_are_kept_once_and_told(put):
    got = load_with_notes(put("a\nb\n a\nc\nb\t\n"))
    assert [p.text for p in got.prompts] == ["a", "b", "c"]
    (note,) = got.notes
    assert note.endswith("2 repeated, kept once (line 3 repeats line 1, line 5 repeats line 2)")


def test_many_repeats_make_one_short_note(put):
    (note,) = load_with_notes(put("a\n" * 10)).notes
    assert "9 repeated" in note
    assert note.endswith("and 6 more)")


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"ok\nbad \xe9t\xe9\n", "line 2: byte 5 (0xe9)"),
        (b"\xef\xbb\xbf\xff", "line 1: byte 1 (0xff)"),
        (b"a\r\nb\r\rcut \xf0\x9f\x98", "line 4: byte 5 (0xf0)"),
        (b"surrogate \xed\xa0\x80", "line 1: byte 11 (0xed)"),
        (b"ok\nno\0no\n", "line 2: byte 3"),
        ("wide".encode("utf-16-be"), "line 1: byte 1 is a NUL"),
        ("wide".encode("utf-16"), "UTF-16"),
    ],
)
@pytest.mark.parametrize("name", ["set.txt", "set.csv", "set.json"])
def test_what_is_not_utf8_text_is_named_with_its_place(put, content, where, name):
    with pytest.raises(UserError) as error:
        load(put(content, name))
    assert where in error.value.problem
    assert name in error.value.problem
    assert "UTF-8" in error.value.fix


@pytest.mark.parametrize("content", ["", "\ufeff", "\n\r\n \t\n", "\u3000\n"])
def test_a_file_without_prompts_is_an_error(put, content):
    with pytest.raises(UserError, match="holds no prompts"):
        load(put(content))


# .csv


def test_missing_value_words_are_prompts(put):
    words = ["NA", "null", "None", "nan", "N/A", "#N/A", "-", "0", "1e5", "TRUE"]
    assert texts(put(cells(*words), "set.csv")) == words
    bare = "id,prompt\r\n" + "".join(f"{i},{w}\r\n" for i, w in enumerate(words))
    assert texts(put(bare, "set.csv")) == words


@pytest.mark.parametrize("column", ["prompt", "Prompt", " PROMPT "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_column_is_found_by_name(put, column, end):
    content = end.join(["\ufeffid,style," + column, "1,oil,a cat", '2,ink,"a dog, asleep"', "", ",,", "3,oil,a cow"])
    assert load_with_notes(put(content, "SET.CSV")).notes == ()
    assert texts(put(content, "SET.CSV")) == ["a cat", "a dog, asleep", "a cow"]


def test_a_quoted_header_after_a_byte_order_mark(put):
    assert texts(put("\ufeff" + cells("a cat"), "set.csv")) == ["a cat"]


def test_line_breaks_inside_a_cell_become_spaces_and_are_told(put):
    got = load_with_notes(put(cells("a cat \r\n  sleeps\n\n", "plain\n", "x\ry"), "set.csv"))
    assert [p.text for p in got.prompts] == ["a cat sleeps", "plain", "x y"]
    (note,) = got.notes
    assert note.endswith("2 with line breaks, joined by spaces (line 2, line 8)")


def test_an_empty_cell_in_a_filled_row_is_told(put):
    got = load_with_notes(put("id,prompt\n1,a cat\n2, \n3,a dog\n", "set.csv"))
    assert [p.text for p in got.prompts] == ["a cat", "a dog"]
    assert got.notes[0].endswith("1 empty, left out (line 3)")


@pytest.mark.parametrize(
    ("content", "problem", "fix"),
    [
        ("text,seed\na cat,1\n", "its columns are 'text', 'seed'", "name the column"),
        ("id;prompt\n1;a cat\n", "no column called prompt", "by commas, not by ';'"),
        ("id\tprompt\n1\ta cat\n", "no column called prompt", "by commas"),
        ("prompt,Prompt\na,b\n", "2 columns called prompt", "keep one"),
        ("prompt\na cat\n\na cat, asleep\n", "line 4: 2 cells where the header has 1", "put quotes around"),
        ("id,prompt\n1\n", "line 2: 1 cells where the header has 2", "mend the row"),
        ('prompt\n"one\ntwo"\n"open\nend\n', "line 4: not CSV", "close the quotes"),
        ('prompt\n"a" cat\n', "line 2: not CSV", "double a quote"),
        ("prompt\n", "holds no prompts", "at least one"),
        ("\n\n", "holds no prompts", "at least one"),
        ("prompt\n" + "x" * 200_000, "line 2: not CSV (field larger", "close the quotes"),
    ],
)
def test_malformed_csv_says_where(put, content, problem, fix):
    with pytest.raises(UserError) as error:
        load(put(content, "set.csv"))
    assert problem in error.value.problem
    assert fix in error.value.fix


# .json


def test_vbench_list_from_a_file(put):
    entries = [
        {"prompt_en": text, "dimension": ["color"]} for text in ("a stop sign", "a cow", "a stop sign", "façades")
    ]
    got = load_with_notes(put(json.dumps(entries), "VBench_full_info.json"))
    assert [p.text for p in got.prompts] == ["a stop sign", "a cow", "façades"]
    assert got.notes[0].endswith("1 repeated, kept once (entry 3 repeats entry 1)")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not JSON"),
        ("[{}", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"prompt_en": "a"}', "not a list"),
        ('["a cat"]', "entry 1 has no text called prompt_en"),
        ('[{"prompt_en": "a"}, {"prompt_en": 3}]', "entry 2 has no text"),
        ('[{"prompt_en": "a"}, {"prompt_en": "\\u0000b"}]', "entry 2: the prompt holds a NUL"),
        ('[{"prompt_en": "\\ud800"}]', "entry 1: the prompt holds half"),
        ("[]", "holds no prompts"),
    ],
)
def test_other_json_is_refused(put, content, problem):
    with pytest.raises(UserError, match=problem):
        load(put(content, "set.json"))


# What is written comes back

LINE = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), min_size=1)
    .map(lambda s: s.strip(prompt_files.BLANKS))
    .filter(bool)
)
LINES = st.lists(LINE, min_size=1, max_size=12, unique=True)


@settings(deadline=None)
@given(LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_lines_come_back_equal(tmp_path_factory, wanted, end, bom):
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes(("\ufeff" * bom + "".join(f" {t}{end}" for t in wanted)).encode())
    assert load_with_notes(path) == LoadedPrompts(tuple(map(Prompt, wanted)))
    assert texts(path) == wanted


@settings(deadline=None)
@given(LINES, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(["\n", "\r\n"]))
def test_cells_come_back_equal(tmp_path_factory, wanted, quoting, end):
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=quoting, lineterminator=end)
        writer.writerows([("n", "prompt", "note"), *((i, t, "") for i, t in enumerate(wanted))])
    assert texts(path) == wanted


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from([".txt", ".csv", ".json"]))
def test_any_bytes_are_prompts_or_a_user_error(tmp_path_factory, data, suffix):
    path = tmp_path_factory.getbasetemp() / f"bytes{suffix}"
    path.write_bytes(data)
    try:
        got = load(path)
    except UserError:
        return
    assert got
    assert len({p.id for p in got}) == len(got)
