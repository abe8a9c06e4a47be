"""Which thread has recorded what is pending: where one reads a value, another's graph is not cut in two.

A program is found again if its graph is the same. Cut wherever another thread happens to be, nearly each is a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from threading import get_ident

from ..compilation import linearization
from ..ir.graph import Node, Value
from ..platform.xla_devices import Device

#: Whether more than one thread has recorded; until then, nodes do not tell their thread.
several = False

_known: set[int] = set()
_first = 0


def note() -> None:
    """Takes note of the calling thread, which is about to record."""
    global several, _first
    thread = get_ident()
    if thread not in _known:
        _first = _first or thread
        _known.add(thread)
        several = len(_known) > 1


def mark(node: Node) -> None:
    """Takes note of the thread that records a node."""
    note()
    if several:
        node.thread = get_ident()


def take(device: Device, wanted: Iterable[Value] | None) -> list[Node]:
    """Takes from a device's list what the calling thread has recorded, and threads that have ended, and what that and
    the wanted values need of other threads. The rest stays, but for what nobody can read any more. Takes everything
    where `wanted` is None, and where there are collectives: all ranks come to the same ones in the same order.
    """
    pending = taken = device.pending[:]
    left: list[Node] = []
    if several and wanted is not None and not any(node.call.collective for node in pending):
        mine = _mine(pending, wanted)
        left = _readable(device, [node for node in pending if node not in mine], len(pending))
        taken = [node for node in pending if node in mine]
    # the list itself stays: another thread may be about to append to it
    device.pending[: len(pending)] = left
    return taken


def _mine(pending: Sequence[Node], wanted: Iterable[Value]) -> set[Node | None]:
    # threads of C++ are not among them: a backward pass that autograd runs in one belongs to whoever reads its results
    others = {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    others.discard(get_ident())
    found = {value.node for value in wanted}
    for node in reversed(pending):
        if node in found or getattr(node, "thread", _first) not in others:
            found.add(node)
            found.update([value.node for value in node.inputs])
    return found


def _readable(device: Device, left: list[Node], known: int) -> list[Node]:
    """Those of the nodes that somebody needs; all of them if one is read by a node that came meanwhile.

    What has no live handle has all its readers on the list by then (`linearization._kept_for`).
    """
    needed = set(linearization.needed_nodes(left))
    dead = set(left) - needed
    came = device.pending[known:]
    if any(value.node in dead for node in came for value in node.inputs):
        return left
    return [node for node in left if node in needed]
