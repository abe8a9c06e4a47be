"""The xla devices of this process: what each one is to jax, and what is pending on it.

Nothing here runs before xla is first used; `start()` is that moment.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from .. import native
from ..common import config, environment, forking, installation, interrupts, ownership
from ..compat.jax_import import jax
from ..ir import grid, lifetimes
from ..processes import process_job, thread_ranks
from . import host_memory
from .rng import RandomStream

if TYPE_CHECKING:
    from ..common.source_locations import Line
    from ..ir.graph import Node
    from ..lowering.checks import Execution
    from ..processes.thread_ranks import Team


class Device:
    """One device that XLA programs run on, with its pending graph.

    Attributes:
        torch_device: what torch calls it: `xla:N`, or the device that a plain torch tensor lives on when its memory is
            used in place (see `host`).
        jax_device: the same for jax.
        sharding: where jax places arrays of this device.
        grid: of the devices that it stands for (`use_spmd`); None for one.
        pending: nodes recorded and not yet executed, in order.
        has_views: eager mode has left views to their readers (`deferred_views.py`).
        began: the user's line that recorded the first of them, in lazy mode.
        lock: held while pending work is taken, compiled and started. Backward passes run on autograd's own threads, so
            the pending graph belongs to the device, not to a thread.
        random: the stream that random operators on this device draw their seeds from.
        team: the threads that it is worked on along with other devices (`processes/thread_ranks.py`).
        narrows: its buffers may have fewer bits than torch's dtypes say (`XLA_USE_BF16`); the memory of plain tensors
            never has.
    """

    def __init__(self, torch_device: torch.device, jax_device: jax.Device):  # pyright: ignore[reportInvalidTypeForm]
        self.torch_device = torch_device
        self.jax_device = jax_device
        self.sharding: jax.sharding.Sharding = jax.sharding.SingleDeviceSharding(jax_device)
        self.grid: jax.sharding.Mesh | None = None
        self.platform: str = jax_device.platform
        self.narrows = torch_device.type == "xla"
        self.pending: list[Node] = []
        self.began: Line | None = None
        self.has_views = False
        self.began_ns = 0  # when that was, by `time.perf_counter_ns`
        self.lock = threading.RLock()
        self.random = RandomStream()
        self.team: Team | None = None
        self._running: deque[Execution] = deque()
        self._taking = threading.Lock()

    def stand_for(self, grid: jax.sharding.Mesh) -> None:
        """From here on, each array has a part or a copy on every device of a grid."""
        self.grid = grid
        self.sharding = jax.sharding.NamedSharding(grid, jax.sharding.PartitionSpec())

    @property
    def spans_processes(self) -> bool:
        """Some of the devices that it stands for belong to other processes, which run every program too."""
        return self.grid is not None and not self.sharding.is_fully_addressable

    @property
    def jax_devices(self) -> list[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
        """Those that its programs run on."""
        return [self.jax_device] if self.grid is None else list(self.grid.devices.flat)

    @property
    def deferred(self) -> bool:
        """Compiled calls are pending, which are to be executed at the end of the training step."""
        return any(node.call.nested is not None for node in self.pending)

    def started(self, execution: Execution) -> None:
        """Notes an execution, so that `wait` can wait for it; those that are done and checked nothing are let go."""
        while (earlier := self._take_done(lambda first: not first.fallible)) is not None:
            earlier.record_time()
        self._running.append(execution)

    def raise_failures(self) -> None:
        """Looks at the executions that are done, unless another thread is about to execute something: it has looked.

        Raises:
            what went wrong in one of them.
        """
        while (execution := self._take_done(lambda first: True)) is not None:
            execution.finish()

    def raise_failures_of_read(self) -> None:
        """The same where a value has been read. Other processes that its programs run in raise at this read too, so
        what can fail is waited for.
        """
        if self.spans_processes and any(execution.fallible for execution in tuple(self._running)):
            self.wait()
        else:
            self.raise_failures()

    def wait(self) -> None:
        """Blocks until everything that was started on the device has been executed.

        Raises:
            what went wrong in one of the executions.
        """
        while (execution := self._take(lambda first: True)) is not None:
            execution.finish()

    def _take_done(self, wanted: Callable[[Execution], bool]) -> Execution | None:
        """The first execution, if it is done and a wanted one."""
        if not self._running or not self.lock.acquire(blocking=False):
            return None
        try:
            return self._take(lambda first: wanted(first) and first.is_done)
        finally:
            self.lock.release()

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
    forking.watch()
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
    """The device whose XLA programs can work on the memory of plain tensors on `torch_device` ("cpu", "cuda:0"), and
    all that records and compiles such programs.

    It brings up no xla device: a program that keeps to plain tensors has no use for autograd workers, which would get
    in the way of its forks.
    """
    with interrupts.deferred():
        interrupts.keep_lost()
        if not _started:
            native.ensure()
            installation.install(backward_in_caller=False)
        return memory(torch_device)


@functools.cache
def memory(torch_device: torch.device) -> Device:
    """The device of `host` alone, for programs that are there already: no operators, which take half a second."""
    with interrupts.deferred():
        interrupts.keep_lost()
        if torch_device.type == "cpu":
            return Device(torch_device, _jax_devices("cpu")[0])
        if torch_device.type == "cuda":
            return Device(torch_device, _jax_devices("gpu")[torch_device.index or 0])
    raise RuntimeError(f"tensors on {torch_device} cannot be shared with XLA: move them to cpu or xla first")


#: Torch keeps the number of a device in 8 bits with a sign.
_MOST = 127

_start_lock = threading.RLock()
_started = False


def start() -> None:
    """Brings the devices up: the jax client, the device count that torch sees, and the kernels. Idempotent.

    Raises:
        NativeError: the C++ part was not built for this torch, and cannot be now.
        RuntimeError: torch_xla is installed, which owns the device.
        ValueError: there are more devices than torch can number.
    """
    global _started, _spmd
    if _started:
        return
    with interrupts.deferred(), _start_lock:
        if _started:
            return
        interrupts.keep_lost()
        owner = ownership.other_owner()
        if owner is not None:
            raise RuntimeError(owner)
        native.ensure()
        guard = native.guard()
        atexit.register(_finish)  # first: jobs whose rank has failed end without it
        process_job.join()
        devices = _platform_devices()
        if is_spmd():
            _spmd = True
            _stand_for_all()
            devices = devices[:1]
        if len(devices) > _MOST:
            raise ValueError(
                f"{len(devices)} devices: torch numbers at most {_MOST} of a type; set CPU_NUM_DEVICES to fewer, or "
                "call lazy_runtime.torch_xla.runtime.use_spmd() first, with which xla:0 stands for all"
            )
        # whoever asked for the count while it was 0 was autograd, sizing its worker queues once and for all; a guard
        # that was not there does not know
        backward_in_caller = installation.guard_came_late or bool(guard.xla_guard_count_was_zero())
        guard.xla_guard_set_device_count(len(devices))
        installation.install(backward_in_caller)
        installation.register()
        _started = True
    for tell in installation.after_start:
        tell()


def _finish() -> None:
    """Waits, at the end of the process, for what runs on its devices: XLA's threads may be in kernels of torch's, whose
    libraries are taken down after Python. A failure that nobody has looked for until then is nobody's.
    """
    for device in _platform_devices() if _started else ():
        for execution in tuple(device._running):
            if not execution.graph.is_collective:  # another rank may be gone: `process_exit.py`
                with contextlib.suppress(RuntimeError):
                    execution.marker.block_until_ready()


forking.in_child.append(functools.partial(atexit.unregister, _finish))


def is_started() -> bool:
    """Whether xla has been used in this process."""
    return _started


_spmd = False


def is_spmd() -> bool:
    """Whether xla:0 stands for all devices of the job."""
    return _spmd or (not _started and environment.value("XLA_USE_SPMD"))


def use_spmd() -> None:
    """Makes xla:0 stand for all devices of the job's processes, which run its programs together. Idempotent.

    Tensors of xla:0 are copied to the others when they are next used; those of xla:1 and on stay there.
    """
    global _spmd
    with _start_lock:
        if not _spmd and _started:
            _stand_for_all()
        _spmd = True


def _stand_for_all() -> None:
    jax_devices = all_physical_devices()
    _platform_devices()[0].stand_for(grid.of(jax_devices, (len(jax_devices),)))


def physical_devices() -> list[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
    """What stands behind the xla devices of this process."""
    return [device.jax_device for device in _platform_devices()]


def all_physical_devices() -> list[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
    """What stands behind the xla devices of all processes, in the order of their numbers."""
    return sorted(physical_devices()[0].client.devices(), key=lambda device: device.id)


class NoDeviceError(RuntimeError, IndexError):
    """There is no xla device of an index."""


def devices() -> tuple[Device, ...]:
    """Every xla device of this process, `xla:0` first."""
    start()
    found = _platform_devices()
    return found[:1] if _spmd else found


def of_this_thread() -> tuple[Device, ...]:
    """The devices that the calling thread works on: all, unless other threads have theirs."""
    working, rank = thread_ranks.member()
    return devices() if working is None else (working.devices[rank],)


def get(torch_device: torch.device | str | int | None = None) -> Device:
    """The device behind `xla`, `xla:N` or N; without an index, the current one.

    Raises:
        NoDeviceError: there is no such device.
        RuntimeError: it is no xla device.
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
        raise NoDeviceError(
            f"xla:{index} does not exist: this process has {len(found)} xla device{'s' * (len(found) > 1)} ({names})"
            + (", which stands for all (use_spmd)" if _spmd else "")
            + (", CPU_NUM_DEVICES=N asks for N of them" if found[0].platform == "cpu" and not _spmd else "")
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


def choose(index: int | None = None) -> torch.device:
    """The xla device with this index, which becomes the calling thread's current one; without an index, that one.

    Raises:
        RuntimeError: there is no such device.
    """
    found = get(index).torch_device
    if index is not None:
        set_current_index(found.index)
    return found


def _count_pending_handles() -> int:
    """How many live handles stand for results of pending nodes."""
    if not _started:
        return 0
    return sum(
        owner is not None and owner() is not None
        for device in devices()
        for node in device.pending[:]
        for owner in node.outputs
    )


lifetimes.count_pending = _count_pending_handles


def _forget() -> None:
    global _started
    _started = False  # `start` is asked again


forking.in_child.append(_forget)
forking.refuse_in_child(sys.modules[__name__], "start", "host", "devices")
