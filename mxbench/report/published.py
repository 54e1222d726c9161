"""The papers' numbers: results/published/*.csv, one value a line."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mxbench.errors import UserError

__all__ = ["FIELDS", "MODELS", "Published", "load_published", "same_model"]

FIELDS = ("paper", "table", "model", "setting", "method", "metric", "value", "unit", "source")


# A paper's name of a model, and what else the same weights are called: letters and digits only.
MODELS: dict[str, frozenset[str]] = {
    "Wan2.2": frozenset({"wan22", "wan22a14b", "wan2214b", "wan22t2va14b", "wan22t2va14bdiffusers"}),
    "HunyuanVideo": frozenset({"hunyuanvideo", "hunyuanvideo13b", "hunyuan"}),
    "HunyuanVideo-1.5": frozenset({"hunyuanvideo15", "hunyuan15", "hunyuanvideo15diffusers720pt2v"}),
    "LongCat-Video": frozenset({"longcatvideo", "longcat"}),
    "MiniMax-H3": frozenset({"minimaxh3", "h3"}),
}


@dataclass(frozen=True, slots=True)
class Published:
    """One published value.

    Attributes:
        paper: which paper.
        table: number of its table; empty where the value stands in the text.
        model: the paper's name of the model.
        setting: what it was measured with, such as ``{"frames": "81", "steps": "40"}``.
        method: the paper's name of the method.
        metric: our name of the metric.
        value: the number.
        printed: the number as it was printed.
        unit: its unit; empty for none.
        source: table, section or figure, and whether only a summary gave it.
    """

    paper: str
    table: str
    model: str
    setting: Mapping[str, str]
    method: str
    metric: str
    value: float
    printed: str
    unit: str
    source: str


def load_published(folder: Path | None = None) -> tuple[Published, ...]:
    """Reads every CSV file of a folder of published values.

    Args:
        folder: where they are; by default results/published under the current folder, or in the checkout that holds
            this package (an installed wheel has none).

    Raises:
        UserError: no such folder, no file in it, or a line that is not what `FIELDS` says, with file and line.
    """
    if folder is None:
        homes = (Path.cwd(), Path(__file__).resolve().parents[2])
        candidates = [home / "results" / "published" for home in homes]
        folder = next((path for path in candidates if path.is_dir()), None)
        if folder is None:
            raise UserError(
                "there is no results/published here, and this mxbench is installed without one",
                "pass the folder of published values, results/published of an mxbench checkout",
            )
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}", "pass results/published of an mxbench checkout")
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise UserError(f"there is no CSV file in {folder}", f"a file there has the columns {','.join(FIELDS)}")
    return tuple(entry for file in files for entry in _read(file))


def same_model(paper: str, name: str) -> bool:
    """Whether a model's name (also a hub id) means the model that a paper calls so."""
    plain = re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].casefold())
    own = re.sub(r"[^a-z0-9]", "", paper.casefold())
    return plain == own or plain in MODELS.get(paper, frozenset())


def _read(file: Path) -> list[Published]:
    entries = []
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        if tuple(reader.fieldnames or ()) != FIELDS:
            raise UserError(f"{file} has the columns {reader.fieldnames}", f"they must be {','.join(FIELDS)}")
        for line in reader:
            where = f"{file}, line {reader.line_num}"
            if None in line or None in line.values():
                raise UserError(f"{where} has not {len(FIELDS)} fields", "quote a field that holds a comma")
            try:
                value = float(line["value"])
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise UserError(f"{where}: {line['value']!r} is no number", "leave out what was not published")
            parts = (part.partition("=") for part in line["setting"].split(";"))
            setting = {name.strip(): value.strip() for name, equals, value in parts if equals}
            texts = {name: line[name].strip() for name in FIELDS if name not in ("setting", "value")}
            entries.append(Published(**texts, setting=setting, value=value, printed=line["value"].strip()))
    return entries
