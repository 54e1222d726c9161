"""Whether a transformer's tensors are those that its config asks for: seen from names and shapes alone.

diffusers warns of tensors that it has no place for and renders without them; tensors that are missing end in a
traceback, minutes later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxbench.errors import UserError
from mxbench.models.pipeline_folder import INDEXES, Names, components_of, read_json, tensors_of

__all__ = ["check_tensors"]


def check_tensors(folder: Path, components: Names) -> None:
    """See to it, for the transformers that diffusers loads; other parts' classes rename tensors while they load them.

    Args:
        folder: of a pipeline whose files are all there.
        components: those that are needed; None is all that the index names.

    Raises:
        UserError: a config that its class does not take, or tensors that do not fit it.
    """
    import diffusers

    if not any((folder / name).is_file() for name in INDEXES):
        return  # a package of its own loads it
    for name, library, held in components_of(folder, components):
        config = folder / name / "config.json"
        cls = getattr(diffusers, held, None)
        if library != "diffusers" or "Transformer" not in held or cls is None or not config.is_file():
            continue
        found = {}
        for file in sorted((folder / name).glob("*.safetensors")):
            found.update(tensors_of(file))
        if found:
            _fit(config, _wanted(cls, config), found, getattr(cls, "_keys_to_ignore_on_load_unexpected", None) or ())


def _wanted(cls: Any, config: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a part that is made of its config, without its weights."""
    import torch

    try:
        with torch.device("meta"):
            part = cls.from_config(read_json(config))
    except UserError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise UserError(f"{config} makes no {cls.__name__}: {said}", "bring it again") from error
    return {name: tuple(value.shape) for name, value in part.state_dict().items()}


def _fit(
    config: Path, wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], ignored: Any
) -> None:
    spare = [name for name in found if name not in wanted and not any(re.search(each, name) for each in ignored)]
    gone = [name for name in wanted if name not in found]
    other = [name for name in wanted if name in found and wanted[name] != found[name]]
    for names, what in ((gone, "lack"), (other, "have another shape of"), (spare, "hold, beside what it asks for,")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise UserError(
                f"the weights beside {config} {what} {names[0]}{more}",
                "bring config and weights again, both of one model",
            )
