"""The functions of PyTorch/XLA's C++ module that scripts call all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..execution import execute
from ..lowering.precision import get_mat_mul_precision as _xla_get_mat_mul_precision
from ..lowering.precision import set_mat_mul_precision as _xla_set_mat_mul_precision
from ..platform import hardware, xla_devices
from ..recording import views
from . import experimental, torch_xla
from .core import xla_model as xm
from .debug import metrics as _met
from .sharding_names import (
    OpSharding,
    _get_xla_op_sharding,
    _get_xla_sharding_specs,
    _global_tensor_from_cpu_shards,
    _spmd_full_to_shard_shape,
    _spmd_shard_to_full_shape,
    _xla_annotate_custom_sharding,
    _xla_get_auto_sharding,
    _xla_mark_sharding,
)
from .utils.dlpack import from_dlpack as _from_dlpack
from .utils.dlpack import to_dlpack as _to_dlpack

__all__ = [
    "OpSharding",
    "_from_dlpack",
    "_get_xla_op_sharding",
    "_get_xla_sharding_specs",
    "_global_tensor_from_cpu_shards",
    "_spmd_full_to_shard_shape",
    "_spmd_shard_to_full_shape",
    "_to_dlpack",
    "_xla_annotate_custom_sharding",
    "_xla_get_auto_sharding",
    "_xla_get_mat_mul_precision",
    "_xla_mark_sharding",
    "_xla_set_mat_mul_precision",
]

_Device = torch.device | str | None


def _xla_get_default_device() -> str:
    """Name of the calling thread's current device."""
    return str(torch_xla.device())


def _xla_set_default_device(device: str) -> str:
    """Makes a device what plain `xla` means in the calling thread; the name of the one before."""
    before = _xla_get_default_device()
    xla_devices.set_current_index(xla_devices.get(device).torch_device.index)
    return before


def _xla_get_default_device_ordinal() -> int:
    """Index of the calling thread's current device."""
    xla_devices.start()
    return xla_devices.current_index()


def _xla_get_devices() -> list[str]:
    """What stands behind each device of this process: `CPU:0`."""
    return torch_xla.real_devices()


_xla_get_all_devices = _xla_get_devices


def _xla_num_devices() -> int:
    """How many devices this process has."""
    return torch_xla.device_count()


def _xla_real_devices(devices: Sequence[str] | None = None) -> list[str]:
    """What stands behind the named devices."""
    return xm.xla_real_devices(devices or None)


def _xla_memory_info(device: _Device = None) -> dict[str, int]:
    """See `xm.get_memory_info`."""
    return hardware.memory(xla_devices.get(device))


def _xla_step_marker(
    device: _Device = None, devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True
) -> None:
    """Executes what is pending on a device (the current one if it is empty)."""
    execute.sync(xla_devices.get(device or None), wait)


def _xla_sync_multi(
    tensors: Sequence[torch.Tensor], devices: Sequence[str] = (), wait: bool = True, sync_xla_data: bool = True
) -> None:
    """Executes what is pending on the devices of the tensors."""
    for found in {xla_devices.get(tensor.device) for tensor in tensors}:
        execute.sync(found, wait)


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    """See `xm.wait_device_ops`."""
    xm.wait_device_ops(devices)


def _xla_get_cpu_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors on the CPU, executed together."""
    return [tensor.detach().cpu() for tensor in tensors]


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number of the tensor's memory: the same for tensors that share memory, and for as long as it lives.

    Raises:
        RuntimeError: the tensor is not on xla.
    """
    xla_devices.get(tensor.device)
    if not views.has_memory(tensor):  # made in inference mode: a value, which is no view of another
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


def _set_use_eager_mode(enable: bool) -> None:
    """See `experimental.eager_mode`."""
    experimental.eager_mode(enable)


def _get_use_eager_mode() -> bool:
    """See `experimental.is_eager_mode`."""
    return experimental.is_eager_mode()


def _get_xla_sharding_spec(tensor: torch.Tensor) -> str:
    """How a tensor is sharded, as XLA writes it: `{devices=[2,1]0,1}`; empty if it is not."""
    from ..tensor import sharding
    from .distributed.spmd import unwrap_sharded_tensor

    return sharding.text(unwrap_sharded_tensor(tensor))


def _get_xla_sharding_type(tensor: torch.Tensor) -> int | None:
    """The number in `spmd.ShardingType` of how a tensor is sharded; None if it is not."""
    from .distributed.spmd import sharding_type

    found = sharding_type.of_text(_get_xla_sharding_spec(tensor))
    return None if found is None else int(found)


def _xla_get_rng_seed(device: _Device = None) -> int:
    """See `xm.get_rng_state`."""
    return xm.get_rng_state(device or None)


def _xla_set_rng_seed(seed: int, device: _Device = None) -> None:
    """See `xm.set_rng_state`."""
    xm.set_rng_state(seed, device or None)


def _xla_metrics_report() -> str:
    """See `debug.metrics.metrics_report`."""
    return _met.metrics_report()


def _short_xla_metrics_report(counter_names: Sequence[str], metric_names: Sequence[str]) -> str:
    """The report of these counters and metrics alone."""
    return _met.metrics_report(counter_names, metric_names)


def _xla_counter_names() -> list[str]:
    """See `debug.metrics.counter_names`."""
    return _met.counter_names()


def _xla_counter_value(name: str) -> int | None:
    """See `debug.metrics.counter_value`."""
    return _met.counter_value(name)


def _xla_metric_names() -> list[str]:
    """See `debug.metrics.metric_names`."""
    return _met.metric_names()


def _xla_metric_data(name: str) -> Any:
    """See `debug.metrics.metric_data`."""
    return _met.metric_data(name)


def _clear_xla_counters() -> None:
    """See `debug.metrics.clear_counters`."""
    _met.clear_counters()


def _clear_xla_metrics() -> None:
    """See `debug.metrics.clear_metrics`."""
    _met.clear_metrics()


def _get_xla_tensors_text(tensors: Sequence[torch.Tensor]) -> str:
    """The pending program of the tensors, one line per operator."""
    from ..debug import graphs

    return graphs.text(tensors)


def _get_xla_tensors_hlo(tensors: Sequence[torch.Tensor]) -> str:
    """The pending program of the tensors as HLO text."""
    from ..debug import graphs

    return graphs.hlo(tensors)


def _get_xla_tensors_dot(tensors: Sequence[torch.Tensor]) -> str:
    """The pending program of the tensors for Graphviz."""
    from ..debug import graphs

    return graphs.dot(tensors)


def _get_stablehlo(
    tensors: Sequence[torch.Tensor], device: str = "", devices: Sequence[str] = (), emit_bytecode: bool = False
) -> str | bytes:
    """The pending program of the tensors as StableHLO, text or portable bytecode."""
    return xm.get_stablehlo_bytecode(tensors) if emit_bytecode else xm.get_stablehlo(tensors)
