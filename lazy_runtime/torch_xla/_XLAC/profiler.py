"""`_XLAC.profiler`: what `debug.profiler` is made of in PyTorch/XLA."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import jax

from ...common import source_locations
from ..debug import profiler as xp

__all__ = ["TraceMe", "scope_pusher", "start_server", "trace"]

start_server = xp.start_server


class scope_pusher:
    """What is recorded belongs to a part of the program of this name, until this dies or is closed.

    Args:
        name: of the part.
    """

    def __init__(self, name: str):
        self._open = contextlib.ExitStack()
        self._open.enter_context(source_locations.scope(name))

    def close(self) -> None:
        """Ends the part."""
        self._open.close()

    def __del__(self) -> None:
        self.close()


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    timeout_s: int = 120,
    interval_s: int = 5,
    options: Mapping[str, Any] | None = None,
) -> None:
    """See `debug.profiler.trace`.

    Args:
        options: `host_tracer_level`, `device_tracer_level` and `delay_ms` of it.
    """
    xp.trace(
        service_addr,
        logdir,
        duration_ms,
        num_tracing_attempts,
        timeout_s=timeout_s,
        interval_s=interval_s,
        **(options or {}),
    )


class TraceMe:
    """A named part of a profile, as a context manager.

    Args:
        name: what the profile calls it.
        kwargs: shown with it.
    """

    def __init__(self, name: str, **kwargs: Any):
        self._name = name
        self._kwargs = dict(kwargs)
        self._annotation: Any = None

    def __enter__(self) -> TraceMe:
        self._annotation = jax.profiler.TraceAnnotation(self._name, **self._kwargs)
        self._annotation.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._annotation.__exit__(*exception)

    def set_metadata(self, **kwargs: Any) -> None:
        """Shows more with it, if it has not begun."""
        self._kwargs.update(kwargs)
