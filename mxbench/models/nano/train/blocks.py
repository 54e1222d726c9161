"""The DiT's blocks for training: compiled, and written so that compilation makes fast kernels of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch.nn import functional

from mxbench.models.nano.train.state import Session

__all__ = ["Rotating", "prepared"]


def _quarter_turn(d: int, device: torch.device) -> torch.Tensor:
    """The matrix ``[D,D]`` that takes each pair of neighbours (a, b) to (-b, a), as ``functional.linear`` has it."""
    first = torch.arange(0, d, 2, device=device)
    turn = torch.zeros(d, d, device=device)
    turn[first, first + 1], turn[first + 1, first] = -1.0, 1.0
    return turn


class Rotating(WanAttnProcessor):  # type: ignore[misc]
    """diffusers' attention, its rotation a matrix product.

    Of diffusers' writes to every other element the compiler makes a kernel that takes thirty times as long.

    Args:
        d: head dimension.
        like: a parameter of the DiT, whose device and dtype the matrix gets.
    """

    def __init__(self, d: int, like: torch.Tensor) -> None:
        super().__init__()
        self._turn = _quarter_turn(d, like.device).to(like.dtype)

    def _rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Pairs of neighbours of ``x`` ``[B,N,H,D]`` turned; the tables ``[1,N,1,D]`` hold each angle twice."""
        return (x * cos + functional.linear(x, self._turn) * sin).type_as(x)

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Attention without mask or image tokens."""
        assert attention_mask is None
        assert attn.add_k_proj is None
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        q, k, v = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(source)), attn.to_v(source)
        q, k, v = (x.unflatten(2, (attn.heads, -1)) for x in (q, k, v))
        if rotary_emb is not None:
            q, k = self._rotated(q, *rotary_emb), self._rotated(k, *rotary_emb)
        out = functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        result: torch.Tensor = attn.to_out[1](attn.to_out[0](out.transpose(1, 2).flatten(2, 3).type_as(q)))
        return result


@contextmanager
def prepared(dit: Any, session: Session) -> Iterator[None]:
    """Blocks compiled, one compilation for all; the conditioning kept in FP32; patches of one cell a matrix product."""
    conditioning, patches = dit.condition_embedder, dit.patch_embedding
    plain = conditioning.forward
    kept = {name: module.processor for name, module in dit.named_modules() if hasattr(module, "processor")}

    def precise(*arguments: Any, **named: Any) -> Any:
        with torch.autocast(session.world.device.type, enabled=False):
            return plain(*arguments, **named)

    def project(x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.movedim(1, -1), patches.weight.flatten(1), patches.bias).movedim(-1, 1)

    assert patches.kernel_size == (1, 1, 1)
    conditioning.forward, patches.forward = precise, project
    for name in kept:
        dit.get_submodule(name).set_processor(Rotating(dit.config.attention_head_dim, patches.weight))
    if session.options.compile:
        dit.compile_repeated_blocks(fullgraph=True, dynamic=False)
    try:
        yield
    finally:
        del conditioning.forward, patches.forward
        for name, processor in kept.items():
            dit.get_submodule(name).set_processor(processor)
        for block in dit.blocks:
            block._compiled_call_impl = None
