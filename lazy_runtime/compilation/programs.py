"""The programs that this process keeps in memory, and which of them go first.

A program of lazy or eager mode is kept until there are too many (`XLA_COMPILATION_CACHE_SIZE`). Then those that were
not run for longest go, and with them what only they were made of: interned calls, and what is known of their numbers.

A program of a compiled function lives as long as the function: here it is only known. If it is among those that go,
the function lets go of it, and traces and compiles again where it is called once more. A program of lazy mode with the
graph of a compiled function in it, as a training step is, goes when the function is gone.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..common import environment, metrics
from ..ir import scalar_deduplication
from ..ir.graph import Call
from ..ops import registry

if TYPE_CHECKING:
    from .compiler import Executable

#: A graph, the numbers of its results that may be channels last, and the threads that it is run together with.
Key = tuple[Any, Any, Any]

#: What an executable's `used` is set to: grows with each call.
now = itertools.count().__next__

#: How many calls may be interned, for each program that may be kept, before those that are in no program go.
_CALLS = 16


class Programs:
    """Executables by what they are found by; iterates over the keys."""

    def __init__(self) -> None:
        self._kept: dict[Key, Executable] = {}
        self._of_functions: weakref.WeakValueDictionary[Key, Executable] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()  # a finalizer may come here from anywhere
        self._calls = 0
        #: how many compiled functions have a graph that is a call, and what was made with it
        self._holders: Counter[Call] = Counter()
        self._made_with: dict[Call, list[Key]] = {}

    def get(self, key: Key) -> Executable | None:
        """The executable, if it is known."""
        found = self._kept.get(key)
        return found if found is not None else self._of_functions.get(key)

    def keep(self, key: Key, made: Executable, drop: Callable[[], None] | None) -> Executable:
        """Keeps an executable; if there are too many, others go.

        Args:
            drop: how the compiled function that has asked for it lets go of it; None if none has.

        Returns:
            the one that another thread has kept meanwhile, or the same.
        """
        with self._lock:
            found = self.get(key)
            if found is None:
                found = made
                if drop is None:
                    self._kept[key] = found
                    for call in _nested(key):
                        self._made_with.setdefault(call, []).append(key)
                else:
                    self._of_functions[key] = found
            if drop is not None:
                found.drops.append(drop)
            self._bound()
        return found

    def hold(self, call: Call) -> None:
        """Notes that a compiled function has a graph that is this call."""
        with self._lock:
            self._holders[call] += 1

    def let_go(self, call: Call) -> None:
        """Notes that one of those functions is gone. With the last one go the programs that have the call."""
        with self._lock:
            self._holders[call] -= 1
            if self._holders[call] <= 0:
                del self._holders[call]
                for key in self._made_with.pop(call, ()):
                    found = self._kept.pop(key, None)
                    if found is not None:
                        scalar_deduplication.forget_program(found.graph)

    def called(self) -> None:
        """Notes that a call was interned, of a kind that was not seen before."""
        self._calls += 1
        if self._calls > _CALLS * bound():
            with self._lock:
                self._forget_calls()

    def _bound(self) -> None:
        excess = len(self) - bound()
        if excess > 0:
            self._evict(excess + bound() // 16)  # some more: it takes as long for one as for many
            self._forget_calls()

    def _evict(self, number: int) -> None:
        every = [(found.used, number, key, found) for number, (key, found) in enumerate(self.items())]
        # ranks that know different programs would wait for each other
        alone = [each for each in every if not each[3].is_collective and each[3].spanning is None]
        oldest = heapq.nsmallest(number, alone)
        for _, _, key, found in oldest:
            self._kept.pop(key, None)
            self._of_functions.pop(key, None)
            for call in _nested(key):
                keys = self._made_with.get(call, [])
                if key in keys:
                    keys.remove(key)
            for drop in found.drops:
                drop()
            scalar_deduplication.forget_program(found.graph)
        metrics.count("EvictedComputations", len(oldest))

    def _forget_calls(self) -> None:
        used: set[Call] = {call for found in self.values() for call in found.graph.all_calls()}
        registry.forget_calls(used)
        self._calls = 0

    def items(self) -> list[tuple[Key, Executable]]:
        """All keys and executables."""
        with self._lock:
            return [*self._kept.items(), *self._of_functions.items()]

    def values(self) -> list[Executable]:
        """All executables."""
        return [found for _, found in self.items()]

    def __iter__(self) -> Iterator[Key]:
        return iter([key for key, _ in self.items()])

    def __len__(self) -> int:
        return len(self._kept) + len(self._of_functions)

    def clear(self) -> None:
        """Forgets all of them, and what they were made of. Compiled functions keep theirs."""
        with self._lock:
            self._kept.clear()
            self._of_functions.clear()
            self._made_with.clear()
            scalar_deduplication.forget()
            self._forget_calls()


def _nested(key: Key) -> list[Call]:
    """The calls of a graph that are graphs."""
    return [call for call in key[0].calls if call.nested is not None]


def bound() -> int:
    """`XLA_COMPILATION_CACHE_SIZE`: how many programs are kept."""
    return environment.value("XLA_COMPILATION_CACHE_SIZE")
