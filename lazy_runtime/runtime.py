"""PyTorch/XLA's runtime module (`xr`): devices, processes, the cache on disk.

A process drives all of its devices as one replica; a job has one or more of them (`distributed/job.py`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .distributed.job import Place


def device_type() -> str:
    """The kind of the devices: `CPU`, `CUDA`, `TPU`, ..."""
    from . import hardware, xla_devices

    return hardware.kind(xla_devices.devices()[0])


def set_device_type(pjrt_device: str) -> None:
    """Chooses the platform (`PJRT_DEVICE`). Call it before the first use of xla.

    Raises:
        RuntimeError: the devices are up, on another platform.
    """
    from . import xla_devices

    if xla_devices._started and pjrt_device.upper() != device_type():
        raise RuntimeError(
            f"set_device_type({pjrt_device!r}): the devices are up on {device_type()}; call it before the first use of "
            "xla, or set PJRT_DEVICE"
        )
    os.environ["PJRT_DEVICE"] = pjrt_device


def using_pjrt() -> bool:
    """Whether programs run through PJRT: always."""
    return True


def is_bf16_supported() -> bool:
    """Whether the device computes with bfloat16: every one does, some slowly."""
    return True


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """See `xm.xla_device`."""
    from .core import xla_model

    return xla_model.xla_device(n, devkind)


def addressable_device_count() -> int:
    """How many devices this process drives."""
    from . import _api

    return _api.device_count()


local_device_count = addressable_device_count
addressable_runtime_device_count = addressable_device_count


def global_device_count() -> int:
    """How many devices all processes drive together."""
    import jax

    addressable_device_count()
    from . import xla_devices

    return jax.device_count(xla_devices.devices()[0].platform)


global_runtime_device_count = global_device_count


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """What is known of each device: its `name`, and its `coords` where it stands in a grid."""
    from . import _api

    return [runtime_device_attributes(str(device)) for device in _api.devices()]


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """What is known of a device: its `name`, and its `coords` where it stands in a grid."""
    from . import hardware, xla_devices

    found = xla_devices.get(device)
    attributes: dict[str, Any] = {"name": f"{hardware.kind(found)}:{found.jax_device.id}"}
    coords = getattr(found.jax_device, "coords", None)
    if coords is not None:
        attributes["coords"] = list(coords)
    return attributes


def world_size() -> int:
    """How many replicas work together."""
    return _place().size


def global_ordinal() -> int:
    """The number of this replica among all."""
    return _place().rank


def local_ordinal() -> int:
    """The number of this replica on its host."""
    return _place().local_rank


def process_count() -> int:
    """How many processes work together."""
    return _place().size


def local_process_count() -> int:
    """How many of them are on this host."""
    return _place().local_size


def process_index() -> int:
    """The number of this process among all."""
    return _place().rank


def host_index() -> int:
    """The number of this host among all, where each has as many processes."""
    return _place().rank // _place().local_size


def _place() -> Place:
    from .distributed import job

    return job.place()


def is_spmd() -> bool:
    """Whether programs are sharded over devices."""
    return False


def use_spmd(auto: bool = False) -> None:
    """Sharding over several devices, which is not supported yet.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("use_spmd: sharding over several devices is not supported yet")


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keeps compiled programs in a directory of this process's own choice. Call it before the first computation.

    Args:
        path: of the directory, which is made if it is not there.
        readonly: takes programs from it and adds none.
    """
    from . import disk_cache

    disk_cache.initialize(path, readonly)


def get_num_cached_compilation_graph() -> int:
    """How many compiled programs this process has at hand."""
    from . import compiler

    return compiler.count()


def get_memory_info(device: torch.device | str | None = None) -> dict[str, int]:
    """See `xm.get_memory_info`."""
    from .core import xla_model

    return xla_model.get_memory_info(device)
