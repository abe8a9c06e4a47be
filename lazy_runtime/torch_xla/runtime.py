"""PyTorch/XLA's runtime module (`xr`): devices, processes, the cache on disk.

A process drives all of its devices as one replica; a job has one or more of them (`processes/process_job.py`).
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..processes.process_job import Place


def device_type() -> str | None:
    """The kind of the devices: `CPU`, `CUDA`, `TPU`, ... It is found out without a use of xla, so that a process can
    still fork: what `PJRT_DEVICE` says, else the kind of the devices that are up, else what jax will choose.

    Returns:
        None where `PJRT_DEVICE` is not set and `PJRT_SELECT_DEFAULT_DEVICE` is 0.
    """
    from ..common import environment
    from ..platform import discovery

    chosen = os.environ.get("PJRT_DEVICE", "").upper()
    if chosen:
        return {"GPU": "CUDA"}.get(chosen, chosen)
    if not environment.value("PJRT_SELECT_DEFAULT_DEVICE"):
        return None
    return discovery.kind_and_count()[0]


def set_device_type(pjrt_device: str) -> None:
    """Chooses the platform (`PJRT_DEVICE`). Call it before the first use of xla.

    Raises:
        RuntimeError: the devices are up, on another platform.
    """
    from ..platform import hardware, xla_devices

    if xla_devices.is_started():
        kind = hardware.kind(xla_devices.devices()[0])
        if pjrt_device.upper() not in (kind, "GPU" if kind in ("CUDA", "ROCM") else kind):
            raise RuntimeError(
                f"set_device_type({pjrt_device!r}): the devices are up on {kind}; call it before the first use of xla, "
                "or set PJRT_DEVICE"
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
    from .core import devices

    return devices.xla_device(n, devkind)


def addressable_device_count() -> int:
    """How many xla devices this process has: with `use_spmd` one, which stands for all."""
    from ..platform import xla_devices

    return len(xla_devices.devices())


local_device_count = addressable_device_count


def addressable_runtime_device_count() -> int:
    """How many devices this process drives, those behind a single xla device included."""
    from ..platform import xla_devices

    xla_devices.start()
    return len(xla_devices.physical_devices())


def global_device_count() -> int:
    """How many xla devices all processes have together: with `use_spmd` one, which stands for all."""
    return 1 if is_spmd() else global_runtime_device_count()


def global_runtime_device_count() -> int:
    """How many devices all processes drive together, those behind a single xla device included."""
    import jax

    from ..platform import xla_devices

    return jax.device_count(xla_devices.devices()[0].platform)


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """What is known of each device: its `name`, and its `coords` where it stands in a grid."""
    from ..platform import hardware, xla_devices

    kind = hardware.kind(xla_devices.devices()[0])
    return [_attributes(kind, each) for each in xla_devices.all_physical_devices()]


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """What is known of a device: its `name`, and its `coords` where it stands in a grid."""
    from ..platform import hardware, xla_devices

    found = xla_devices.get(device)
    return _attributes(hardware.kind(found), found.jax_device)


def _attributes(kind: str, jax_device: Any) -> dict[str, Any]:
    from ..platform import xla_devices

    number = xla_devices.all_physical_devices().index(jax_device)  # jax's ids have gaps between processes
    attributes: dict[str, Any] = {"name": f"{kind}:{number}"}
    coords = getattr(jax_device, "coords", None)
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
    return _process_place().size


def local_process_count() -> int:
    """How many of them are on this host."""
    return _process_place().local_size


def process_index() -> int:
    """The number of this process among all."""
    return _process_place().rank


def host_index() -> int:
    """The number of this host among all, where each has as many processes."""
    return _process_place().rank // _process_place().local_size


def _place() -> Place:
    from ..platform import replicas

    return replicas.place()


def is_spmd() -> bool:
    """Whether `xla:0` stands for all devices of the job, and programs are sharded over them (`use_spmd`)."""
    from ..platform import xla_devices

    return xla_devices.is_spmd()


def use_spmd(auto: bool = False) -> None:
    """Makes `xla:0` stand for all devices of this process, and of the others in its job, which call it too. Programs
    run on all of them, and tensors have a copy on each, unless `distributed.spmd` shards them. Call it before the first
    use of xla: tensors that exist are copied to the other devices when they are next used, of which a warning tells. It
    sets `XLA_USE_SPMD`, by which processes that this one starts do so too.

    Raises:
        NotImplementedError: `auto`.
    """
    from ..execution import execute
    from ..ir import lifetimes
    from ..platform import xla_devices

    if auto:
        raise NotImplementedError(
            "use_spmd(auto=True): which way tensors are to be sharded is not found automatically; say so with "
            "distributed.spmd.mark_sharding, and XLA does the rest"
        )
    if xla_devices.is_started() and not is_spmd():
        for device in xla_devices.devices():
            execute.sync(device)
        if lifetimes.alive():
            warnings.warn(
                "use_spmd: there are xla tensors already, which are copied to the other devices when they are next "
                "used: call use_spmd() at the beginning of the program",
                RuntimeWarning,
                stacklevel=2,
            )
    xla_devices.use_spmd()
    os.environ["XLA_USE_SPMD"] = "1"


def get_master_ip() -> str:
    """The address of the host that the processes of the job meet at: `MASTER_ADDR`, and `localhost` for one alone.

    Raises:
        RuntimeError: there are several processes, and `MASTER_ADDR` is not set.
    """
    address = os.environ.get("MASTER_ADDR")
    if address is None and process_count() > 1:
        raise RuntimeError("get_master_ip: set MASTER_ADDR to the address of the first process's host")
    return address or "localhost"


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keeps compiled programs in a directory of this process's own choice. Call it before the first computation.

    Args:
        path: of the directory, which is made if it is not there.
        readonly: takes programs from it and adds none.
    """
    from ..cache import disk_cache

    disk_cache.initialize(path, readonly)


def get_num_cached_compilation_graph() -> int:
    """How many compiled programs this process has at hand."""
    from ..compilation import compiler

    return compiler.count()


def get_memory_info(device: torch.device | str | None = None) -> dict[str, int]:
    """See `xm.get_memory_info`."""
    from .core import devices

    return devices.get_memory_info(device)


def _process_place() -> Place:
    from ..processes import process_job

    return process_job.process_place()
