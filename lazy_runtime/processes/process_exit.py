"""How the process of a rank ends where Python alone would not end it: while XLA waits for other ranks no exception gets
through to the main thread, and jax waits for them at the end of a process.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import sys
import threading
import time
from multiprocessing import connection

#: Seconds that a process whose launcher has gone gets to end by itself.
GRACE_S = 5.0

#: Seconds between two looks at the launcher, where nothing tells of its end.
INTERVAL_S = 1.0

#: Seconds for output that is still buffered: whoever should read it may have gone, or not read.
FLUSH_S = 1.0

#: This process is about to end for an exception that somebody else reports.
has_failed = False

_watching = 0  # the process whose launcher a thread watches


def now(words: str = "") -> None:
    """Ends this process without waiting for anything.

    Args:
        words: for stderr.
    """
    if words:
        say(words)
    flushing = threading.Thread(target=_flush, daemon=True)
    try:
        flushing.start()
        flushing.join(FLUSH_S)
    except RuntimeError:  # the interpreter starts no threads any more
        _flush()
    os._exit(1)


def say(words: str) -> None:
    """Writes to stderr, if anybody is there to read it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"lazy_runtime: {words}\n")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def after_error() -> None:
    """Has a process that ends for an exception do so at once: jax would wait for the other ranks, and these for it."""
    atexit.register(_end_after_error)


def _end_after_error() -> None:
    if has_failed or getattr(sys, "last_value", None) is not None:  # where Python has reported one
        now()


def with_launcher() -> None:
    """Has this process end within seconds of the one that has started it, `spawn`'s or `torchrun`'s, however that ends.
    Of other processes nothing is known: a shell may end, and its script go on.
    """
    global _watching
    is_known = multiprocessing.parent_process() is not None or "TORCHELASTIC_RUN_ID" in os.environ
    if is_known and _watching != os.getpid():
        _watching = os.getpid()
        threading.Thread(target=_outlive, args=(os.getppid(),), name="lazy_runtime launcher", daemon=True).start()


def _outlive(parent: int) -> None:
    """Returns never: waits until the launcher has ended, and some seconds more for the main thread, which torch has
    interrupted if `spawn` has started it.
    """
    known = multiprocessing.parent_process()
    while os.getppid() == parent and (known is None or known.is_alive()):
        if known is None:
            time.sleep(INTERVAL_S)
        else:
            connection.wait([known.sentinel], INTERVAL_S)
    time.sleep(GRACE_S)
    now(f"process {os.getpid()} ends, since its launcher, process {parent}, has ended")
