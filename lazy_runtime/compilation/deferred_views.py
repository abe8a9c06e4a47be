"""Views in eager mode.

A view costs nothing on other devices; here it would be a program that copies. So in eager mode a view operator is not
executed but left to what reads its result, whose program begins with the views that it needs: XLA folds a transpose
into the matrix product behind it. Autograd and functionalization make views that nobody reads at all (a training step
of a small language model: 280 of 690 operators, and half of the time).

Such a node is on no list. It lives as long as a tensor or another view holds its value.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.graph import Node, Value

#: Views that show all elements in another order or shape. Those that show a part are executed: that is little work, and
#: a loop over rows would compile each reader of a row once per row.
NAMES = frozenset(
    ("t", "transpose", "permute", "view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze", "expand")
)

#: How many views may stand one upon the other: the programs that read the last one contain them all.
DEPTH = 8


def is_view(name: str) -> bool:
    """Whether an operator (`aten::t_copy`) is one of these views."""
    return name.removeprefix("aten::").partition(".")[0].removesuffix("_copy") in NAMES


def defer(node: Node) -> bool:
    """Leaves the node of a view to its readers, unless there are too many beneath it. What it is a view of keeps its
    buffer from now on: it must not be donated.
    """
    depth = 0
    below = node
    while below is not None:
        depth += 1
        below = below.inputs[0].node if below.inputs else None
    if depth > DEPTH:
        return False
    for value in node.inputs:
        value.pinned = True
    return True


def is_deferred(value: Value) -> bool:
    """Whether a value is that of a view which has been left to its readers, or is pending."""
    return value.array is None and value.node is not None and value.node.call.view


def with_views(nodes: Sequence[Node]) -> tuple[list[Node], frozenset[Node]]:
    """The nodes with the views that they read put before them; and these views."""
    known = set(nodes)
    ordered: list[Node] = []
    views: list[Node] = []

    def place(value: Value) -> None:
        node = value.node
        if node is None or node in known or not node.call.view:
            return
        known.add(node)
        for below in node.inputs:
            place(below)
        ordered.append(node)
        views.append(node)

    for node in nodes:
        for value in node.inputs:
            place(value)
        ordered.append(node)
    return ordered, frozenset(views)
