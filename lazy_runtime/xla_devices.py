"""The xla devices of this process: what each one is to jax, and what is pending on it.

Nothing here runs before xla is first used; `start()` is that moment.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import jax
import torch

from . import _autoload, config, environment, forking, host_memory, native
from .distributed import job
from .rng import RandomStream

if TYPE_CHECKING:
    from .checks import Execution
    from .ir import Node
    from .lines import Line


class Device:
    """One device that XLA programs run on, with its pending graph.

    Attributes:
        torch_device: what torch calls it: `xla:N`, or the device that a plain torch tensor lives on when its memory is
            used in place (see `host`).
        jax_device: the same for jax.
        sharding: where jax places arrays of this device.
        pending: nodes recorded and not yet executed, in order.
        has_views: eager mode has left views to their readers (`deferred_views.py`).
        began: the user's line that recorded the first of them, in lazy mode.
        lock: held while pending work is taken, compiled and started. Backward passes run on autograd's own threads, so
            the pending graph belongs to the device, not to a thread.
        random: the stream that random operators on this device draw their seeds from.
        narrows: its buffers may have fewer bits than torch's dtypes say (`XLA_USE_BF16`); the memory of plain tensors
            never has.
    """

    def __init__(self, torch_device: torch.device, jax_device: jax.Device):  # pyright: ignore[reportInvalidTypeForm]
        self.torch_device = torch_device
        self.jax_device = jax_device
        self.sharding = jax.sharding.SingleDeviceSharding(jax_device)
        self.platform: str = jax_device.platform
        self.narrows = torch_device.type == "xla"
        self.pending: list[Node] = []
        self.began: Line | None = None
        self.has_views = False
        self.began_ns = 0  # when that was, by `time.perf_counter_ns`
        self.lock = threading.RLock()
        self.random = RandomStream()
        self._running: deque[Execution] = deque()
        self._taking = threading.Lock()

    @property
    def deferred(self) -> bool:
        """Compiled calls are pending, which are to be executed at the end of the training step."""
        return any(node.call.nested is not None for node in self.pending)

    def started(self, execution: Execution) -> None:
        """Notes an execution, so that `wait` can wait for it; those that are done and checked nothing are let go."""
        while (earlier := self._take(lambda first: not first.fallible and first.is_done)) is not None:
            earlier.record_time()
        self._running.append(execution)

    def raise_failures(self) -> None:
        """Looks at the executions that are done.

        Raises:
            what went wrong in one of them.
        """
        while (execution := self._take(lambda first: first.is_done)) is not None:
            execution.finish()

    def wait(self) -> None:
        """Blocks until everything that was started on the device has been executed.

        Raises:
            what went wrong in one of the executions.
        """
        while (execution := self._take(lambda first: True)) is not None:
            execution.finish()

    def _take(self, wanted: Callable[[Execution], bool]) -> Execution | None:
        """The first execution, which is this thread's to look after from now on, if it is a wanted one."""
        if not self._running:
            return None
        with self._taking:  # another thread may be here too
            return self._running.popleft() if self._running and wanted(self._running[0]) else None

    def __repr__(self) -> str:
        return f"Device({self.torch_device}, {self.jax_device})"


def _jax_devices(platform: str | None) -> list[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
    """Jax's devices of a platform. Every use of jax's clients begins here, so that they get `CPU_NUM_DEVICES`."""
    environment.check()
    count = config.cpu_devices()
    if count is not None:
        # Only before jax has a CPU client; afterwards jax's own count stands (RuntimeError otherwise).
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)
    if platform in (None, "cpu"):
        host_memory.keep()
    with _starting_workers():
        found = jax.local_devices(backend=platform)
    forking.quiet_data_loaders()
    return found


@contextlib.contextmanager
def _starting_workers() -> Iterator[None]:
    """XLA:CPU's worker threads, which start with jax's client, inherit a scheduling policy under which their waking up
    does not preempt the thread that woke them.

    An execution keeps every core busy, and the thread that has just started it is the one with something left to do.
    On two cores it lost its core in every second call of resnet18, and with it a millisecond.
    """
    changed = False
    if hasattr(os, "sched_setscheduler") and os.sched_getscheduler(0) == os.SCHED_OTHER:  # Linux
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            changed = True
    try:
        yield
    finally:
        if changed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@functools.cache
