"""Prompt sets: where they come from, what a prompt is, and the identity that it keeps.

A source is the name of a set of ours (a file of ``prompts/``), ``vbench`` for the list inside the installed vbench
package, or a file: ``.txt`` with one prompt a line, ``.csv`` with a column called ``prompt``, ``.json`` in VBench's
own form.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mxbench.errors import UserError, unknown_name
from mxbench.runs.prompt_files import BLANKS, Found, csv_cells, decode, lines, vbench_entries

__all__ = ["BUILT_IN", "NAMES", "LoadedPrompts", "Prompt", "limit", "load", "load_with_notes", "slug"]

BUILT_IN = ("smoke", "nano", "general")
"""Our own sets, files of the checkout's ``prompts/`` folder."""

NAMES = (*BUILT_IN, "vbench")
"""Every name that :func:`load` knows; ``vbench:DIMENSION`` picks from the last."""

_FOLDER = Path(__file__).resolve().parents[2] / "prompts"
_VBENCH_LIST = "VBench_full_info.json"
_ID_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its text, and an identity made of the text alone.

    Args:
        text: the prompt. Blanks around it are dropped and line breaks inside it become spaces; nothing else is
            normalised, so precomposed and combining accents are two prompts.

    Raises:
        UserError: for a text that is empty, or that holds a NUL or half of a surrogate pair.
    """

    text: str

    def __post_init__(self) -> None:
        text = _clean(self.text)
        fault = _fault(text) if text else "is empty"
        if fault:
            raise UserError(f"a prompt {fault}", "give it a text of ordinary characters")
        object.__setattr__(self, "text", text)

    @property
    def id(self) -> str:
        """First 12 hex digits of the SHA-256 of the text in UTF-8, whatever file or position it came from."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_ID_DIGITS]


@dataclass(frozen=True, slots=True)
class LoadedPrompts:
    """What a source held: its prompts, each once and in order, and what a reader should be told about the rest."""

    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()


def load(source: str | Path) -> tuple[Prompt, ...]:
    """The prompts of a source, without the notes that :func:`load_with_notes` adds."""
    return load_with_notes(source).prompts


def load_with_notes(source: str | Path) -> LoadedPrompts:
    """Read a prompt set.

    Args:
        source: one of :data:`NAMES`, ``vbench:DIMENSION`` (such as ``vbench:subject_consistency``), or the path of a
            ``.txt``, ``.csv`` or ``.json`` file. A name wins over a file of that name; ``./smoke`` or a ``Path`` is
            always a file. A file without a suffix is read as ``.txt``.

    Returns:
        The prompts in the order of the source. A repeated prompt is kept once; repeats, empty cells and line breaks
        inside a prompt are told in the notes.

    Raises:
        UserError: for a source that does not exist, cannot be read, is not UTF-8, is malformed, or has no prompts.
    """
    if isinstance(source, str):
        if source in BUILT_IN:
            return _gather(lines(_text(_built_in(source))), source)
        name, colon, dimension = source.partition(":")
        if name == "vbench":
            path = _installed_vbench_list()
            return _gather(vbench_entries(_text(path), path, dimension if colon else None), source)
    path = Path(source)
    text = _text(path)  # Before the suffix: a file that is not there has no wrong one.
    match path.suffix.lower():
        case ".txt" | "":
            found = lines(text)
        case ".csv":
            found = csv_cells(text, path)
        case ".json":
            found = vbench_entries(text, path, None)
        case suffix:
            raise UserError(
                f"{path} is no prompt file that can be read: {suffix}",
                "use .txt (one prompt a line), .csv (a column called prompt) or .json (VBench's list)",
            )
    return _gather(found, str(path))


def limit(prompts: Sequence[Prompt], n: int) -> tuple[Prompt, ...]:
    """The first ``n`` prompts, or all where there are fewer.

    Raises:
        UserError: for ``n`` below 1.
    """
    if n < 1:
        raise UserError(f"a limit of {n} leaves no prompt", "give a limit of 1 or more, or none for all prompts")
    return tuple(prompts[:n])


