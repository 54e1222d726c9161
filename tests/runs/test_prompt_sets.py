"""Our own prompt sets are what prompts/README.md says of them."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from mxbench.models.nano import heldout
from mxbench.runs.prompts import BUILT_IN, load_with_notes

FOLDER = Path(__file__).resolve().parents[2] / "prompts"
SIZES = {"smoke": 2, "nano": 64, "general": 64}
AXES = ["subject", "style", "motion", "camera", "scene"]
STYLE_WORDS = {"photo": "photorealistic", **{s: s for s in ("anime", "watercolour", "macro", "drone")}}
CAMERA_WORDS = {
    "static": "static camera",
    "pan": r"\bpans?\b",
    "tilt": r"\btilts\b",
    "push-in": r"\bpush(es)? in\b",
    "pull-back": r"\bpulls back\b",
    "tracking": r"\btracks\b",
    "orbit": r"\borbits\b",
    "handheld": r"\bhandheld\b",
}


@pytest.fixture(scope="module")
def tags() -> list[dict[str, str]]:
    with (FOLDER / "general.tags.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(heading: str) -> dict[str, str]:
    """The rows ``axis: counts`` of the README's table under a heading."""
    part = (FOLDER / "README.md").read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", part, re.MULTILINE))
    return {axis: counts for axis, counts in rows.items() if axis != "axis"}


def counts(values) -> str:
    return ", ".join(f"{value} {count}" for value, count in sorted(Counter(values).items()))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_set_is_clean(name):
    got = load_with_notes(name)
    assert len(got.prompts) == SIZES[name]
    assert got.notes == ()
    assert (FOLDER / f"{name}.txt").read_text(encoding="utf-8") == "".join(f"{p.text}\n" for p in got.prompts)
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"| `{name}` | {SIZES[name]} |" in readme


def test_every_prompt_of_general_has_its_tags(tags):
    assert list(tags[0]) == ["id", *AXES]
    assert [row["id"] for row in tags] == [p.id for p in load_with_notes("general").prompts]


def test_general_says_its_style_and_camera_in_words(tags):
    for row, prompt in zip(tags, load_with_notes("general").prompts, strict=True):
        text = prompt.text.lower()
        assert [s for s, word in STYLE_WORDS.items() if word in text] == [row["style"]], text
        assert re.search(CAMERA_WORDS[row["camera"]], text), (row, text)


def test_general_is_balanced_as_the_readme_counts(tags):
    assert table("How `general` is balanced") == {axis: counts(row[axis] for row in tags) for axis in AXES}
    for axis in AXES:
        numbers = Counter(row[axis] for row in tags).values()
        assert max(numbers) - min(numbers) <= 1, axis


@pytest.mark.parametrize("start", [0, 16, 32, 48])
def test_every_16_prompts_of_general_show_every_value(tags, start):
    for axis in AXES:
        assert {row[axis] for row in tags[start : start + 16]} == {row[axis] for row in tags}, axis


def test_nano_is_what_the_generator_of_held_out_scenes_makes():
    assert (FOLDER / "nano.txt").read_text(encoding="utf-8") == heldout.prompts()
    attributes = (FOLDER / "nano.attributes.csv").read_text(encoding="utf-8")
    assert attributes == heldout.attributes_csv()
    assert tuple(heldout.read_scenes(attributes).values()) == heldout.scenes()


def test_smoke_keeps_to_the_words_of_nano():
    known = {word for p in load_with_notes("nano").prompts for word in p.text.split()}
    assert {word for p in load_with_notes("smoke").prompts for word in p.text.split()} <= known


def test_nano_is_balanced_as_the_readme_counts():
    with (FOLDER / "nano.attributes.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    objects = [(row, k) for row in rows for k in range(1, int(row["count"]) + 1)]
    assert len(objects) == 80
    empty = {"size": "unsaid", "texture": "plain"}
    found = {
        axis: counts(row[f"{axis}_{k}"] or empty[axis] for row, k in objects)
        for axis in ("size", "colour", "shape", "motion", "texture")
    }
    found |= {axis: counts(row[axis] for row in rows) for axis in ("background", "pattern")}
    assert table("How `nano` is made") == found
    for row, k in objects:
        said = [row[f"{what}_{k}"] for what in ("colour", "shape")]
        assert all(word in row["prompt"].split() for word in said), row["prompt"]