def _platform_devices() -> tuple[Device, ...]:
    platform = os.environ.get("PJRT_DEVICE", "").lower() or None
    try:
        found = _jax_devices("gpu" if platform == "cuda" else platform)
    except RuntimeError as error:
        if platform is None:
            raise
        raise RuntimeError(
            f"the environment variable PJRT_DEVICE is {os.environ['PJRT_DEVICE']!r}: it takes CPU, CUDA, TPU, or "
            f"another platform that jaxlib knows and this machine has ({error})"
        ) from error
    return tuple(Device(torch.device("xla", i), jax_device) for i, jax_device in enumerate(found))


@functools.cache
def host(torch_device: torch.device) -> Device:
    """The device whose XLA programs can work on the memory of plain tensors on `torch_device` ("cpu", "cuda:0").

    It brings up no xla device: a program that keeps to plain tensors has no use for autograd workers, which would get
    in the way of its forks.
    """
    if not _started:
        from . import dispatch, kernels  # noqa: F401  the handlers of copies and aliases stand in kernels

        dispatch.install(backward_in_caller=False)
    if torch_device.type == "cpu":
        return Device(torch_device, _jax_devices("cpu")[0])
    if torch_device.type == "cuda":
        return Device(torch_device, _jax_devices("gpu")[torch_device.index or 0])
    raise RuntimeError(f"tensors on {torch_device} cannot be shared with XLA: move them to cpu or xla first")


_start_lock = threading.RLock()
_started = False


def start() -> None:
    """Brings the devices up: the jax client, the device count that torch sees, and the kernels. Idempotent.

    Raises:
        NativeError: the C++ part is missing or built for another torch.
        RuntimeError: torch_xla is installed, which owns the device.
    """
    global _started
    if _started:
        return
    with _start_lock:
        if _started:
            return
        owner = _autoload.other_owner()
        if owner is not None:
            raise RuntimeError(owner)
        guard = native.guard()
        job.join()
        devices = _platform_devices()
        # whoever asked for the count while it was 0 was autograd, sizing its worker queues once and for all
        backward_in_caller = bool(guard.xla_guard_count_was_zero())
        guard.xla_guard_set_device_count(len(devices))
        from . import dispatch, kernels

        dispatch.install(backward_in_caller)
        kernels.register()
        _started = True


def is_started() -> bool:
    """Whether xla has been used in this process."""
    return _started


def devices() -> tuple[Device, ...]:
    """Every xla device of this process, `xla:0` first."""
    start()
    return _platform_devices()


def get(torch_device: torch.device | str | int | None = None) -> Device:
    """The device behind `xla`, `xla:N` or N; without an index, the current one.

    Raises:
        RuntimeError: there is no such device.
    """
    found = devices()
    if torch_device is None:
        index = None
    elif isinstance(torch_device, int):
        index = torch_device
    else:
        torch_device = torch.device(torch_device)
        if torch_device.type != "xla":
            raise RuntimeError(f"expected an xla device, got {torch_device}")
        index = torch_device.index
    if index is None:
        index = native.guard().xla_guard_current_device()
    if not 0 <= index < len(found):
        names = "xla:0" if len(found) == 1 else f"xla:0 to xla:{len(found) - 1}"
        raise RuntimeError(
            f"xla:{index} does not exist: this process has {len(found)} xla device{'s' * (len(found) > 1)} ({names})"
            + (", CPU_NUM_DEVICES=N asks for N of them" if found[0].platform == "cpu" else "")
        )
    return found[index]


def current_index() -> int:
    """Index of the calling thread's current xla device."""
    return native.guard().xla_guard_current_device()


def set_current_index(index: int) -> None:
    """Makes xla:index what plain `xla` means in the calling thread.

    Raises:
        RuntimeError: there is no such device.
    """
    get(index)
    native.guard().xla_guard_set_current_device(index)