def slug(prompt: Prompt, max_bytes: int = 60) -> str:
    """A name for files about a prompt: its first words and its id, in ``a-z``, ``0-9`` and ``-`` only.

    Args:
        prompt: the prompt; accents are dropped, other letters than a-z are left out.
        max_bytes: the most characters of the whole name, 12 or more; the id is never cut.

    Raises:
        ValueError: for ``max_bytes`` below 12.
    """
    if max_bytes < _ID_DIGITS:
        raise ValueError(f"max_bytes is {max_bytes}, and the id alone takes {_ID_DIGITS}")
    plain = unicodedata.normalize("NFKD", prompt.text).encode("ascii", "ignore").decode().lower()
    words = "-".join(re.findall("[a-z0-9]+", plain))
    room = max_bytes - _ID_DIGITS - 1
    if len(words) > room:
        # Cut between words where there is a between.
        words = words[: max(room, 0) + 1].rpartition("-")[0] or words[: max(room, 0)]
    return f"{words}-{prompt.id}" if words else prompt.id


def _clean(text: str) -> str:
    parts = (part.strip(BLANKS) for part in re.split(r"[\r\n]+", text))
    return " ".join(part for part in parts if part)


def _fault(text: str) -> str | None:
    if "\0" in text:
        return "holds a NUL character"
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "holds half of a surrogate pair, which is no character"
    return None


def _gather(found: Found, source: str) -> LoadedPrompts:
    """Clean the texts, keep each once, and note what was not taken as it stands."""
    first: dict[str, str] = {}
    repeats, empty, joined = [], [], []
    for where, raw in found:
        text = _clean(raw)
        if not text:
            empty.append(where)
            continue
        if fault := _fault(text):
            raise UserError(f"{source}, {where}: the prompt {fault}", "take it out of the prompt")
        if re.search(r"[\r\n]", raw.strip(BLANKS)):
            joined.append(where)
        if text in first:
            repeats.append(f"{where} repeats {first[text]}")
        else:
            first[text] = where
    if not first:
        raise UserError(f"{source} holds no prompts", "write at least one prompt into it")
    told = (
        ("repeated, kept once", repeats),
        ("empty, left out", empty),
        ("with line breaks, joined by spaces", joined),
    )
    notes = tuple(f"{source}: {len(places)} {what} ({_some(places)})" for what, places in told if places)
    return LoadedPrompts(tuple(map(Prompt, first)), notes)


def _some(places: list[str], shown: int = 3) -> str:
    rest = len(places) - shown
    return ", ".join(places[:shown]) + (f" and {rest} more" if rest > 0 else "")


def _built_in(name: str) -> Path:
    path = _FOLDER / f"{name}.txt"
    if not path.is_file():
        raise UserError(
            f"the prompt set {name} is not beside this installation of mxbench",
            "it is a file of the source checkout: pass the path of a prompt file",
        )
    return path


def _installed_vbench_list() -> Path:
    """VBench's list, found without importing the package: that import needs its whole environment."""
    spec = importlib.util.find_spec("vbench")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / _VBENCH_LIST).is_file():
            return path
    raise UserError(
        "VBench's prompts come with the package vbench, which is not installed here",
        f"run 'pip install --no-deps vbench==0.1.5', or pass the path of its {_VBENCH_LIST}",
    )


def _text(path: Path) -> str:
    """The text of a file, without its byte-order mark."""
    shown = repr(str(path)) if len(str(path)) < 100 else repr(str(path)[:99] + "…")
    try:
        path = path.expanduser()
        if path.is_dir():
            raise UserError(f"{shown} is a folder", "pass the path of one prompt file inside it")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, RuntimeError):  # RuntimeError: ~nobody has no home.
        near = unknown_name("prompt set", path.stem, NAMES).fix
        raise UserError(
            f"there is no prompt set or file {shown}", f"{near} (the path of a .txt, .csv or .json file works too)"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{shown} cannot be read: {reason}", "pass the path of a readable prompt file") from error
    return decode(data, path)
