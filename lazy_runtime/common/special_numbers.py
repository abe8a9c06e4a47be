"""Numbers that XLA can simplify for, which are constants of a program where others are inputs of it."""

from __future__ import annotations

from . import environment

LOWEST: int
HIGHEST: int
FLOATS: tuple[float, ...]


def use(are_used: bool) -> None:
    """Whether there are such numbers.

    Not among ranks, whose numbers may differ where their programs must not. And what they have to sum, XLA would take
    for the same on all of them.
    """
    global LOWEST, HIGHEST, FLOATS
    special = are_used and not environment.value("XLA_NO_SPECIAL_SCALARS")
    LOWEST, HIGHEST = (-2, 2) if special else (0, -1)
    FLOATS = (0.0, 1.0, -1.0) if special else ()


use(True)
