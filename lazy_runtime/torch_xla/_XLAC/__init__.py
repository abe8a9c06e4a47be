"""The names of PyTorch/XLA's C++ module that programs use all the same.

The submodules have them by what they are about; those of reports, random numbers and shardings are here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from ...execution import execute
from ...lowering.precision import get_mat_mul_precision as _xla_get_mat_mul_precision
from ...lowering.precision import set_mat_mul_precision as _xla_set_mat_mul_precision
from ...platform import hardware, xla_devices
from .. import experimental, torch_xla
from .. import runtime as xr
from ..core import xla_model as xm
from ..debug import metrics as _met
from ..experimental.stablehlo_custom_call import stablehlo_custom_call as _xla_custom_call
from ..experimental.xla_marker import mark_tensor_xla as _xla_mark_tensor
from ..utils.dlpack import from_dlpack as _from_dlpack
from ..utils.dlpack import to_dlpack as _to_dlpack
from . import lowering, profiler, switches
from .builders import (
    XlaBuilder,
    XlaComputation,
    XlaOp,
    _xla_computation_text,
    _xla_op_build,
    _xla_op_builder,
    _xla_op_computation_from_module_proto,
    _xla_op_create,
    _xla_op_create_builder,
    _xla_op_param,
    _xla_op_shape,
    _xla_op_tensor_shape,
    _xla_user_computation,
)
from .collectives import (
    _get_all_reduce_token,
    _set_all_reduce_token,
    _xla_all_gather,
    _xla_all_gather_coalesced,
    _xla_all_gather_coalesced_out,
    _xla_all_gather_out,
    _xla_all_reduce,
    _xla_all_reduce_inplace,
    _xla_all_to_all,
    _xla_collective_permute,
    _xla_recv,
    _xla_reduce_scatter,
    _xla_reduce_scatter_coalesced,
    _xla_reduce_scatter_coalesced_out,
    _xla_reduce_scatter_out,
    _xla_send,
)
from .devices import (
    _register_pjrt_plugin,
    _xla_device_kind,
    _xla_get_all_device_attributes,
    _xla_get_all_runtime_devices,
    _xla_get_device_attributes,
    _xla_get_device_ordinal,
    _xla_get_num_processes,
    _xla_get_platform_version,
    _xla_get_process_index,
    _xla_get_replication_devices,
    _xla_get_replication_devices_count,
    _xla_get_runtime_devices,
    _xla_num_global_devices,
    _xla_num_runtime_devices,
    _xla_set_replication_devices,
)
from .graph_limits import (
    _dynamic_shape_detector_end_session,
    _dynamic_shape_detector_get_max_different_graphs,
    _dynamic_shape_detector_remove_session,
    _dynamic_shape_detector_set_max_different_graphs,
    _dynamic_shape_detector_start_session,
)
from .operations import (
    _xla_adam_optimizer_step_,
    _xla_cast_int4,
    _xla_dequantize_tensor,
    _xla_dot_general,
    _xla_dynamic_expand,
    _xla_dynamic_view,
    _xla_mark_dynamic,
    _xla_optimization_barrier_,
    _xla_quantize_tensor,
    _xla_register_custom_call_target,
    _xla_sgd_optimizer_step_,
    _xla_tpu_custom_call,
)
from .programs import (
    _clear_pending_irs,
    _get_graph_hash,
    _get_tensors_xla_device_data_node,
    _get_xla_tensors_hlo_proto,
    _run_cached_graph,
    _run_stablehlo,
    _xla_computation_cache_is_initialized,
    _xla_get_num_cached_compilation_graph,
    _xla_sync_live_tensors,
    _xla_tensors_report,
    _xla_warm_up_cache,
)
from .sharding import (
    OpSharding,
    _get_xla_op_sharding,
    _get_xla_sharding_specs,
    _global_tensor_from_cpu_shards,
    _spmd_full_to_shard_shape,
    _spmd_shard_to_full_shape,
    _xla_annotate_custom_sharding,
    _xla_clear_sharding,
    _xla_force_spmd_device,
    _xla_get_auto_sharding,
    _xla_get_spmd_config_is_locked,
    _xla_mark_sharding,
    _xla_set_auto_sharding,
)
from .switches import (
    _get_allow_execution,
    _get_current_graph_name,
    _get_executed_fallback_ops,
    _get_git_revs,
    _get_ir_debug,
    _get_xla_all_numbers_special_scalars,
    _get_xla_enable_device_data_cache,
    _get_xla_handle_special_scalars,
    _init_computation_client,
    _init_xla_lazy_backend,
    _prepare_to_exit,
    _set_allow_execution,
    _set_current_graph_name,
    _set_custom_compile_options,
    _set_ir_debug,
    _set_xla_all_numbers_special_scalars,
    _set_xla_enable_device_data_cache,
    _set_xla_handle_special_scalars,
    _xla_get_enable_alias_with_buffer_donor_config,
    _xla_increment_counter,
    _xla_runtime_is_initialized,
    _xla_set_enable_alias_with_buffer_donor_config,
)
from .tensors import (
    _check_device_tensor_need_materialization,
    _check_tensor_need_materialization,
    _get_base_seed_as_tensor,
    _get_buffer_donation,
    _get_seed_info_id,
    _get_tensors_handle,
    _get_xla_tensor_debug_info,
    _get_xla_tensor_dimension_size,
    _get_xla_tensor_shape_type,
    _is_placecholder,
    _on_ready_callback,
    _replace_xla_tensor,
    _set_buffer_donation,
    _set_xla_custom_op_name_prefix,
    _unique_id_for_ir_and_data,
    _unsafe_buffer_pointer,
    _xla_create_placeholder_tensor,
    _xla_get_device_hw_type,
    _xla_get_tensor_id,
    _xla_get_tensor_view_alias_id,
    _xla_tensors_from_aten,
)

__all__ = [
    "OpSharding",
    "XlaBuilder",
    "XlaComputation",
    "XlaOp",
    "_check_device_tensor_need_materialization",
    "_check_tensor_need_materialization",
    "_clear_pending_irs",
    "_dynamic_shape_detector_end_session",
    "_dynamic_shape_detector_get_max_different_graphs",
    "_dynamic_shape_detector_remove_session",
    "_dynamic_shape_detector_set_max_different_graphs",
    "_dynamic_shape_detector_start_session",
    "_from_dlpack",
    "_get_all_reduce_token",
    "_get_allow_execution",
    "_get_base_seed_as_tensor",
    "_get_buffer_donation",
    "_get_current_graph_name",
    "_get_executed_fallback_ops",
    "_get_git_revs",
    "_get_graph_hash",
    "_get_ir_debug",
    "_get_seed_info_id",
    "_get_tensors_handle",
    "_get_tensors_xla_device_data_node",
    "_get_xla_all_numbers_special_scalars",
    "_get_xla_enable_device_data_cache",
    "_get_xla_handle_special_scalars",
    "_get_xla_op_sharding",
    "_get_xla_sharding_specs",
    "_get_xla_tensor_debug_info",
    "_get_xla_tensor_dimension_size",
    "_get_xla_tensor_shape_type",
    "_get_xla_tensors_hlo_proto",
    "_global_tensor_from_cpu_shards",
    "_init_computation_client",
    "_init_xla_lazy_backend",
    "_is_placecholder",
    "_on_ready_callback",
    "_prepare_to_exit",
    "_register_pjrt_plugin",
    "_replace_xla_tensor",
    "_run_cached_graph",
    "_run_stablehlo",
    "_set_all_reduce_token",
    "_set_allow_execution",
    "_set_buffer_donation",
    "_set_current_graph_name",
    "_set_custom_compile_options",
    "_set_ir_debug",
    "_set_xla_all_numbers_special_scalars",
    "_set_xla_custom_op_name_prefix",
    "_set_xla_enable_device_data_cache",
    "_set_xla_handle_special_scalars",
    "_spmd_full_to_shard_shape",
    "_spmd_shard_to_full_shape",
    "_to_dlpack",
    "_unique_id_for_ir_and_data",
    "_unsafe_buffer_pointer",
    "_xla_adam_optimizer_step_",
    "_xla_all_gather",
    "_xla_all_gather_coalesced",
    "_xla_all_gather_coalesced_out",
    "_xla_all_gather_out",
    "_xla_all_reduce",
    "_xla_all_reduce_inplace",
    "_xla_all_to_all",
    "_xla_annotate_custom_sharding",
    "_xla_cast_int4",
    "_xla_clear_sharding",
    "_xla_collective_permute",
    "_xla_computation_cache_is_initialized",
    "_xla_computation_text",
    "_xla_create_placeholder_tensor",
    "_xla_custom_call",
    "_xla_dequantize_tensor",
    "_xla_device_kind",
    "_xla_dot_general",
    "_xla_dynamic_expand",
    "_xla_dynamic_view",
    "_xla_force_spmd_device",
    "_xla_get_all_device_attributes",
    "_xla_get_all_runtime_devices",
    "_xla_get_auto_sharding",
    "_xla_get_device_attributes",
    "_xla_get_device_hw_type",
    "_xla_get_device_ordinal",
    "_xla_get_enable_alias_with_buffer_donor_config",
    "_xla_get_mat_mul_precision",
    "_xla_get_num_cached_compilation_graph",
    "_xla_get_num_processes",
    "_xla_get_platform_version",
    "_xla_get_process_index",
    "_xla_get_replication_devices",
    "_xla_get_replication_devices_count",
    "_xla_get_runtime_devices",
    "_xla_get_spmd_config_is_locked",
    "_xla_get_tensor_id",
    "_xla_get_tensor_view_alias_id",
    "_xla_increment_counter",
    "_xla_mark_dynamic",
    "_xla_mark_sharding",
    "_xla_mark_tensor",
    "_xla_num_global_devices",
    "_xla_num_runtime_devices",
    "_xla_op_build",
    "_xla_op_builder",
    "_xla_op_computation_from_module_proto",
    "_xla_op_create",
    "_xla_op_create_builder",
    "_xla_op_param",
    "_xla_op_shape",
    "_xla_op_tensor_shape",
    "_xla_optimization_barrier_",
    "_xla_quantize_tensor",
    "_xla_recv",
    "_xla_reduce_scatter",
    "_xla_reduce_scatter_coalesced",
    "_xla_reduce_scatter_coalesced_out",
    "_xla_reduce_scatter_out",
    "_xla_register_custom_call_target",
    "_xla_runtime_is_initialized",
    "_xla_send",
    "_xla_set_auto_sharding",
    "_xla_set_enable_alias_with_buffer_donor_config",
    "_xla_set_mat_mul_precision",
    "_xla_set_replication_devices",
    "_xla_sgd_optimizer_step_",
    "_xla_sync_live_tensors",
    "_xla_tensors_from_aten",
    "_xla_tensors_report",
    "_xla_tpu_custom_call",
    "_xla_user_computation",
    "_xla_warm_up_cache",
    "lowering",
    "profiler",
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


def _xla_get_all_devices() -> list[str]:
    """What stands behind the devices of all processes; where a single one stands for all, behind the first."""
    found = _xla_get_all_runtime_devices()
    return found[:1] if xr.is_spmd() else found


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
    """Executes what is pending on the devices of the tensors.

    Args:
        sync_xla_data: as at the end of a step, which donates the buffers that were given away.
    """
    with contextlib.nullcontext() if sync_xla_data else switches.donating():
        for found in {xla_devices.get(tensor.device) for tensor in tensors}:
            execute.sync(found, wait)


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    """See `xm.wait_device_ops`."""
    xm.wait_device_ops(devices)


def _xla_get_cpu_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors on the CPU, executed together."""
    return [tensor.detach().cpu() for tensor in tensors]


