"""Memory that XLA's CPU programs give back stays in the process.

Each execution allocates what its results and intermediate values need, and frees it again. For blocks of that size
glibc's malloc asks the system and returns them to it, which clears the pages each time they come: in the inference of
mobilenet_v2 that was 37 MB and 40 % of the time (docs/performance.md). Told to keep them, malloc serves the next
execution from what the last one freed, as torch's own allocator does on CUDA. `torch.xla.empty_cache()` returns what is
free.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from ..common import config

# malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

#: The user has said how malloc is to behave.
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt") else None


@functools.cache
def keep() -> None:
    """Tells malloc so, once, before XLA's threads start; what the user's environment says of malloc stands."""
    glibc = _glibc()
    if glibc is None or not config.keeps_host_memory() or any(name in os.environ for name in _SETTINGS):
        return
    largest = 2**31 - 1  # mallopt takes an int
    glibc.mallopt(_MMAP_THRESHOLD, largest)
    glibc.mallopt(_TRIM_THRESHOLD, largest)
    # Threads would have arenas of their own, which hold no more than 64 MB in one piece: beyond that lies the system.
    glibc.mallopt(_ARENA_MAX, 1)


def release() -> None:
    """Returns what is free to the system."""
    glibc = _glibc()
    if glibc is not None:
        glibc.malloc_trim(0)
