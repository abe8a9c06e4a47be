"""How processes of tests collect garbage."""

from __future__ import annotations

import atexit
import gc


def collect_less() -> None:
    """Makes automatic collections rare. Tracing makes objects by the million, few of them in circles: by default the
    collector takes a twentieth of the time.
    """
    gc.set_threshold(20_000, 20, 50)


def leave_what_is_left() -> None:
    """Has Python end without its last collections. They pass over some 300,000 objects of torch and jax several times,
    for 0.7 s, and find only what dies with the process. Objects without circles die as always.
    """
    atexit.register(gc.freeze)  # the first to be registered is the last to run


def freeze() -> None:
    """Takes what is alive now out of later collections.

    Tests of memory collect often, and one full collection passes over every object of the process: without this, a
    third of the suite's time. What a file leaves behind alive is never collected afterwards; it is a process of tests.
    """
    gc.collect()
    gc.freeze()
