"""`import torch_xla.debug.profiler as xp`: profiles of the host and the device, over `jax.profiler`.

A profile is a directory that TensorBoard's profile plugin and Perfetto read (`plugins/profile/<time>/*.trace.json.gz`).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ...common import causes, source_locations
from ...compat.jax_import import jax
from ...execution import mark_step

causes.register(__file__, "torch_xla.sync when exiting a profiler StepTrace region", "__exit__")

_tracer_marked_step = False


def set_tracer_marked_step(value: bool) -> None:
    """Notes whether a `StepTrace` has ended the latest step, so that a device loader need not."""
    global _tracer_marked_step
    _tracer_marked_step = value


def get_tracer_marked_step() -> bool:
    """What `set_tracer_marked_step` has noted."""
    return _tracer_marked_step


def start_server(port: int, only_on_master: bool = True) -> object:
    """Starts the server that TensorBoard captures profiles from.

    Args:
        port: on this host.
        only_on_master: accepted for PyTorch/XLA's sake: this package runs one process per host.

    Returns:
        The server, which lives as long as somebody holds it.
    """
    return jax.profiler.start_server(port)


def start_trace(log_dir: str) -> None:
    """Begins a profile.

    Args:
        log_dir: the directory that it is written to when `stop_trace` is called.

    Raises:
        RuntimeError: one is under way already.
    """
    jax.profiler.start_trace(log_dir)


def stop_trace() -> None:
    """Ends the profile that `start_trace` began and writes it.

    Raises:
        RuntimeError: none is under way.
    """
    jax.profiler.stop_trace()


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interval_s: int = 5,
) -> None:
    """Captures a profile of what a process does from now on, for `duration_ms`; waits until it is there.

    Args:
        service_addr: `localhost:port` of a server of this process (`start_server`). Other processes are captured by
            TensorBoard.
        logdir: the directory that the profile is written to.
        duration_ms: how long it is, in milliseconds.
        num_tracing_attempts: how often to try again while another profile is under way.
        host_tracer_level, device_tracer_level: how much of either is recorded (jax's `ProfileOptions`).
        delay_ms: when to begin, in milliseconds from now.
        timeout_s: how long to try, in seconds.
        interval_s: how long to wait between two attempts, in seconds.

    Raises:
        ValueError: the address is another host's.
        RuntimeError: another profile was under way at every attempt.
    """
    host = service_addr.rpartition(":")[0].rpartition("//")[2]
    if host not in ("localhost", "127.0.0.1", "[::1]", "::1", ""):
        raise ValueError(f"only this process can be captured, got the address {service_addr!r}: use TensorBoard for it")
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = host_tracer_level
    options.device_tracer_level = device_tracer_level
    time.sleep(delay_ms / 1000)
    deadline = time.monotonic() + timeout_s
    for attempt in range(1, num_tracing_attempts + 1):
        try:
            jax.profiler.start_trace(logdir, profiler_options=options)
            break
        except RuntimeError:
            if attempt == num_tracing_attempts or time.monotonic() + interval_s > deadline:
                raise
            time.sleep(interval_s)
    time.sleep(duration_ms / 1000)
    jax.profiler.stop_trace()


def trace_detached(*args: Any, **kwargs: Any) -> None:
    """`trace` in a thread of its own: returns at once. To be called before the steps that are to be captured."""
    threading.Thread(target=trace, args=args, kwargs=kwargs, name="xla profile").start()


class Trace:
    """A part of the program that is named in profiles, and with `XLA_IR_DEBUG=1` in graphs and their HLO; as a context
    manager.

    Args:
        name: what profiles call it.
        kwargs: shown with it.
    """

    def __init__(self, name: str, **kwargs: Any):
        self.name = name
        self._annotation = self._make(name, **kwargs)

    def _make(self, name: str, **kwargs: Any) -> Any:
        return jax.profiler.TraceAnnotation(name, **kwargs)

    def __enter__(self) -> Trace:
        self._annotation.__enter__()
        self._scope = source_locations.scope(self.name)
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._scope.__exit__(kind, error, traceback)
        self._annotation.__exit__(kind, error, traceback)


class StepTrace(Trace):
    """One step of a training loop; what is pending at its end is executed.

    Args:
        name: what profiles call it.
        kwargs: shown with it; `step_num` numbers the steps.
    """

    def _make(self, name: str, **kwargs: Any) -> Any:
        return jax.profiler.StepTraceAnnotation(name, **kwargs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                mark_step.mark_step()
                set_tracer_marked_step(True)
        finally:
            super().__exit__(kind, error, traceback)


def trace_me(scope: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: each call of the function is a `Trace` of this name."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return traced

    return decorate
