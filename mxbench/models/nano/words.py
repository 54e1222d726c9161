"""The words of the built-in model's tokenizer; every other text falls back to bytes."""

from __future__ import annotations

__all__ = ["WORDS"]

WORDS: tuple[str, ...] = tuple(
    """
    a an the and of in on over under with by from to into through across near at while is are as it its
    one two three small large big tiny medium huge
    red green blue yellow orange purple pink cyan magenta white black gray grey brown gold silver teal violet navy
    maroon
    light dark bright pale deep warm cold soft glowing
    circle square triangle ring cross star diamond ellipse rectangle bar ball disc cube line dot heart hexagon
    moves move moving rises rise falls fall drifts drift slides slide rotates rotate spins spin grows grow shrinks
    shrink bounces bounce turns turn floats float rolls roll stands stand stays stay still rests rest orbits
    swings pulses fades appears passes crosses circles does not
    left right up down upward downward upwards downwards leftward rightward diagonally slowly quickly fast slow
    top bottom center centre middle corner edge side
    camera pans pan zooms zoom in out tilts static follows view
    background plain striped stripes checkered checkerboard gradient dotted noise textured texture grass brick gravel
    sky water sand wood stone wall floor field night day
    shape shapes object objects video clip scene
    """.split()  # noqa: SIM905 - read as prose
)
