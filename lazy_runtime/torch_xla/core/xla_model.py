"""PyTorch/XLA's module `xm`: devices, steps, ranks and what they do together, random states, saving."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...common import causes, whole_files
from ...execution import closures
from .. import runtime as xr
from .. import torch_xla
from ..utils import utils
from .arena import ToXlaTensorArena, require_spmd, to_cpu, to_device
from .bucketing import (
    CoalescingBuckets,
    all_gather_bucketized,
    all_reduce_bucketized_gradients,
    reduce_scatter_bucketized,
)
from .collectives import (
    REDUCE_AND,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_MUL,
    REDUCE_OR,
    REDUCE_SUM,
    _fetch_gradients,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast_master_param,
    collective_broadcast,
    collective_permute,
    reduce_gradients,
    reduce_scatter,
)
from .devices import (
    DeviceContext,
    MemoryInfo,
    find,
    get_memory_info,
    set_replication,
    xla_device,
    xla_device_hw,
)
from .meetings import check_view_sharing, recv, send, xla_rendezvous, xla_replication_devices
from .random_states import fork_rng, get_rng_state, set_rng_state
from .rate_tracker import RateTracker

causes.register(__file__, "user torch_xla.sync")

__all__ = [
    "REDUCE_AND",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_MUL",
    "REDUCE_OR",
    "REDUCE_SUM",
    "CoalescingBuckets",
    "DeviceContext",
    "MemoryInfo",
    "RateTracker",
    "ToXlaTensorArena",
    "_fetch_gradients",
    "_maybe_convert_to_cpu",
    "add_step_closure",
    "all_gather",
    "all_gather_bucketized",
    "all_reduce",
    "all_reduce_bucketized_gradients",
    "all_to_all",
    "broadcast_master_param",
    "check_view_sharing",
    "collective_broadcast",
    "collective_permute",
    "do_on_ordinals",
    "fork_rng",
    "get_local_ordinal",
    "get_memory_info",
    "get_ordinal",
    "get_rng_state",
    "get_stablehlo",
    "get_stablehlo_bytecode",
    "get_xla_supported_devices",
    "is_master_ordinal",
    "is_xla_tensor",
    "mark_step",
    "master_print",
    "mesh_reduce",
    "optimization_barrier_",
    "optimizer_step",
    "parse_xla_device",
    "recv",
    "reduce_gradients",
    "reduce_scatter",
    "reduce_scatter_bucketized",
    "rendezvous",
    "save",
    "send",
    "send_cpu_data_to_device",
    "set_replication",
    "set_rng_state",
    "unlazy",
    "wait_device_ops",
    "xla_device",
    "xla_device_hw",
    "xla_device_kind",
    "xla_real_devices",
    "xla_rendezvous",
    "xla_replication_devices",
    "xrt_world_size",
]

_Device = torch.device | str | int | None


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on an xla device."""
    return tensor.device.type == "xla"


def parse_xla_device(device: torch.device | str) -> tuple[str, int] | None:
    """Kind and index in the name of a device: `("xla", 0)` of `xla:0`; None for any other text."""
    found = re.fullmatch(r"([A-Za-z]+):(\d+)", str(device))
    return (found[1], int(found[2])) if found else None


def get_xla_supported_devices(devkind: str | int | None = None, max_devices: int | None = None) -> list[str] | None:
    """Names of this process's devices, `xla:0` first; None if they are not of the kind that is asked for.

    Args:
        devkind: the kind; or, as PyTorch/XLA has it from 2.8 on, `max_devices`.
        max_devices: how many at most; 0 or None for all.
    """
    if isinstance(devkind, int):
        devkind, max_devices = None, devkind
    if devkind is not None and xr.device_type() != devkind.upper():
        return None
    return [str(device) for device in torch_xla.devices()][: max_devices or None]


def xla_real_devices(devices: Sequence[torch.device | str] | None = None) -> list[str]:
    """What stands behind the devices (all by default): `CPU:0`, `CUDA:1`."""
    real = dict(zip(map(str, torch_xla.devices()), torch_xla.real_devices(), strict=True))
    if not devices:
        return list(real.values())
    return [real[str(find(device).torch_device)] for device in devices]


def xla_device_kind(device: _Device = None) -> str:
    """What the vendor calls the device: `NVIDIA H100 80GB HBM3`."""
    return find(device).jax_device.device_kind


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """The older name of `lazy_runtime.sync`."""
    torch_xla.sync(wait, reset_scope)


