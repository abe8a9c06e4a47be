"""Buffers that their user has given away: the next program that reads one may take its memory for a result, although a
tensor still has it. That tensor has no value afterwards.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator

from ..ir.graph import Handle, Value

_given: weakref.WeakSet[Handle] = weakref.WeakSet()


class _Thread(threading.local):
    """What is true of the calling thread.

    Attributes:
        takes_dead: a program takes the memory of buffers that nobody can read any more.
        takes_given: it takes that of buffers that were given away.
    """

    takes_dead = True
    takes_given = True


thread = _Thread()


def give(handle: Handle, is_given: bool) -> None:
    """Gives the buffer behind a handle away, or takes that back."""
    if is_given:
        _given.add(handle)
    else:
        _given.discard(handle)


def is_given(value: Value) -> bool:
    """Whether somebody has given a value's buffer away, as far as the calling thread looks at that."""
    if not _given or not thread.takes_given or value.owner is None:
        return False
    return value.owner() in _given


def has_given(handle: Handle) -> bool:
    """Whether the buffer behind a handle was given away."""
    return handle in _given


@contextlib.contextmanager
def only_given(takes_given: bool) -> Iterator[None]:
    """Within the block, the calling thread's programs take no memory but that of buffers that were given away.

    Args:
        takes_given: they take that.
    """
    outer = thread.takes_dead, thread.takes_given
    thread.takes_dead, thread.takes_given = False, takes_given
    try:
        yield
    finally:
        thread.takes_dead, thread.takes_given = outer
