"""Batches on their way to a device while the step before is computed: `ParallelLoader` and `MpDeviceLoader`.

One thread reads the user's loader, others move what it gave to the devices, and queues between them and the consumer
say how far they may run ahead. The threads know the queues alone, so that they end when the loader that started them is
no longer used, at the end of the data, on an exception, or when the consumer just breaks off.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...common import causes
from .. import torch_xla
from ..core import arena
from ..utils.keyd_queue import Queue

causes.register(__file__, "torch_xla.sync in parallel loader at step end")

#: Seconds that closing waits for the threads. One may be waiting for the user's loader, which may never answer.
_PATIENCE_S = 10.0


class _Failure(NamedTuple):
    """What went wrong in a thread, on its way to the consumer."""

    error: BaseException


class _Lane:
    """The way to one device: batches of the user's loader, then the same on the device."""

    def __init__(self, device: torch.device, loader_prefetch_size: int, device_prefetch_size: int):
        self.device = device
        self.read = Queue(maxsize=loader_prefetch_size)
        self.moved = Queue(maxsize=device_prefetch_size)
        self.movers = 0
        self.lock = threading.Lock()


class _Stop:
    """Set when nobody wants more batches."""

    requested = False


def _read(loader: Iterable[Any], lanes: Sequence[_Lane], stop: _Stop) -> None:
    """Deals the batches to the devices in turn; a last round that is not complete is left out."""
    try:
        batches: list[Any] = []
        dealt = False
        for batch in loader:
            batches.append(batch)
            if len(batches) == len(lanes):
                for lane, each in zip(lanes, batches, strict=True):
                    lane.read.put(each)
                batches, dealt = [], True
            if stop.requested:
                break
        if batches and not dealt:
            warnings.warn(
                f"ParallelLoader: the loader has given {len(batches)} batches for {len(lanes)} devices, which all get "
                "the same number: none. Make the batches smaller",
                RuntimeWarning,
                stacklevel=2,
            )
    except BaseException as error:
        for lane in lanes:
            lane.read.put(_Failure(error))
    finally:
        for lane in lanes:
            lane.read.close_write()


def _move(lane: _Lane, input_sharding: Any) -> None:
    try:
        while (batch := lane.read.get()) is not None:
            if not isinstance(batch, _Failure):
                batch = arena.to_device(batch, lane.device, input_sharding)
            if not lane.moved.put(batch):
                break
    except BaseException as error:
        lane.moved.put(_Failure(error))
    finally:
        with lane.lock:
            lane.movers -= 1
            last = not lane.movers
        if last:
            lane.moved.close_write()


def _close(lanes: Sequence[_Lane], threads: Sequence[threading.Thread], stop: _Stop) -> None:
    stop.requested = True
    for lane in lanes:
        lane.read.close()
        lane.moved.close()
    for thread in threads:
        if thread is not threading.current_thread():  # the garbage collector may come by in any thread
            thread.join(_PATIENCE_S)


