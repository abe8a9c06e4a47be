"""`torch.xla`: the device module that torch asks for what concerns a device type, such as activation checkpointing and
`torch.random.fork_rng`. Importing it imports neither jax nor the operators.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

from ..platform.streams import Event as Event
from ..platform.streams import Stream as Stream
from ..platform.streams import current_stream as current_stream
from ..platform.streams import default_stream as default_stream
from ..platform.streams import stream as stream

_Device = torch.device | str | int | None


def is_available() -> bool:
    """Whether the device can be used: the C++ part is there or can be built for this torch, and jax has a device."""
    try:
        return device_count() > 0
    except RuntimeError as error:  # also `native.NativeError`
        warnings.warn(f"the xla device is not available: {error}", RuntimeWarning, stacklevel=2)
        return False


def is_initialized() -> bool:
    """Whether xla has been used in this process."""
    devices = sys.modules.get("lazy_runtime.platform.xla_devices")
    return devices is not None and devices._started


def device_count() -> int:
    """How many xla devices this process has."""
    from ..platform import xla_devices

    return len(xla_devices.devices())


def current_device() -> int:
    """Index of the device that plain `xla` means in the calling thread."""
    from ..platform import xla_devices

    xla_devices.start()
    return xla_devices.current_index()


def set_device(device: _Device) -> None:
    """Makes `device` what plain `xla` means in the calling thread.

    Raises:
        RuntimeError: there is no such device.
    """
    from ..platform import xla_devices

    xla_devices.set_current_index(xla_devices.get(device).torch_device.index)


class device:
    """Context manager: within it, plain `xla` means the device with this index (None or -1 leaves things alone)."""

    def __init__(self, device: _Device):
        self._device = None if device == -1 else device

    def __enter__(self) -> device:
        self._outer = current_device()
        if self._device is not None:
            set_device(self._device)
        return self

    def __exit__(self, *exception: object) -> None:
        set_device(self._outer)


def synchronize(device: _Device = None) -> None:
    """Executes what is pending on `device` (the current one by default) and waits until the device is idle."""
    from ..execution import execute
    from ..platform import xla_devices

    execute.sync(xla_devices.get(device), wait=True)


def empty_cache() -> None:
    """Returns memory that is kept for the next programs on the CPU, and free, to the system."""
    from ..platform import host_memory

    host_memory.release()


def manual_seed(seed: int) -> None:
    """Seeds the current device's random numbers, which then no longer follow `torch.manual_seed`."""
    from ..platform import xla_devices

    xla_devices.get().random.seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every xla device's random numbers, which then no longer follow `torch.manual_seed`."""
    from ..platform import xla_devices

    for each in xla_devices.devices():
        each.random.seed(int(seed))


def get_rng_state(device: _Device = "xla") -> torch.Tensor:
    """The state of a device's random numbers, a uint8 CPU tensor."""
    from ..platform import xla_devices

    return xla_devices.get(device).random.get_state()


def set_rng_state(new_state: torch.Tensor, device: _Device = "xla") -> None:
    """Takes up a state that `get_rng_state` gave."""
    from ..platform import xla_devices

    xla_devices.get(device).random.set_state(new_state)


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # what torch.utils.checkpoint looks at
        return is_initialized()
    raise AttributeError(f"module 'torch.xla' has no attribute {name!r}")
