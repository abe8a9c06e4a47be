"""How processes of tests collect garbage."""

from __future__ import annotations

import gc


def collect_less() -> None:
    """Makes automatic collections rare. Tracing makes objects by the million, few of them in circles: by default the
    collector takes a twentieth of the time.
    """
    gc.set_threshold(20_000, 20, 50)


def freeze() -> None:
    """Takes what is alive now out of later collections.

    Tests of memory collect often, and one full collection passes over every object of the process: without this, a
    third of the suite's time. What a file leaves behind alive is never collected afterwards; it is a process of tests.
    """
    gc.collect()
    gc.freeze()