def wait_device_ops(devices: Iterable[torch.device | str] = ()) -> None:
    """Waits until everything that was started on the devices (all by default) has been executed. What is pending stays
    pending.

    Raises:
        what went wrong in one of the executions.
    """
    from ...platform import xla_devices

    for found in [find(device) for device in devices] or xla_devices.devices():
        found.wait()


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Returns when the tensors have their values. For benchmarks: it makes the host wait."""
    from ...execution import execute

    for found in {find(tensor.device) for tensor in tensors}:
        execute.sync(found, wait=True)


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    """Runs `closure(*args)` at the end of the step, when tensors have their values: reading one executes nothing then.

    Args:
        run_async: on a thread of its own. If it raises, the step after the next one's start does.
    """
    closures.add(closure, args, run_async)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """`optimizer.step()`, after the gradients were summed over the replicas.

    Args:
        barrier: also ends the step. A device loader does that, so it is for loops without one.
        optimizer_args: keyword arguments of `step`.
        groups, pin_layout: of the sum over replicas.

    Returns:
        what `optimizer.step` returns: the loss where it was given a closure.
    """
    reduce_gradients(optimizer, groups, pin_layout)
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        torch_xla.sync()
    return loss


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Keeps the compiler from moving work across: what reads the tensors afterwards is not merged with what read them
    before, and waits for all of them. In place.
    """
    with torch.no_grad():
        for tensor, same in zip(tensors, torch.ops.lazy_runtime.optimization_barrier(list(tensors)), strict=True):
            tensor.copy_(same)


def get_ordinal() -> int:
    """The number of this replica among all (`xr.global_ordinal`)."""
    return xr.global_ordinal()


def get_local_ordinal() -> int:
    """The number of this replica on its host (`xr.local_ordinal`)."""
    return xr.local_ordinal()


def xrt_world_size() -> int:
    """How many replicas work together (`xr.world_size`)."""
    return xr.world_size()


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this replica is the first, on its host or among all."""
    return (xr.local_ordinal() if local else xr.global_ordinal()) == 0


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """`print` on the first replica, and nothing on the others.

    Args:
        fd: the file to print to; standard output by default.
        local: on the first replica of each host.
    """
    if is_master_ordinal(local=local):
        print(*args, file=fd, flush=flush)


def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Sequence[int] | set[int] = (0,)) -> None:
    """Calls `target(*data)` on the replicas with these numbers; xla tensors in `data` are on the CPU then."""
    running = xr.global_ordinal() in ordinals
    cpu = to_cpu(data)
    if running:
        target(*cpu)


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Waits for the other replicas; what each of them passed, in their order.

    Args:
        tag: names the place.
        replicas: those that meet; by default all.

    Raises:
        RuntimeError: some did not come within `XLA_JOB_TIMEOUT` seconds.
    """
    from ...processes import process_job

    return process_job.exchange(tag, payload, replicas)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of the list of every replica's data, tensors on the CPU."""
    cpu = to_cpu(data)
    if xr.world_size() == 1:
        return reduce_fn([cpu])
    stream = io.BytesIO()
    torch.save(cpu, stream)
    found = rendezvous(tag, stream.getvalue())
    return reduce_fn([torch.load(io.BytesIO(each), weights_only=False) for each in found])


def send_cpu_data_to_device(data: Any, device: torch.device | str, input_sharding: Any = None) -> Any:
    """`data` with the CPU tensors in it on `device`; of a tensor, a list with it, as PyTorch/XLA gives it.

    Args:
        input_sharding: see `ParallelLoader`.

    Raises:
        RuntimeError: there is an `input_sharding`, and `runtime.use_spmd()` has not been called.
    """
    require_spmd(input_sharding)
    given = [data] if isinstance(data, torch.Tensor) else data
    return to_device(given, find(device).torch_device, input_sharding)


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """`data` with the xla tensors in it on the CPU, by one execution; those that share memory share it there.

    Args:
        convert: without it the tensors stay where they are, and only have their values when the call returns.
    """
    if convert:
        return to_cpu(data)
    tensors: list[torch.Tensor] = []
    utils.for_each_instance(
        data, lambda value: isinstance(value, torch.Tensor) and is_xla_tensor(value), tensors.append
    )
    unlazy(tensors)
    return data


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """`torch.save` of the data with its tensors on the CPU, so that any torch can load it. A file of that path is
    replaced when all is written, so that a kill leaves what was there before, or a whole one.

    Args:
        master_only: only the first replica of each host writes (with `use_spmd`, its first process).
        global_master: with `master_only`, only the first of all.
    """
    from ...processes import process_job

    cpu = to_cpu(data)
    here = process_job.place()
    if master_only and (here.rank if global_master else here.local_rank) != 0:
        return
    if not isinstance(file_or_path, str | os.PathLike):
        torch.save(cpu, file_or_path)
        return
    with whole_files.replacing(file_or_path) as path:
        torch.save(cpu, path)


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """The pending program of the tensors (without any, of all that live) as StableHLO text."""
    from ...debug import graphs

    return graphs.stablehlo(tensors or None)


def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """The pending program of the tensors (without any, of all that live) as portable StableHLO bytecode."""
    from ...debug import graphs

    return graphs.stablehlo_bytecode(tensors or None)