class ParallelLoader:
    """Reads a loader in the background and moves its batches to devices.

    Args:
        cpu_loader: a `DataLoader`, or whatever gives batches: nests of containers and objects with tensors in them.
        devices: where the batches go; batch i to `devices[i % len(devices)]`.
        batchdim: accepted for PyTorch/XLA's sake.
        batches_per_execution: how many batches a device's loader gives between two `sync`.
        loader_prefetch_size: how many batches are read ahead.
        device_prefetch_size: how many batches are moved ahead, of each device.
        host_to_device_transfer_threads: how many threads move them, of each device. With more than one, batches may
            overtake each other.
        input_sharding: how the batches lie on the devices that one xla device stands for: a `spmd.ShardingSpec` for
            the tensors of as many dimensions, or a dictionary with one for each key of the batches. Tensors go
            straight to the devices that have their parts.

    Raises:
        RuntimeError: there is an `input_sharding`, and `runtime.use_spmd()` has not been called.
    """

    def __init__(
        self,
        cpu_loader: Iterable[Any],
        devices: Sequence[torch.device | str],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
    ):
        arena.require_spmd(input_sharding)
        for name, value in (
            ("batches_per_execution", batches_per_execution),
            ("loader_prefetch_size", loader_prefetch_size),
            ("device_prefetch_size", device_prefetch_size),
            ("host_to_device_transfer_threads", host_to_device_transfer_threads),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._loader = cpu_loader
        self._input_sharding = input_sharding
        self._batches_per_execution = batches_per_execution
        lanes = [_Lane(_device(each), loader_prefetch_size, device_prefetch_size) for each in devices]
        self._lanes = {lane.device: lane for lane in lanes}
        if len(self._lanes) < len(lanes) or not lanes:
            raise ValueError(f"devices must be one or more different devices, got {list(map(str, devices))}")
        self._ended: set[torch.device] = set()
        stop = _Stop()
        threads = [threading.Thread(target=_read, args=(cpu_loader, lanes, stop), name="xla-loader", daemon=True)]
        for lane in lanes:
            lane.movers = host_to_device_transfer_threads
            for _ in range(host_to_device_transfer_threads):
                threads.append(
                    threading.Thread(target=_move, args=(lane, input_sharding), name="xla-transfer", daemon=True)
                )
        self._finalizer = weakref.finalize(self, _close, lanes, threads, stop)
        for thread in threads:
            thread.start()

    @property
    def batches_per_execution(self) -> int:
        return self._batches_per_execution

    def per_device_loader(self, device: torch.device | str) -> PerDeviceLoader:
        """The iterator over the batches of one of the devices."""
        return PerDeviceLoader(self, _device(device))

    def send_cpu_data_to_device(self, batches: Sequence[Any], device: torch.device | str) -> list[Any]:
        """Batches with their CPU tensors on a device, laid out as this loader's are."""
        return [arena.to_device(batch, _device(device), self._input_sharding) for batch in batches]

    def per_device_samples(self) -> int:
        """How many batches each device gets."""
        return len(self._loader) // len(self._lanes)  # type: ignore[arg-type]

    def next_item(self, device: torch.device) -> Any:
        """The next batch for the device; None at the end.

        Raises:
            what went wrong when it was read or moved, with the traceback of the thread that did it.
        """
        item = self._lanes[device].moved.get()
        if isinstance(item, _Failure):
            self.close()
            raise item.error
        return item

    def end(self, device: torch.device) -> None:
        """The device has had its last batch. Others may still have some."""
        self._ended.add(device)
        if len(self._ended) == len(self._lanes):
            self.close()

    def close(self) -> None:
        """Ends the threads; a batch that is asked for afterwards is the end of the data."""
        self._finalizer()


class PerDeviceLoader(Iterator):
    """The batches of one device. Asking for the next one ends the step: it executes what is pending."""

    def __init__(self, loader: ParallelLoader, device: torch.device):
        self._loader = loader
        self._device = device
        self._batches = loader.batches_per_execution  # given since the last sync: what was before is no part of a step
        _take_mark()  # of a `StepTrace` that belongs to another loop

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def __next__(self) -> Any:
        if self._batches >= self._loader.batches_per_execution:
            self._batches = 0
            self._end_step()
        item = self._loader.next_item(self._device)
        if item is None:
            if self._batches:
                self._end_step()
            self._loader.end(self._device)
            raise StopIteration
        self._batches += 1
        return item

    next = __next__

    def _end_step(self) -> None:
        """Executes what is pending, unless the end of a `StepTrace` has just done so: a step has one end."""
        from ...platform import xla_devices

        if not _take_mark() or any(device.pending for device in xla_devices.of_this_thread()):
            torch_xla.sync()

    def close(self) -> None:
        """Ends the threads."""
        self._loader.close()


def _take_mark() -> bool:
    """Whether a `StepTrace` has ended since this was last called."""
    from ..debug import profiler  # jax's, which is slow to import

    marked = profiler.get_tracer_marked_step()
    profiler.set_tracer_marked_step(False)
    return marked


class MpDeviceLoader:
    """A loader whose batches are on a device; each iteration over it reads the wrapped loader anew.

    Args:
        loader: see `ParallelLoader`.
        device: where the batches go.
        kwargs: of `ParallelLoader`.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device | str, **kwargs: Any):
        self._loader = loader
        self._device = _device(device)
        self._parallel_loader_kwargs = kwargs

    def __iter__(self) -> PerDeviceLoader:
        return ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs).per_device_loader(
            self._device
        )

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with contextlib.suppress(AttributeError):
            return getattr(self._loader, name)  # `loader.dataset`, `loader.sampler.set_epoch(...)`
        raise AttributeError(f"neither MpDeviceLoader nor the loader that it wraps has an attribute {name!r}")


def _device(device: torch.device | str) -> torch.device:
    """The device with its index."""
    from ...platform import xla_devices

    return xla_devices.get(device).torch_device
