"""How many different graphs a region may give, and where one more departs from those before."""

from __future__ import annotations

from collections.abc import Sequence

from ..compilation import linearization
from ..debug import graphs
from ..ir.graph import Graph
from ..platform import xla_devices


class TooManyGraphsError(RuntimeError):
    """A region has given more different graphs than it may."""


class GraphLimit:
    """The graphs that something has given.

    Args:
        most: how many different ones it may give.
    """

    def __init__(self, most: int):
        self.most = most
        self._graphs: set[tuple[Graph, ...]] = set()
        self._sequences: list[tuple[str, ...]] = []  # the operators of each, in order

    def check(self, name: str) -> None:
        """Adds what is pending on all devices.

        Args:
            name: what errors call the region.

        Raises:
            TooManyGraphsError: it is one graph too many.
        """
        found, operators = [], []
        for device in xla_devices.devices():
            with device.lock:
                numbered = linearization.linearize(device, device.pending, donate=False)
            found.append(numbered.graph)
            operators += [graphs.summary(node) for node in numbered.nodes]
        key = tuple(found)
        if key in self._graphs:
            return
        if len(self._graphs) >= self.most:
            raise TooManyGraphsError(
                f"{name} has given {self.most + 1} different graphs and may give {self.most} (max_different_graphs): "
                "pad its inputs to fewer different shapes, keep Python values that change out of its control flow, or "
                f"raise the limit. Maximum number of different graphs allowed per function exceeded: {self.most}\n"
                f"{self._departure(operators)}"
            )
        self._graphs.add(key)
        self._sequences.append(tuple(operators))

    def _departure(self, operators: Sequence[str]) -> str:
        """What comes instead of what, where the operators cease to be as in any graph before."""
        same = max(_common(operators, each) for each in self._sequences)
        known = [each for each in self._sequences if _common(operators, each) == same]
        expected = list(dict.fromkeys(each[same] for each in known if len(each) > same))
        if same < len(operators):
            text = f"Got: {operators[same]}\n"
        elif not expected:
            return "The operators are the same, and depend on each other in another way.\n"
        else:
            text = f"Reached the end of the function at: {operators[-1] if operators else 'its beginning'}\n"
        if not expected:
            return f"{text}Expected: the end of the function\n"
        if len(expected) == 1:
            return f"{text}Expected: {expected[0]}\n"
        return f"{text}Expected either of:\n" + "".join(f"  - {each}\n" for each in expected)


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """How many operators are the same at the beginning."""
    return next(
        (n for n, (x, y) in enumerate(zip(first, second, strict=False)) if x != y), min(len(first), len(second))
    )
