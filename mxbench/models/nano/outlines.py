"""The outlines of the shapes as polygons, and masks of them at every angle for the reader to compare with."""

from __future__ import annotations

import math
from functools import cache

import cv2
import numpy as np

__all__ = ["CANVAS", "UNIT", "templates"]

CANVAS = 64
"""Pixels of a mask's edge."""
UNIT = 26.0
"""Square root of the area of every mask."""


def _outline(shape: str, angle: float) -> list[np.ndarray]:
    """Polygons of a shape of radius one; the second is a hole."""

    def turned(points: list[tuple[float, float]]) -> np.ndarray:
        turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        result: np.ndarray = np.array(points) @ turn
        return result

    def spokes(n: int, radii: tuple[float, ...]) -> list[tuple[float, float]]:
        turns = [2 * math.pi * k / n for k in range(n)]
        return [
            (radii[k % len(radii)] * math.sin(a), -radii[k % len(radii)] * math.cos(a)) for k, a in enumerate(turns)
        ]

    if shape == "circle":
        return [turned(spokes(90, (0.9,)))]
    if shape == "ring":
        return [turned(spokes(90, (0.99,))), turned(spokes(90, (0.49,)))]
    if shape == "square":
        return [turned([(-0.79, -0.79), (0.79, -0.79), (0.79, 0.79), (-0.79, 0.79)])]
    if shape == "triangle":
        return [turned(spokes(3, (1.1,)))]
    if shape == "star":
        return [turned(spokes(10, (1.1, 0.5)))]
    arm, end = 0.32, 1.0
    quarter = [(arm, -end), (arm, -arm), (end, -arm)]
    points = []
    for _ in range(4):
        points += quarter
        quarter = [(-y, x) for x, y in quarter]
    return [turned(points)]


def _filled(polygons: list[np.ndarray], scale: float) -> np.ndarray:
    mask = np.zeros((CANVAS, CANVAS), np.uint8)
    for value, polygon in zip((255, 0), polygons, strict=False):
        points = np.round((polygon * scale + CANVAS / 2 - 0.5) * 16).astype(np.int32)
        cv2.fillPoly(mask, [points], value, cv2.LINE_AA, 4)
    return mask.astype(np.float32) / 255


@cache
def templates() -> tuple[list[str], np.ndarray, dict[str, float]]:
    """Names and masks ``[K,64·64]`` of all shapes at all angles, each of the same area; and a shape's area per r²."""
    turns = {"circle": (1, 0.0), "ring": (1, 0.0), "square": (6, 90.0), "triangle": (8, 120.0), "star": (6, 72.0)}
    names, masks, areas = [], [], {}
    for shape in ("circle", "square", "triangle", "star", "ring", "cross"):
        n, period = turns.get(shape, (6, 90.0))
        areas[shape] = float(_filled(_outline(shape, 0.0), 25.0).sum()) / 25.0**2
        for k in range(n):
            names.append(shape)
            masks.append(_filled(_outline(shape, math.radians(period * k / n)), UNIT / math.sqrt(areas[shape])).ravel())
    return names, np.stack(masks), areas
