"""The optimisers: Muon for the matrices of the DiT's blocks, AdamW for all else.

Learning rates are tensors: a recorded step reads them anew each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["Muon", "adamw", "for_vae", "optimisers"]

_MUON = 10.0
"""Learning rate of Muon over that of AdamW, whose updates are much smaller in the spectral norm."""


def adamw(groups: Iterable[tuple[Iterable[torch.nn.Parameter], float]], device: torch.device) -> torch.optim.Optimizer:
    """AdamW over groups of parameters with their peak learning rates; only matrices decay."""
    found = []
    for parameters, peak in groups:
        listed = list(parameters)
        for decay, chosen in ((0.01, [p for p in listed if p.ndim > 1]), (0.0, [p for p in listed if p.ndim < 2])):
            rate = torch.tensor(peak, device=device)
            found.append({"params": chosen, "peak": peak, "lr": rate, "weight_decay": decay})
    cuda = device.type == "cuda"
    return torch.optim.AdamW([g for g in found if g["params"]], betas=(0.9, 0.98), fused=cuda, capturable=cuda)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Nearly orthogonal factors of a batch of matrices, by five Newton-Schulz steps (Jordan et al., Muon, 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: torch.Tensor = x.mT if tall else x
    return result


class Muon(torch.optim.Optimizer):
    """Muon on matrices, those of one shape in one batched product; ``torch.optim.Muon`` takes them one by one.

    The filters of a convolution are the rows of a matrix.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], peak: float, momentum: float = 0.95) -> None:
        listed = list(parameters)
        rate = torch.tensor(peak, device=listed[0].device)
        super().__init__(listed, {"lr": rate, "peak": peak, "momentum": momentum, "weight_decay": 0.002})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[torch.Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault((p.shape[0], p.numel() // p.shape[0]), []).append(p)
            for (rows, columns), members in shapes.items():
                for p in members:
                    if "momentum" not in self.state[p]:
                        self.state[p]["momentum"] = torch.zeros_like(p)
                kept = [self.state[p]["momentum"] for p in members]
                gradients = [p.grad for p in members if p.grad is not None]
                torch._foreach_lerp_(kept, gradients, 1 - group["momentum"])
                ahead = torch._foreach_lerp(gradients, kept, group["momentum"])
                updates = orthogonal(torch.stack([a.flatten(1) for a in ahead])) * max(1.0, rows / columns) ** 0.5
                steps = (updates.to(members[0].dtype) * group["lr"]).unbind()
                torch._foreach_mul_(members, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_sub_(members, [s.view_as(p) for s, p in zip(steps, members, strict=True)])


def for_vae(vae: Any, peak: float, device: torch.device) -> list[torch.optim.Optimizer]:
    """The optimisers of a VAE: Muon for the filters between its first and its last convolutions."""
    ends = (vae.encoder.conv_in, vae.encoder.conv_out, vae.decoder.conv_in, vae.decoder.conv_out)
    outer = {id(p) for m in (*ends, vae.quant_conv, vae.post_quant_conv) for p in m.parameters()}
    listed = list(vae.parameters())
    filters = [p for p in listed if p.ndim > 3 and p.shape[1:].numel() > 1 and id(p) not in outer]
    chosen = {id(p) for p in filters}
    return [Muon(filters, _MUON * peak), adamw([([p for p in listed if id(p) not in chosen], peak)], device)]


def optimisers(dit: Any, peak: float, device: torch.device) -> list[torch.optim.Optimizer]:
    """The optimisers of a DiT."""
    matrices = [p for p in dit.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in dit.parameters() if id(p) not in chosen]
    return [Muon(matrices, _MUON * peak), adamw([(others, peak)], device)]
