"""What runs at the end of a step, when every live tensor has its value: `xm.add_step_closure`.

Closures belong to the device that was the calling thread's current one, and run at the next `sync` of a thread with the
same current device, in the order in which they were added.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..compat.tracing import AsyncClosureHandler
from ..debug.unplanned_syncs import planned

_lock = threading.Lock()
_waiting: dict[int, list[Callable[[], Any]]] = {}
_waiting_async: dict[int, list[Callable[[], Any]]] = {}
_handlers: dict[int, AsyncClosureHandler] = {}


def add(closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    """See `xm.add_step_closure`."""
    from ..platform import xla_devices

    waiting = _waiting_async if run_async else _waiting

    def call() -> None:
        with planned():
            closure(*args)

    with _lock:
        waiting.setdefault(xla_devices.current_index(), []).append(call)


def run() -> None:
    """Runs what was added for the calling thread's current device; called at the end of `sync`.

    Raises:
        RuntimeError: an earlier asynchronous closure has failed; its exception is the cause.
        what a closure raises: those after it do not run.
    """
    if not (_waiting or _waiting_async):
        return
    from ..platform import xla_devices

    index = xla_devices.current_index()
    with _lock:
        later, now = _waiting_async.pop(index, []), _waiting.pop(index, [])
        handler = _handlers.setdefault(index, AsyncClosureHandler()) if later else None
    if handler is not None:
        handler(later)
    for closure in now:
        closure()
