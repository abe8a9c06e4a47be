"""What is left of `xm`: what ranks tell each other, channels, replicas, and memory that tensors share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..utils import utils


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Waits for the other ranks; what each of them passed, in their order.

    Args:
        payload: what this rank passes.
        ordinals: all ranks, or None for the same.
        tag: names the place.

    Raises:
        ValueError: the ordinals are not all ranks.
        TypeError: the payload is no `bytes`.
        RuntimeError: some did not come within `XLA_JOB_TIMEOUT` seconds.
    """
    from ...processes import process_job
    from .. import runtime as xr

    if ordinals and sorted(ordinals) != list(range(xr.world_size())):
        raise ValueError(f"ordinals: expected all {xr.world_size()} ranks, got {list(ordinals)}; use xm.rendezvous")
    if not isinstance(payload, bytes):
        raise TypeError(f"payload: expected bytes, got {type(payload).__name__}")
    return process_job.exchange(tag or "xla_rendezvous", payload)


def xla_replication_devices(local_devices: Sequence[torch.device | str] | None = None) -> list[str]:
    """What stands behind the devices of the whole job that collectives go over: `CPU:0`, `CPU:1`, ...

    Args:
        local_devices: this process's devices, which are to be all that it has.

    Raises:
        RuntimeError: they are not all.
    """
    from .. import runtime, torch_xla

    if local_devices and len(local_devices) != torch_xla.device_count():
        raise RuntimeError(
            f"xla_replication_devices: expected all {torch_xla.device_count()} devices of the process, got "
            f"{[str(each) for each in local_devices]}"
        )
    return [each["name"] for each in runtime.global_runtime_device_attributes()]


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """XLA's `Send`, which names a channel, and no rank.

    Raises:
        NotImplementedError: always: PJRT, which runs the programs, has no channels between processes.
    """
    raise NotImplementedError(f"xm.send{_NO_CHANNELS}.send(tensor, dst)")


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """XLA's `Recv`, which names a channel, and no rank.

    Raises:
        NotImplementedError: always: PJRT, which runs the programs, has no channels between processes.
    """
    raise NotImplementedError(f"xm.recv{_NO_CHANNELS}.recv(tensor, src)")


_NO_CHANNELS = (
    ": a channel's number does not say which rank is at its other end, and PJRT has no channels between processes. "
    'Call torch.distributed.init_process_group("xla", init_method="xla://"), and then torch.distributed'
)


def check_view_sharing(obj: Any) -> None:
    """Checks that no two tensors in a nest of containers and objects share memory; a tensor may occur twice.

    Raises:
        RuntimeError: two do.
    """
    found: dict[Any, torch.Tensor] = {}

    def check(tensor: torch.Tensor) -> None:
        memory = tensor.device, tensor.untyped_storage().data_ptr()
        other = found.setdefault(memory, tensor)
        if other is not tensor:
            raise RuntimeError(f"{_shown(tensor)} and {_shown(other)} share memory: make one of them a copy by clone()")

    utils.for_each_instance(obj, lambda value: isinstance(value, torch.Tensor), check)


def _shown(tensor: torch.Tensor) -> str:
    return f"a tensor {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"
