"""Bounded queues between threads that can be closed from either end."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any


class QueueBase:
    """What the queues have in common.

    Args:
        maxsize: how many items one holds before `put` waits.
    """

    _items: Any

    def __init__(self, maxsize: int = 4):
        self._maxsize = maxsize
        self._changed = threading.Condition()
        self._closed = False  # nobody reads
        self._ended = False  # nobody writes

    def max_size(self) -> int:
        """How many items it holds before `put` waits."""
        return self._maxsize

    def close_write(self) -> None:
        """Nothing more will be put in; what is there can still be taken out."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Drops what is in the queue and releases all who wait at either end."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


class Queue(QueueBase):
    """First in, first out.

    Args:
        maxsize: how many items it holds before `put` waits.
    """

    def __init__(self, maxsize: int = 4):
        super().__init__(maxsize)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> bool:
        """Adds an item when there is room; False if the queue was closed, so that nobody will get it."""
        with self._changed:
            while len(self._items) >= self._maxsize and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def get(self) -> Any:
        """The next item when there is one; None if there will be none."""
        with self._changed:
            while not self._items and not self._closed and not self._ended:
                self._changed.wait()
            if self._closed or not self._items:
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item


class KeydQueue(QueueBase):
    """Items by key, in any order.

    Args:
        maxsize: how many items it holds before `put` waits. An item that somebody waits for finds room always.
    """

    def __init__(self, maxsize: int = 4):
        super().__init__(maxsize)
        self._items: dict[Any, Any] = {}
        self._wanted: Counter[Any] = Counter()

    def put(self, key: Any, item: Any) -> bool:
        """Adds an item when there is room; False if the queue was closed, so that nobody will get it."""
        with self._changed:
            while len(self._items) >= self._maxsize and not self._wanted[key] and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            self._items[key] = item
            self._changed.notify_all()
            return True

    def get(self, key: Any) -> Any:
        """The item of a key when it is there, which is taken out; None if it will not come."""
        with self._changed:
            self._wanted[key] += 1
            self._changed.notify_all()
            try:
                while key not in self._items and not self._closed and not self._ended:
                    self._changed.wait()
            finally:
                self._wanted[key] -= 1
            item = self._items.pop(key, None)
            self._changed.notify_all()
            return item
