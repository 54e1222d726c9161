"""Clips drawn from their geometry in torch: signed distances, one fused expression a pixel, on any device."""

from __future__ import annotations

import math
from dataclasses import fields

import torch

from mxbench.models.nano.layout import EDGE, FRAMES, Clips
from mxbench.models.nano.scene import PATTERNS, SHAPES

__all__ = ["draw", "to_device"]

Params = dict[str, torch.Tensor]
_PERIOD = 32.0
"""Pixels of a background stripe and the one beside it; of two cells of the checkerboard."""
_STRIPES = 0.7
"""Stripes of an object a radius."""
_SOFT = 1.25
"""Width in pixels of the ramp at an edge: what sampling a pixel's area many times would give, and a little more."""


def to_device(clips: Clips, device: torch.device | str) -> Params:
    """The arrays of ``clips`` as tensors."""
    return {f.name: torch.from_numpy(getattr(clips, f.name)).to(device, non_blocking=True) for f in fields(clips)}


def _distance(x: torch.Tensor, y: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    """Signed distance in radii to the outline of each sample's shape; exact at straight edges, near elsewhere."""
    length = torch.sqrt(x * x + y * y + 1e-9)
    ax, ay = x.abs(), y.abs()
    high = torch.maximum(ax, ay)
    # A star: the ray is folded into half a point, and a point's edge is one straight line.
    sector = 2 * math.pi / 5
    angle = torch.atan2(x, -y)
    folded = (angle - sector * torch.round(angle / sector)).abs()
    px, py = length * torch.sin(folded), length * torch.cos(folded)
    tip, notch = 1.1, 0.5
    nx, ny = notch * math.sin(sector / 2), notch * math.cos(sector / 2)
    norm = math.hypot(nx, ny - tip)
    star = ((tip - ny) * px + nx * (py - tip)) / norm
    side = 0.5 * math.sqrt(3.0)
    found = {
        "circle": length - 0.9,
        "square": high - 0.79,
        "triangle": torch.maximum(side * ax - 0.5 * y, y) - 0.55,
        "star": star,
        "ring": (length - 0.74).abs() - 0.25,
        "cross": torch.maximum(torch.minimum(ax, ay) - 0.32, high - 1.0),
    }
    out = found["circle"]
    for index, name in enumerate(SHAPES):
        if index:
            out = torch.where(shape == index, found[name], out)
    return out


def _square_wave(phase: torch.Tensor, softness: torch.Tensor | float) -> torch.Tensor:
    """Minus one to one, with period one and ramps of ``softness``."""
    triangle = 4 * (phase - torch.floor(phase) - 0.5).abs() - 1
    return (triangle / (2 * softness)).clamp(-1, 1)


def _ground(p: Params, x: torch.Tensor, y: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
    pan = p["pan"][:, :, None, None, None] * when
    across = _square_wave((x - pan[:, 0]) / _PERIOD, 2 * _SOFT / _PERIOD)
    down = _square_wave((y - pan[:, 1]) / _PERIOD, 2 * _SOFT / _PERIOD)
    pattern = p["pattern"][:, None, None, None]
    tone = torch.zeros_like(across)
    for name, values in (("gradient", 1 - 2 * y / EDGE), ("striped", across), ("checkered", across * down)):
        tone = torch.where(pattern == PATTERNS.index(name), values, tone)
    base = p["ground"][:, :, None, None, None]
    tone = tone[:, None]
    return base + tone * (0.3 * base + 0.035)


def draw(p: Params) -> torch.Tensor:
    """Draw a batch of clips.

    Args:
        p: see :func:`to_device`.

    Returns:
        FP32 RGB in [0,1] ``[B,3,17,128,128]``.
    """
    device = p["ground"].device
    line = torch.arange(EDGE, device=device, dtype=torch.float32) + 0.5
    x, y = line.view(1, 1, 1, -1), line.view(1, 1, -1, 1)
    when = torch.linspace(0, 1, FRAMES, device=device).view(1, FRAMES, 1, 1)
    picture = _ground(p, x, y, when)
    for k in (1, 0):
        start, end = p["position"][:, k, 0], p["position"][:, k, 1]
        at = start[:, :, None, None, None] + (end - start)[:, :, None, None, None] * when
        radius, angle = (
            v[:, k, 0, None, None, None] + (v[:, k, 1] - v[:, k, 0])[:, None, None, None] * when
            for v in (p["radius"], p["angle"])
        )
        dx, dy = (x - at[:, 0]) / radius, (y - at[:, 1]) / radius
        cos, sin = torch.cos(angle), torch.sin(angle)
        u, v = cos * dx + sin * dy, cos * dy - sin * dx
        distance = _distance(u, v, p["shape"][:, k, None, None, None]) * radius
        inside = (0.5 - distance / _SOFT).clamp(0, 1) * p["present"][:, k, None, None, None]
        stripes = 0.5 + 0.5 * _square_wave((u + v) * _STRIPES, 2 * _SOFT / radius)
        lighter = (stripes * p["striped"][:, k, None, None, None])[:, None]
        rgb = p["rgb"][:, k, :, None, None, None]
        colour = rgb + lighter * 0.55 * (1 - rgb)
        picture = picture + inside[:, None] * (colour - picture)
    return picture.clamp(0, 1)
