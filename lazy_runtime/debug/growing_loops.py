"""A warning of loops whose tensors grow with each turn, so that each turn is compiled anew.

Text generation is the usual one: the tokens so far, their mask and a cache of keys and values are one longer each time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..common import notices
from .arguments import describe
from .recompile_reasons import Seen

#: How many compiles in a row make a loop that grows.
TURNS = 8

#: Operators of a program below which a compile takes too little to speak of.
SMALL = 100


def look(name: str, before: Sequence[Seen], new: Seen) -> None:
    """Warns once of a region whose last programs differ by an input that grew each time, by as much.

    Args:
        name: the region's, as `train.py:41`.
        before: its graphs that were compiled before, the last one last.
        new: the graph that was compiled now.
    """
    if len(before) < TURNS or len(new.graph.calls) < SMALL:
        return
    grown = _grown([*before[-TURNS:], new])
    if grown is None:
        return
    leaf, step = grown
    notices.tell_once(
        f"growing loop {name}",
        f"{name} has been compiled {TURNS + 1} times in a row, each time for an input that is longer by {step} (it is "
        f"{describe(new.graph.leaves[leaf])} now): each length is a program of its own. Give the loop tensors of one "
        'size. For generate() of transformers: cache_implementation="static"',
    )


def _grown(seen: Sequence[Seen]) -> tuple[int, int] | None:
    """An input, and by how much one of its sizes has grown from each graph to the next; None if there is none."""
    leaves = [each.graph.leaves for each in seen]
    if len({len(each) for each in leaves}) != 1:
        return None
    for place, shapes in enumerate(zip(*([leaf.shape for leaf in each] for each in leaves), strict=True)):
        if len({len(shape) for shape in shapes}) != 1:
            continue
        for sizes in zip(*shapes, strict=True):
            steps = {after - before for before, after in itertools.pairwise(sizes)}
            if len(steps) == 1 and (step := steps.pop()) > 0:
                return place, step
    return None
