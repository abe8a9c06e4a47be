"""Work that takes no Python (to load a program, to run it), in another thread while Dynamo goes on with its own."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def start(function: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Calls the function in a thread of its own: one that is kept for the next time would be missing after a fork."""
    with_one_thread = concurrent.futures.ThreadPoolExecutor(1, "openxla ahead")
    future = with_one_thread.submit(function)
    with_one_thread.shutdown(wait=False)
    return future
