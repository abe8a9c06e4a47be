"""Switches of the process, and those that cannot be switched here."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ...common import environment, metrics, source_locations
from ...compilation import donors, lower
from ...execution import execute

__all__ = [
    "_get_allow_execution",
    "_get_current_graph_name",
    "_get_executed_fallback_ops",
    "_get_git_revs",
    "_get_ir_debug",
    "_get_xla_all_numbers_special_scalars",
    "_get_xla_enable_device_data_cache",
    "_get_xla_handle_special_scalars",
    "_init_computation_client",
    "_init_xla_lazy_backend",
    "_prepare_to_exit",
    "_set_allow_execution",
    "_set_current_graph_name",
    "_set_custom_compile_options",
    "_set_ir_debug",
    "_set_xla_all_numbers_special_scalars",
    "_set_xla_enable_device_data_cache",
    "_set_xla_handle_special_scalars",
    "_xla_get_enable_alias_with_buffer_donor_config",
    "_xla_increment_counter",
    "_xla_runtime_is_initialized",
    "_xla_set_enable_alias_with_buffer_donor_config",
]

_donates_outside_of_steps = False


def _xla_set_enable_alias_with_buffer_donor_config(enable_user_config_alias: bool = False, device: str = "") -> None:
    """Whether buffers that were given away (`_set_buffer_donation`) are donated outside of a step's end, too.

    That is `_xla_sync_multi` without `sync_xla_data`, and programs by their hash. A step's end donates them always.
    """
    global _donates_outside_of_steps
    _donates_outside_of_steps = bool(enable_user_config_alias)


def _xla_get_enable_alias_with_buffer_donor_config(device: str = "") -> bool:
    """See `_xla_set_enable_alias_with_buffer_donor_config`."""
    return _donates_outside_of_steps


def donating() -> contextlib.AbstractContextManager[None]:
    """The context of what is executed without the end of a step."""
    return donors.only_given(_donates_outside_of_steps)


def _set_allow_execution(allow_execution: bool) -> None:
    """Whether programs may be executed, in the whole process; while they may not, a sync or a read raises."""
    execute.is_allowed = bool(allow_execution)


def _get_allow_execution() -> bool:
    """See `_set_allow_execution`."""
    return execute.is_allowed


def _set_current_graph_name(current_graph_name: str) -> None:
    """What reports and dumps call the programs that the calling thread executes from now on; "" for nothing."""
    lower.thread.name = current_graph_name


def _get_current_graph_name() -> str:
    """See `_set_current_graph_name`."""
    return lower.thread.name


def _set_ir_debug(ir_debug: bool) -> None:
    """Whether operators keep the user's stack, which graphs and their HLO then show: `XLA_IR_DEBUG` from now on."""
    source_locations.keep_stacks = bool(ir_debug)
    source_locations.keep = _keeps_lines or source_locations.keep_stacks


_keeps_lines = source_locations.keep and not source_locations.keep_stacks


def _get_ir_debug() -> bool:
    """See `_set_ir_debug`."""
    return source_locations.keep_stacks


def _set_custom_compile_options(compile_options: Mapping[Any, Any]) -> None:
    """See `torch_xla.set_custom_compile_options`."""
    from .. import torch_xla

    torch_xla.set_custom_compile_options(compile_options)


def _get_xla_handle_special_scalars() -> bool:
    """Whether numbers like 0 and 1 are constants of a program, and others its inputs: `XLA_NO_SPECIAL_SCALARS` says."""
    return not environment.value("XLA_NO_SPECIAL_SCALARS")


def _set_xla_handle_special_scalars(handle_special_scalars: bool) -> None:
    """Accepts what is true.

    Raises:
        NotImplementedError: it is to be otherwise, which is decided when the process begins.
    """
    _only("_set_xla_handle_special_scalars", handle_special_scalars, _get_xla_handle_special_scalars(), _BY_ENVIRONMENT)


def _get_xla_all_numbers_special_scalars() -> bool:
    """Whether all numbers are constants of a program: they are where it is traced ahead (`torch.compile`), alone."""
    return False


def _set_xla_all_numbers_special_scalars(all_numbers_special_scalars: bool) -> None:
    """Accepts what is true.

    Raises:
        NotImplementedError: it is to be otherwise.
    """
    way = "numbers that change would make a program each; torch.export and torch.compile have them as constants"
    _only("_set_xla_all_numbers_special_scalars", all_numbers_special_scalars, False, way)


def _get_xla_enable_device_data_cache() -> bool:
    """Whether equal numbers share a buffer: they are inputs of the program, and none has a buffer of its own."""
    return False


def _set_xla_enable_device_data_cache(enable_device_data_cache: bool) -> None:
    """Accepts what is true.

    Raises:
        NotImplementedError: it is to be otherwise.
    """
    way = "numbers are inputs of the program, and need no buffers that could be kept"
    _only("_set_xla_enable_device_data_cache", enable_device_data_cache, False, way)


_BY_ENVIRONMENT = "set XLA_NO_SPECIAL_SCALARS before the process begins"


def _only(name: str, wanted: bool, actual: bool, way: str) -> None:
    if bool(wanted) != actual:
        raise NotImplementedError(f"{name}({wanted}): {way}")


def _xla_increment_counter(name: str, value: int) -> None:
    """Adds to a counter, which the first addition makes."""
    metrics.count(name, value)


def _get_executed_fallback_ops() -> list[str]:
    """See `debug.metrics.executed_fallback_ops`."""
    from ..debug import metrics as met

    return met.executed_fallback_ops()


def _get_git_revs() -> dict[str, str]:
    """What this package and the compiler are of: the versions of both, and torch's revision."""
    import importlib.metadata

    import torch

    from ...common.version import __version__

    return {"xla": f"{__version__} (jaxlib {importlib.metadata.version('jaxlib')})", "torch": torch.version.git_version}


def _xla_runtime_is_initialized() -> bool:
    """Whether xla has been used, so that its platform is settled."""
    from ...platform import xla_devices

    return xla_devices.is_started()


def _init_computation_client() -> None:
    """Starts the runtime, as the first use of xla does."""
    from ...platform import xla_devices

    xla_devices.start()


def _init_xla_lazy_backend() -> None:
    """Registers the device, as `import torch` does. The counter says how often that was done: once."""
    from ...platform import xla_devices

    xla_devices.start()
    if not metrics.value("RegisterXLAFunctions"):
        metrics.count("RegisterXLAFunctions")


def _prepare_to_exit() -> None:
    """Waits for what was started. The process's end does the rest by itself."""
    from ...platform import xla_devices

    if xla_devices.is_started():
        for found in xla_devices.devices():
            found.wait()
