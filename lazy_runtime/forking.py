"""Forks of a process in which jax runs.

Jax warns at every fork, since a child that uses jax deadlocks. The workers of torch's `DataLoader` make CPU tensors and
never come near it, so for these forks, and no others, the warning is held back.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from typing import Any

_held = threading.local()


@functools.cache
def quiet_data_loaders() -> None:
    """Call it once jax's client is there: its handler must have been registered first, to run after ours."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)


def _before() -> None:
    if _is_data_loader():
        _held.filters = warnings.catch_warnings()
        _held.filters.__enter__()
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)


def _after() -> None:
    filters: Any = getattr(_held, "filters", None)
    if filters is not None:
        _held.filters = None
        filters.__exit__(None, None, None)


def _is_data_loader() -> bool:
    """Whether torch's DataLoader has asked for the fork that is about to happen."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.data.dataloader":
            return True
        frame = frame.f_back
    return False
