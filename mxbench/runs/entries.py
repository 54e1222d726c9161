"""Entries of a recipe's ``methods``: names, variations of a named method, rules, and a user's own functions."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mxbench.attention.axes import AXES, with_axes
from mxbench.attention.methods import METHODS, method
from mxbench.errors import UserError, unknown_name
from mxbench.policy import Rule, Schedule, Selector, Use
from mxbench.policy.schedule import KINDS

__all__ = ["Entry", "parse_entry"]

_KEYS = ("name", "label", "base", "rules", "function", "flags", "axis")
_RULE_KEYS = ("layers", "steps", "experts", "kind", "use")


@dataclass(frozen=True, slots=True)
class Entry:
    """A method of a recipe.

    Attributes:
        key: how scripts and files call it; unique in a recipe.
        label: how tables print it.
        schedule: what it computes where.
        flags: check marks of an ablation.
        axis: values of a sweep.
    """

    key: str
    label: str
    schedule: Schedule
    flags: Mapping[str, bool] = field(default_factory=dict)
    axis: Mapping[str, str] = field(default_factory=dict)


def parse_entry(data: str | Mapping[str, Any]) -> Entry:
    """An entry from YAML: a name, or ``{name, base, <axis>: value, ...}``, ``{name, rules}``, ``{name, function}``.

    Raises:
        UserError: an unknown name or key, a value that does not fit, or a function that cannot be imported.
    """
    if isinstance(data, str):
        found = method(data)
        return Entry(data, found.label, Schedule(data, (Rule(Use(data, found.spec)),)))
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise UserError(f"{data!r} is no method", "write a name, or a mapping such as {base: mxattn, row_sum: exact}")
    for key in data:
        if key not in _KEYS and key not in AXES:
            raise unknown_name("field", key, [*_KEYS, *AXES], hint="mxbench list fields")
    name = data.get("name")
    if name is not None and not isinstance(name, str):
        raise UserError(f"the name {name!r} is no text", "put it in quotes")
    if "rules" in data:
        schedule = Schedule(_required(data, "rules"), tuple(_rule(rule) for rule in _list(data["rules"])))
    else:
        use = _use(data)
        schedule = Schedule(name or use.name, (Rule(replace(use, name=name or use.name)),))
    label = data.get("label")
    if label is None:
        same = METHODS.get(schedule.name)
        label = same.label if same is not None and same.spec == schedule.main.spec else schedule.name
    return Entry(
        key=schedule.name,
        label=str(label),
        schedule=schedule,
        flags={str(k): bool(v) for k, v in dict(data.get("flags") or {}).items()},
        axis={str(k): str(v) for k, v in dict(data.get("axis") or {}).items()},
    )


def _required(data: Mapping[str, Any], what: str) -> str:
    if not data.get("name"):
        raise UserError(f"an entry with {what} has no name", "give it one, such as name: mxattn-hybrid")
    return str(data["name"])


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise UserError("rules is no list", "write at least one rule, such as {steps: [-2, -1], use: fp16}")
    return value


def _rule(data: Any) -> Rule:
    if not isinstance(data, Mapping):
        raise UserError(f"the rule {data!r} is no mapping", "write {layers: ..., steps: ..., use: NAME}")
    for key in data:
        if key not in _RULE_KEYS:
            raise unknown_name("rule field", key, _RULE_KEYS)
    if "use" not in data:
        raise UserError("a rule does not say what to use", "add use: NAME, such as use: fp16")
    kind = data.get("kind", "self")
    if kind not in KINDS:
        raise unknown_name("kind of attention", kind, KINDS)
    use = data["use"]
    return Rule(
        use=_use({"base": use} if isinstance(use, str) else use),
        layers=Selector.parse(data.get("layers"), "layers"),
        steps=Selector.parse(data.get("steps"), "steps"),
        experts=Selector.parse(data.get("experts"), "experts"),
        kind=str(kind),
    )


def _use(data: Any) -> Use:
    if not isinstance(data, Mapping):
        raise UserError(f"{data!r} is no method", "write a name, or a mapping such as {base: mxattn, row_sum: exact}")
    axes = {key: value for key, value in data.items() if key in AXES}
    for key in data:
        if key not in axes and key not in _KEYS:
            raise unknown_name("field", key, [*_KEYS, *AXES], hint="mxbench list fields")
    if "function" in data:
        if axes or "base" in data:
            raise UserError("a function has fields of a spec beside it", "leave base and the axes out")
        return _imported(str(data["function"]))
    base = data.get("base", data.get("name"))
    if not isinstance(base, str):
        raise UserError("an entry names no method", "add base: NAME, such as base: mxattn")
    spec = with_axes(method(base).spec, axes)
    changes = ", ".join(f"{key}={value}" for key, value in axes.items())
    return Use(f"{base} ({changes})" if changes else base, spec)


def _imported(path: str) -> Use:
    module, _, name = path.partition(":")
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        source = inspect.getsource(function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"the function {path!r} cannot be imported: {error}", "write package.module:function") from None
    except (OSError, TypeError):
        source = ""  # compiled code: its path is all there is
    if not callable(function):
        raise UserError(f"{path!r} is no function", "name a function f(q, k, v) -> out on [B,H,N,D]")
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    return Use(path, None, function, f"{path}#{digest}")
