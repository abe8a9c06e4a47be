"""What runs closures: at once, or on a thread of their own."""

from __future__ import annotations

import abc
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any

from ...common import environment

#: Seconds for which a thread waits for another closure before it ends.
_IDLE_S = 3.0


class ClosureHandler(abc.ABC):
    """Runs closures in some way."""

    @abc.abstractmethod
    def run(self, closure: Callable[[], Any]) -> None:
        """Runs one."""

    def run_all(self, closures: Iterable[Callable[[], Any]]) -> None:
        """Runs several, in order."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Runs them in order on a thread of its own, which starts at the first one and ends when there is none.

    Args:
        max_queue_size: how many may wait before `run` does; `XLA_MAX_ASYNC_QUEUE` goes before it.
    """

    def __init__(self, max_queue_size: int = 100):
        room = environment.value("XLA_MAX_ASYNC_QUEUE") or max_queue_size
        self._waiting: queue.Queue[Callable[[], Any]] = queue.Queue(room)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start_event_loop(self) -> None:
        """Starts the thread if none runs."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="xla closures")
            self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                closure = self._waiting.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:  # `run` adds under it, and starts a thread where it finds none
                    if self._waiting.empty():
                        self._thread = None
                        return
                continue
            try:
                closure()
            except BaseException as error:
                with self._lock:
                    self._error, self._thread = error, None
                return

    def run(self, closure: Callable[[], Any]) -> None:
        """Has a closure run after those before it.

        Raises:
            RuntimeError: one before it has raised; that is the cause. The next call goes on.
        """
        while True:
            with self._lock:
                error, self._error = self._error, None
                if error is not None:
                    raise RuntimeError("a closure that ran on the thread of closures has failed") from error
                try:
                    self._waiting.put_nowait(closure)
                except queue.Full:
                    pass
                else:
                    self.start_event_loop()
                    return
            threading.Event().wait(0.001)  # full: the thread needs the lock to end
