"""Devices as `xm` and `xr` have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import torch

_Device = torch.device | str | int | None


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The xla device with the index `n`, which becomes the calling thread's current one; without an index, that one.

    Args:
        devkind: what kind it must be of: `CPU`, `CUDA`, `TPU`.

    Raises:
        RuntimeError: there is no such device.
    """
    from ...platform import xla_devices

    device = xla_devices.choose(n)
    if devkind is not None and xla_device_hw(device) != devkind.upper():
        raise RuntimeError(
            f"there is no {devkind} device: xla is on {xla_device_hw(device)} here, PJRT_DEVICE chooses the platform"
        )
    return device


def xla_device_hw(device: torch.device | str) -> str:
    """The kind of a device: `CPU`, `CUDA`, `TPU`. That of `torch.device("cpu")` is `CPU` too."""
    from ...platform import hardware

    device = torch.device(device)
    return hardware.kind(find(device)) if device.type == "xla" else device.type.upper()


def set_replication(device: torch.device | str, devices: Sequence[torch.device | str] | None) -> None:
    """Makes a device the calling thread's current one.

    Collectives go over the ranks of the job (`xr.world_size()`), or over the threads of `DataParallel`. Both are known
    from the start, so this function does not change them.

    Args:
        device: one of `devices`.
        devices: the replicas' devices in this process; none for a process without replicas.

    Raises:
        RuntimeError: there is no such device.
        ValueError: the device is not one of `devices`.
    """
    found = find(device).torch_device
    others = [str(find(each).torch_device) for each in devices or ()]
    if others and str(found) not in others:
        raise ValueError(f"set_replication: expected a device of {', '.join(others)}, got {found}")
    xla_device(found.index)


class DeviceContext:
    """What belongs to a device.

    Args:
        device: the device, or its name.
    """

    def __init__(self, device: torch.device | str):
        self.device = device


class MemoryInfo(TypedDict):
    """What `get_memory_info` gives, in bytes."""

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int


def get_memory_info(device: _Device = None) -> dict[str, int]:
    """Bytes on a device: `bytes_used`, `bytes_limit`, `peak_bytes_used` (`hardware.memory` says what they count)."""
    from ...platform import hardware

    return hardware.memory(find(device))


def find(device: _Device) -> Any:
    """The device behind `xla`, `xla:N` or, without one, the current one (`xla_devices.Device`)."""
    from ...platform import xla_devices

    return xla_devices.get(device)
