"""Which thread has recorded what is pending: where one reads a value or ends a step, another's graph is not cut in two.

A program is found again if its graph is the same. Cut wherever another thread happens to be, nearly each is a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from threading import get_ident

from ..compilation import linearization
from ..ir.graph import Node, Value
from ..platform.xla_devices import Device

#: Whether more than one thread has recorded; until then, nodes do not tell their thread.
several = False

_known: set[int] = set()
_stepping: frozenset[threading.Thread] = frozenset()  # replaced and never changed: others read it meanwhile
_lock = threading.Lock()
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


def note_step() -> None:
    """Takes note of the calling thread as one that ends steps of its own."""
    global _stepping
    thread = threading.current_thread()
    if thread not in _stepping:
        with _lock:
            _stepping = frozenset([each for each in _stepping if each.is_alive()]) | {thread}


def take(device: Device, wanted: Iterable[Value] | None, ends_step: bool = False) -> list[Node]:
    """Takes from a device's list what the calling thread has recorded, and threads that have ended, and what that and
    the wanted values need of other threads. The rest stays, but for what nobody can read any more. Takes everything
    where `wanted` is None, and where there are collectives: all ranks come to the same ones in the same order.

    Args:
        ends_step: the calling thread ends a step. Then what stays is of threads that end steps too: nobody but a reader
            or such a thread's own `sync` executes what a thread without steps has recorded.
    """
    pending = taken = device.pending[:]
    left: list[Node] = []
    living: set[int] = set()
    others: set[int] = set()
    if several and (ends_step or wanted is not None):
        others = living = _living()
        if ends_step:  # a thread that has ended may have left its number to another one
            others = living & {thread.ident for thread in _stepping if thread.is_alive()}
        others = others - {get_ident()}
    if others and not any(node.call.collective for node in pending):
        mine = _mine(pending, wanted or (), _owners(pending, others, living))
        left = _readable(device, [node for node in pending if node not in mine], len(pending))
        taken = [node for node in pending if node in mine]
    # the list itself stays: another thread may be about to append to it
    device.pending[: len(pending)] = left
    return taken


def _living() -> set[int]:
    """The threads that run, without those of C++."""
    running = [thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)]
    return {thread.ident for thread in running if thread.ident is not None}


def _mine(pending: Sequence[Node], wanted: Iterable[Value], owners: Mapping[Node, int]) -> set[Node | None]:
    found = {value.node for value in wanted}
    for node in reversed(pending):
        if node in found or node not in owners:
            found.add(node)
            found.update([value.node for value in node.inputs])
    return found


def _owners(pending: Sequence[Node], others: set[int], living: set[int]) -> dict[Node, int]:
    """The nodes that belong to other threads, with these.

    A thread of C++ is none of them: autograd runs the backward passes of all threads in one. What it records belongs to
    the thread whose values it reads, or whose nodes read it.
    """
    owners: dict[Node, int] = {}
    ownerless: set[Node] = set()
    for node in pending:
        thread = getattr(node, "thread", _first)
        if thread not in living:
            thread = next((owners[value.node] for value in node.inputs if value.node in owners), None)
            if thread is None:
                ownerless.add(node)
        if thread in others:
            owners[node] = thread
    for node in reversed(pending) if ownerless else ():
        if node in owners:
            for value in node.inputs:
                if value.node in ownerless:
                    owners.setdefault(value.node, owners[node])
    return owners


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
