"""Keeps jaxlib from noting the caller's stack in what it makes.

jaxlib notes in each executable the code of all frames that it was compiled in. Dynamo takes down what it has compiled
when that code is gone; so a program that is kept would keep compiled functions, with their graphs and programs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jaxlib

# jaxlib has no public name for it; where there is none, stacks are noted
_jaxlib: Any = getattr(jaxlib, "_jax", None)
_is_on = getattr(_jaxlib, "tracebacks_enabled", None)
_switch = getattr(_jaxlib, "set_tracebacks_enabled", None)
_lock = threading.Lock()
_inside = 0
_outside = True


@contextlib.contextmanager
def none() -> Iterator[None]:
    """Within, no stack is noted, in any thread."""
    global _inside, _outside
    if _is_on is None or _switch is None:
        yield
        return
    with _lock:
        if _inside == 0:
            _outside = _is_on()
            _switch(False)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _switch(_outside)
