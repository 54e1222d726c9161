"""What VBench's packages import and a modern environment lacks. Runs in the worker alone, where mxbench may be absent.

Every shim is put in place only where the real module cannot be imported, and ``fit`` tells which were.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

__all__ = ["fit"]


def fit() -> dict[str, str]:
    """Put shims where they are needed.

    Returns:
        For ``torchvision`` its version, or ``"stand-in"``; likewise ``pkg_resources``.
    """
    found = {}
    for name, make in (("torchvision", _torchvision), ("pkg_resources", _pkg_resources)):
        try:
            found[name] = str(getattr(importlib.import_module(name), "__version__", "present"))
        except Exception:  # noqa: BLE001 - it fails in many ways beside a torch that it was not built for
            for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                del sys.modules[loaded]
            make()
            found[name] = "stand-in"
    _bare_packages()
    return found


def _pkg_resources() -> None:
    """openai-clip takes ``packaging`` from it, which setuptools no longer brings along."""
    import packaging.version  # noqa: F401 - clip reads packaging.version

    module = types.ModuleType("pkg_resources")
    module.packaging = sys.modules["packaging"]  # type: ignore[attr-defined]
    sys.modules["pkg_resources"] = module


def _bare_packages() -> None:
    """Pyiqa's own ``__init__`` imports every model that it has; MUSIQ needs three of its folders."""
    spec = importlib.util.find_spec("pyiqa")
    if spec is not None and spec.submodule_search_locations:
        for name in ("pyiqa", "pyiqa.archs", "pyiqa.data"):
            module = types.ModuleType(name)
            folder = "/".join(name.split(".")[1:])
            module.__path__ = [f"{spec.submodule_search_locations[0]}/{folder}".rstrip("/")]
            sys.modules[name] = module


def _torchvision() -> None:
    import transforms

    def missing(name: str) -> Any:
        class Missing:
            """May be made, for a chain of transforms that is never called."""

            def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

            def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
                raise NotImplementedError(f"torchvision's {name} is not part of the stand-in")

        return Missing

    names: dict[str, dict[str, Any]] = {
        "torchvision": {"__version__": "0.0.0"},
        "torchvision.transforms": {
            **{name: getattr(transforms, name) for name in transforms.__all__},
            **{name: missing(name) for name in ("ColorJitter", "ToPILImage", "ToTensor")},
        },
        "torchvision.transforms.functional": {},
        "torchvision.utils": {"make_grid": missing("make_grid")},
        "torchvision.models": {},
        "torchvision.models.resnet": {"resnet50": missing("resnet50")},
    }
    for name, content in names.items():
        module = types.ModuleType(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)  # torch.hub looks for it
        vars(module).update(content)
        sys.modules[name] = module
        if "." in name:
            parent, own = name.rsplit(".", 1)
            setattr(sys.modules[parent], own, module)
