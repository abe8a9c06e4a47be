"""What `_XLAC` says of devices and processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...platform import xla_devices
from .. import runtime as xr
from .. import torch_xla
from ..core import xla_model as xm

__all__ = [
    "_register_pjrt_plugin",
    "_xla_device_kind",
    "_xla_get_all_device_attributes",
    "_xla_get_all_runtime_devices",
    "_xla_get_device_attributes",
    "_xla_get_device_ordinal",
    "_xla_get_num_processes",
    "_xla_get_platform_version",
    "_xla_get_process_index",
    "_xla_get_replication_devices",
    "_xla_get_replication_devices_count",
    "_xla_get_runtime_devices",
    "_xla_num_global_devices",
    "_xla_num_runtime_devices",
    "_xla_set_replication_devices",
]


def _xla_device_kind(device: str = "") -> str:
    """See `xm.xla_device_kind`."""
    return xm.xla_device_kind(device or None)


def _xla_get_device_ordinal(device: str) -> int:
    """The index of a device among those of the process."""
    return xla_devices.get(device).torch_device.index


def _xla_get_device_attributes(device: str) -> dict[str, Any]:
    """See `xr.runtime_device_attributes`."""
    return xr.runtime_device_attributes(device)


def _xla_get_all_device_attributes() -> list[dict[str, Any]]:
    """See `xr.global_runtime_device_attributes`."""
    return xr.global_runtime_device_attributes()


def _xla_get_all_runtime_devices() -> list[str]:
    """What stands behind the devices of all processes: `CPU:0`, `CPU:1`, ..."""
    return [each["name"] for each in xr.global_runtime_device_attributes()]


def _xla_get_runtime_devices() -> list[str]:
    """What stands behind the devices of this process, those behind a single xla device included."""
    if not xr.is_spmd():
        return torch_xla.real_devices()
    first = torch_xla.real_devices()[0].partition(":")[0]
    xla_devices.start()
    return [f"{first}:{each.id}" for each in xla_devices.physical_devices()]


def _xla_num_runtime_devices() -> int:
    """See `xr.addressable_runtime_device_count`."""
    return xr.addressable_runtime_device_count()


def _xla_num_global_devices() -> int:
    """See `xr.global_runtime_device_count`."""
    return xr.global_runtime_device_count()


def _xla_get_num_processes() -> int:
    """See `xr.process_count`."""
    return xr.process_count()


def _xla_get_process_index() -> int:
    """See `xr.process_index`."""
    return xr.process_index()


def _xla_get_platform_version() -> str:
    """What the runtime's plugin says of its version."""
    return xla_devices.get().jax_device.client.platform_version


def _register_pjrt_plugin(name: str, plugin: Any) -> None:
    """Adds a PJRT plugin.

    Raises:
        NotImplementedError: always: jax finds plugins.
    """
    raise NotImplementedError(
        f"_register_pjrt_plugin({name!r}): jax loads PJRT plugins. Install the plugin's package, whose entry point "
        "`jax_plugins` names it, or set PJRT_NAMES_AND_LIBRARY_PATHS=name:library; PJRT_DEVICE chooses it by its name"
    )


_replicas: list[str] = []


def _xla_set_replication_devices(devices: Sequence[torch.device | str]) -> None:
    """Notes between which devices there are replicas. Collectives go over the job's ranks all the same, or over the
    threads of `DataParallel`.

    Raises:
        ValueError: there is no such device.
    """
    unknown = [str(each) for each in devices if str(each) not in _xla_get_all_runtime_devices()]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: expected some of {', '.join(_xla_get_all_runtime_devices())}")
    _replicas[:] = map(str, devices)


def _xla_get_replication_devices() -> list[str]:
    """See `_xla_set_replication_devices`."""
    return list(_replicas)


def _xla_get_replication_devices_count() -> int:
    """How many there are of `_xla_get_replication_devices`."""
    return len(_replicas)