def _set_use_eager_mode(enable: bool) -> None:
    """See `experimental.eager_mode`."""
    experimental.eager_mode(enable)


def _get_use_eager_mode() -> bool:
    """See `experimental.is_eager_mode`."""
    return experimental.is_eager_mode()


def _get_xla_sharding_spec(tensor: torch.Tensor) -> str:
    """How a tensor is sharded, as XLA writes it: `{devices=[2,1]0,1}`; empty if it is not."""
    from ...tensor import sharding
    from ..distributed.spmd import unwrap_sharded_tensor

    return sharding.text(unwrap_sharded_tensor(tensor))


def _get_xla_sharding_type(tensor: torch.Tensor) -> int | None:
    """The number in `spmd.ShardingType` of how a tensor is sharded; None if it is not."""
    from ..distributed.spmd import sharding_type

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
    from ...debug import graphs

    return graphs.text(tensors)


def _get_xla_tensors_hlo(tensors: Sequence[torch.Tensor]) -> str:
    """The pending program of the tensors as HLO text."""
    from ...debug import graphs

    return graphs.hlo(tensors)


def _get_xla_tensors_dot(tensors: Sequence[torch.Tensor]) -> str:
    """The pending program of the tensors for Graphviz."""
    from ...debug import graphs

    return graphs.dot(tensors)


def _get_stablehlo(
    tensors: Sequence[torch.Tensor], device: str = "", devices: Sequence[str] = (), emit_bytecode: bool = False
) -> str | bytes:
    """The pending program of the tensors as StableHLO, text or portable bytecode."""
    return xm.get_stablehlo_bytecode(tensors) if emit_bytecode else xm.get_stablehlo(tensors)
