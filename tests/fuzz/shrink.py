"""Makes a program that fails smaller, as long as it fails in the same way.

Hypothesis' own shrinker would run it some hundred times, each of which compiles. Leaving out statements or layers, and
simplifying what is left, gets as far for programs of a dozen lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

P = TypeVar("P")


def shrink(program: P, fails: Callable[[P], bool], smaller: Callable[[P], Iterable[P]], tries: int = 200) -> P:
    """The smallest program found that `fails`.

    Args:
        smaller: gives the programs that are a little smaller than one.
        tries: how many programs are run at most.
    """
    found = True
    while found and tries > 0:
        found = False
        for candidate in smaller(program):
            tries -= 1
            if fails(candidate):
                program, found = candidate, True
                break
            if tries <= 0:
                break
    return program
