"""What a prompt is, which sources there are, and names made of prompts."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pickle
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxbench.errors import UserError
from mxbench.runs import prompt_files, prompts
from mxbench.runs.prompts import Prompt, limit, load, slug


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


# Prompt


def test_the_id_is_the_hash_of_the_text_alone(put):
    by_hand = hashlib.sha256("a café".encode()).hexdigest()[:12]
    assert Prompt("a café").id == by_hand
    first = load(put("a café\nb\n", "one.txt"))[0]
    second = load(put("prompt\r\nb\r\nx\r\na café\r\n", "two.csv"))[2]
    assert first == second == Prompt("\ufeff  a café\t\r\n")
    assert first.id == second.id == by_hand


def test_accents_are_not_normalised(put):
    assert [p.id for p in load(put("caf\u00e9\ncafe\u0301\n"))] == [Prompt("caf\u00e9").id, Prompt("cafe\u0301").id]
    assert Prompt("caf\u00e9").id != Prompt("cafe\u0301").id


@pytest.mark.parametrize("text", ["", "  \t\u3000", "\ufeff", "a\0b", "half \ud83d"])
def test_a_text_that_is_no_prompt_is_refused(text):
    with pytest.raises(UserError, match=r"a prompt (is empty|holds)"):
        Prompt(text)


def test_a_prompt_survives_pickling_and_cannot_change():
    prompt = Prompt("a cat")
    assert pickle.loads(pickle.dumps(prompt)) == prompt
    with pytest.raises(AttributeError):
        prompt.text = "a dog"


def test_blanks_are_all_that_unicode_calls_space_and_the_byte_order_mark():
    assert set(prompt_files.BLANKS) == {c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()} | {"\ufeff"}


# The list of the package vbench


VBENCH = [
    {"prompt_en": "a stop sign", "dimension": ["temporal_flickering"]},
    {"prompt_en": "a cow", "dimension": ["subject_consistency", "motion_smoothness"], "auxiliary_info": {}},
    {"prompt_en": "a stop sign", "dimension": ["color"]},
    {"prompt_en": "façades", "dimension": ["subject_consistency"]},
]


@pytest.fixture
def vbench_package(tmp_path, monkeypatch):
    """A package called vbench that must not be imported, as the true one needs an environment of its own."""
    monkeypatch.delitem(sys.modules, "vbench", raising=False)
    folder = tmp_path / "site" / "vbench"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def test_vbench_list_from_the_package_without_importing_it(vbench_package):
    (vbench_package / "VBench_full_info.json").write_text(json.dumps(VBENCH), encoding="utf-8")
    assert texts("vbench") == ["a stop sign", "a cow", "façades"]
    assert texts("vbench:subject_consistency") == ["a cow", "façades"]
    assert "vbench" not in sys.modules
    with pytest.raises(UserError, match="did you mean subject_consistency"):
        load("vbench:subject_consistancy")
    with pytest.raises(UserError, match="unknown VBench dimension ''"):
        load("vbench:")


def test_a_vbench_package_without_its_list(vbench_package):
    with pytest.raises(UserError, match=r"VBench_full_info\.json"):
        load("vbench")


def test_no_vbench_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install --no-deps vbench==0\.1\.5"):
        load("vbench")


# Names and paths


def test_a_name_wins_over_a_file_and_a_path_is_always_a_file(tmp_path, monkeypatch):
    (tmp_path / "smoke").write_text("mine\n")
    monkeypatch.chdir(tmp_path)
    assert len(texts("smoke")) == 2
    assert texts("./smoke") == texts(Path("smoke")) == ["mine"]


@pytest.mark.parametrize(
    ("source", "fix"),
    [
        ("smok", "did you mean smoke?"),
        ("Smoke", "did you mean smoke?"),
        ("prompts/genral.txt", "did you mean general?"),
        (Path("nowhere/zzz.csv"), "use one of general, nano, smoke, vbench"),
        ("~nobody-of-this-name/set.txt", "the path of a .txt"),
        ("smoke/set.txt", "the path of a .txt"),
    ],
)
def test_what_is_not_there(source, fix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smoke").write_text("a file where a folder is asked for")
    with pytest.raises(UserError, match="no prompt set or file") as error:
        load(source)
    assert fix in error.value.fix


@pytest.mark.parametrize("source", ["A prompt where a file belongs. " * 200, "a\0b", "", " "])
def test_what_is_no_path_at_all(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        load(source)
    assert len(str(error.value)) < 400


def test_a_folder(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        load(tmp_path)


def test_an_unreadable_file(put, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    path = put("a cat\n")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        load(path)


@pytest.mark.parametrize("name", ["set.tsv", "set.jsonl", "set.xlsx"])
def test_other_kinds_of_file_are_not_guessed_at(put, name):
    with pytest.raises(UserError, match=r"use \.txt"):
        load(put("a cat\n", name))


def test_a_file_without_a_suffix_and_one_in_the_home_folder(put, monkeypatch):
    path = put("a cat\n", "my prompts")
    assert texts(path) == ["a cat"]
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.setenv("USERPROFILE", str(path.parent))
    assert texts("~/my prompts") == ["a cat"]


def test_built_in_sets_away_from_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "_FOLDER", tmp_path / "prompts")
    with pytest.raises(UserError, match="pass the path"):
        load("nano")


# limit and slug


def test_limit():
    three = tuple(map(Prompt, "abc"))
    assert limit(three, 1) == three[:1]
    assert limit(list(three), 3) == limit(three, 99) == three
    for n in (0, -1):
        with pytest.raises(UserError, match=f"a limit of {n}"):
            limit(three, n)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A small red circle!", "a-small-red-circle-"),
        ("../../etc/passwd", "etc-passwd-"),
        ('"Café" & it\'s \\ 100%', "cafe-it-s-100-"),
        ("雨🌧", ""),
        ("..", ""),
        ("word " * 280, "word-word-word-word-word-word-word-word-word-"),
        ("x" * 300, "x" * 47 + "-"),
    ],
)
def test_slug_is_a_safe_and_readable_name(text, words):
    assert slug(Prompt(text)) == words + Prompt(text).id


def test_slug_tells_prompts_with_equal_words_apart():
    assert slug(Prompt("a cat")) != slug(Prompt("A cat!"))


@settings(deadline=None)
@given(st.text(min_size=1), st.integers(12, 80))
def test_slug_keeps_to_its_alphabet_and_size(text, size):
    try:
        prompt = Prompt(text)
    except UserError:
        return
    name = slug(prompt, size)
    assert re.fullmatch(r"([a-z0-9]+-)*[0-9a-f]{12}", name)
    assert len(name) <= size
    assert name.endswith(prompt.id)


def test_slug_without_room_for_the_id():
    with pytest.raises(ValueError, match="max_bytes"):
        slug(Prompt("a"), 11)
