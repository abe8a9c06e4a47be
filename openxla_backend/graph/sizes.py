"""Concrete sizes for one call of a graph that Dynamo made for symbolic ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch


class Sizes:
    """What each symbol of a graph stands for in one call.

    Args:
        gm: the graph; its placeholders carry the fake tensors and SymInts that it was made for.
        arguments: those of the call.
    """

    def __init__(self, gm: torch.fx.GraphModule, arguments: Sequence[Any]):
        self._values: dict[Any, Any] = {}
        for node, argument in zip(gm.graph.find_nodes(op="placeholder"), arguments, strict=True):
            fake = node.meta.get("val")
            if isinstance(fake, torch.SymInt):
                self._values[fake.node.expr] = sympy.Integer(argument)
            elif isinstance(fake, torch.Tensor) and argument is not None:  # None is given for a token of effects
                for symbol, size in zip(fake.shape, argument.shape, strict=True):
                    if isinstance(symbol, torch.SymInt):
                        self._values[symbol.node.expr] = sympy.Integer(size)

    def ints(self, sizes: Iterable[Any]) -> tuple[int, ...] | None:
        """The sizes (or strides) as numbers; None if one depends on more than the arguments' sizes."""
        found = []
        for size in sizes:
            if isinstance(size, torch.SymInt):
                size = size.node.expr.xreplace(self._values)
                if not size.is_number:
                    return None
            found.append(int(size))
        return tuple(found)
