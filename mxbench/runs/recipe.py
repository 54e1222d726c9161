"""``Recipe``: what to run, as names and values, from YAML or from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mxbench.errors import UserError, unknown_name
from mxbench.runs.entries import parse_entry
from mxbench.runs.yaml_text import line_of, read

__all__ = ["METRIC_DEFAULTS", "Recipe", "SamplingFields", "load", "parse", "recipe_files"]

METRIC_DEFAULTS = ("cosine", "ssim", "psnr", "psnr_clip", "vmaf", "temporal_flickering")


class SamplingFields(BaseModel):
    """What a recipe may change of a model's sampling; None keeps the model's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    height: int | None = Field(default=None, ge=16)
    width: int | None = Field(default=None, ge=16)
    frames: int | None = Field(default=None, ge=1)
    fps: int | None = Field(default=None, ge=1)
    steps: int | None = Field(default=None, ge=1)
    guidance: float | list[float] | None = None
    negative_prompt: str | None = None
    max_sequence_length: int | None = Field(default=None, ge=1)


class Recipe(BaseModel):
    """A recipe; every field but ``methods`` has a default.

    Attributes:
        title: heading of the report.
        source: the paper and table that it reproduces, if any.
        model: a name in MODELS.
        weights: a folder, a hub id, ``random`` or ``random:tiny``; None for the model's own.
        revision: of a hub id.
        memory: how it is placed on a GPU, a name in ``mxbench.models.memory.MEMORY``; None chooses.
        prompts: a name or a path for ``mxbench.runs.prompts.load``, or the prompts themselves; None takes the model's.
        limit: the first so many prompts.
        seeds: how many (counted from 0), or which.
        sampling: changes to the model's own sampling.
        methods: entries, see ``mxbench.runs.entries``; the FP16 reference is added where it is missing.
        reference_impl: what renders the FP16 reference.
        noise_floor: the exact kernel of the noise-floor row, or false for none. ``auto`` is the reference; at the size
            of a real model, which on a GPU takes hours by plain torch, FlashAttention-2.
        impl: what computes the methods.
        metrics: names in METRICS.
        baseline: the row that paired differences are taken against.
        kind: how the report describes rows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    title: str = "mxbench"
    source: str = ""
    model: str = "nano"
    weights: str | None = None
    revision: str | None = None
    memory: str | None = None
    prompts: str | list[str] | None = None
    limit: int | None = Field(default=None, ge=1)
    seeds: int | list[int] = 1
    sampling: SamplingFields = SamplingFields()
    methods: list[str | dict[str, Any]] = Field(min_length=1)
    reference_impl: str = "auto"
    noise_floor: str | Literal[False] = "auto"
    impl: str = "auto"
    metrics: list[str] = list(METRIC_DEFAULTS)
    baseline: str = "mxfp4"
    kind: Literal["methods", "ablation", "sweep"] = "methods"


def parse(data: Any, origin: str = "the command line", node: yaml.Node | None = None) -> Recipe:
    """A recipe from plain data.

    Args:
        data: a mapping of the fields.
        origin: what messages call it: a file's path.
        node: the YAML tree, for line numbers.

    Raises:
        UserError: an unknown key (nearest names offered) or a value of the wrong kind, with file, line and key.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"{origin} is no recipe: a mapping is wanted", "start with `methods: [fp16, mxattn]`")
    try:
        return Recipe.model_validate(dict(data))
    except ValidationError as error:
        found = error.errors()
        # A misspelt key explains a missing one.
        first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
        where = [step for step in first["loc"] if not (isinstance(step, str) and step.startswith(("list[", "dict[")))]
        line = line_of(node, where)
        key = ".".join(str(step) for step in where)
        at = f"{origin}, line {line}" if line else origin
        if first["type"] == "extra_forbidden":
            known = SamplingFields.model_fields if where[0] == "sampling" else Recipe.model_fields
            named = unknown_name("key", where[-1], known)
            raise UserError(f"{at}: {named.problem}", named.fix) from None
        if first["type"] == "missing":
            raise UserError(f"{at}: {key} is missing", f"add it, such as `{key}: [fp16, mxattn]`") from None
        raise UserError(f"{at}: {key}: {first['msg'].lower()}", f"change {key}") from None


def load(path: str | Path) -> Recipe:
    """A recipe from a YAML file; a prompt file that stands beside it is found there.

    Raises:
        UserError: see ``parse``; or no such file, or malformed YAML with its line.
    """
    path = Path(path)
    data, node = read(path)
    recipe = parse(data, str(path), node)
    for index, item in enumerate(recipe.methods):
        try:
            parse_entry(item)
        except UserError as error:
            where = f"{path}, line {line_of(node, ['methods', index])}"
            raise UserError(f"{where}: {error.problem}", error.fix) from None
    if isinstance(recipe.prompts, str) and (beside := path.parent / recipe.prompts).is_file():
        return recipe.model_copy(update={"prompts": str(beside)})
    return recipe


def recipe_files() -> dict[str, Path]:
    """The recipes of the checkout (or of the current directory), by name."""
    folders = [Path("recipes"), Path(__file__).resolve().parents[2] / "recipes"]
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found
