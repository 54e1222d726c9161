"""mxbench: decide which low-bit attention to ship in a video diffusion model.

The public API is ``attend``, ``attach``, ``METHODS`` and ``AttentionSpec``. They are loaded on first use, so that
``import mxbench`` and ``mxbench --help`` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxbench.attention.methods import METHODS
    from mxbench.attention.spec import AttentionSpec
    from mxbench.dispatch import attend
    from mxbench.models.attach import attach

__version__ = "0.1.0"
__all__ = ["METHODS", "AttentionSpec", "__version__", "attach", "attend"]

_HOMES = {
    "METHODS": "mxbench.attention.methods",
    "AttentionSpec": "mxbench.attention.spec",
    "attend": "mxbench.dispatch",
    "attach": "mxbench.models.attach",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mxbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
