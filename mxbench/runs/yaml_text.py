"""Read YAML so that every complaint can name a file and a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from mxbench.errors import UserError

__all__ = ["line_of", "read"]


def read(path: Path) -> tuple[Any, yaml.Node | None]:
    """The data of a YAML file, and its node tree for ``line_of``.

    Raises:
        UserError: the file cannot be read, or is no YAML; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}", "see `mxbench list recipes`, or pass another path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}", "pass a readable YAML file in UTF-8") from None
    try:
        return yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise UserError(f"{path}{where}: {error.problem or 'malformed YAML'}", "mend the YAML there") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {error}", "mend the YAML") from None


def line_of(node: yaml.Node | None, path: Sequence[str | int]) -> int | None:
    """Line, from 1, of the entry that a path of keys and indices leads to, or of the nearest one above it."""
    line = None
    for step in path:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    line, node = key.start_mark.line + 1, value
                    break
            else:
                return line
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            return line
    return line
