"""mxbench's entry in diffusers' attention registry: a function that hands every call to the active session.

diffusers keeps its backends in a closed enum; a pseudo-member entered in the enum's own maps makes registration,
lookup by name and pickling work, and leaves the process-wide default backend alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    _AttentionBackendRegistry,
    _templated_context_parallel_attention,
)

from mxbench.errors import UserError

__all__ = ["BACKEND", "connect", "stock"]

Handler = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]], torch.Tensor]

_handler: list[Handler] = []


def connect(handler: Handler | None) -> None:
    """Make ``handler`` the one that serves calls; None disconnects."""
    _handler[:] = [] if handler is None else [handler]


@torch._dynamo.disable  # type: ignore[untyped-decorator]
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    _parallel_config: Any = None,
) -> torch.Tensor:
    """Attention on ``[B,N,H,D]``; every parameter is named, since the registry drops what a signature lacks."""
    if not _handler:
        raise RuntimeError("mxbench's attention was called outside `with attach(...)`")
    handler = _handler[0]
    options = {
        "attn_mask": attn_mask,
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": enable_gqa,
        "_parallel_config": _parallel_config,
    }
    if _parallel_config is None:
        return handler(query, key, value, options)
    spread = _parallel_config.context_parallel_config
    if spread.ring_degree > 1:
        raise UserError(
            "the transformer is spread by ring attention, so that no GPU sees whole sequences",
            "enable parallelism with ContextParallelConfig(ulysses_degree=...) alone",
        )

    def whole(_ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Whole sequences of this rank's heads."""
        return handler(q, k, v, {**options, "_parallel_config": None})

    out: torch.Tensor = _templated_context_parallel_attention(
        query, key, value, attn_mask, forward_op=whole, backward_op=None, _parallel_config=_parallel_config
    )
    return out


def stock(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """The call as diffusers would have made it, by its active backend."""
    name, function = _AttentionBackendRegistry.get_active_backend()
    known = _AttentionBackendRegistry._supported_arg_names[name]
    passed = {k: v for k, v in options.items() if k in known}
    result: torch.Tensor = function(query=query, key=key, value=value, **passed)
    return result


def _register() -> AttentionBackendName:
    known: AttentionBackendName | None = AttentionBackendName._value2member_map_.get("mxbench")
    if known is not None:
        return known
    member = str.__new__(AttentionBackendName, "mxbench")
    member._name_, member._value_ = "MXBENCH", "mxbench"
    AttentionBackendName._member_map_["MXBENCH"] = member
    AttentionBackendName._value2member_map_["mxbench"] = member
    _AttentionBackendRegistry.register(member, supports_context_parallel=True)(_attention)
    return member


BACKEND = _register()
