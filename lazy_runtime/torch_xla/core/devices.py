"""Devices as `xm` and `xr` have them."""

from __future__ import annotations

from typing import Any

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


def get_memory_info(device: _Device = None) -> dict[str, int]:
    """Bytes on a device: `bytes_used`, `bytes_limit`, `peak_bytes_used` (`hardware.memory` says what they count)."""
    from ...platform import hardware

    return hardware.memory(find(device))


def find(device: _Device) -> Any:
    """The device behind `xla`, `xla:N` or, without one, the current one (`xla_devices.Device`)."""
    from ...platform import xla_devices

    return xla_devices.get(device)
