"""Torch's `DeviceMesh` and DTensor on xla.

Torch makes an exception of the device type "xla" in three functions: a mesh gets no process groups, and
`distribute_tensor` and `distribute_module` are left to torch_xla, whose ranks are the devices of one process. Ours are
processes with process groups, as on any other device, and DTensor has nothing to do differently. The functions are
known by many names (`from torch.distributed.tensor import distribute_tensor`), so the exception is taken out of their
code.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any


class _NoDevice:
    """Equal to no device type."""


def use_process_groups() -> None:
    """Lets meshes on xla have process groups, and DTensor use them. Idempotent."""
    from torch.distributed import device_mesh

    from ...compat.distributed import distribute_module, distribute_tensor

    mesh: Any = device_mesh.DeviceMesh
    for function in (mesh.__init__, distribute_tensor, distribute_module):
        _take_out_exception(function)


def _take_out_exception(function: FunctionType) -> None:
    code = function.__code__
    constants = tuple(_NoDevice if constant == "xla" else constant for constant in code.co_consts)
    function.__code__ = code.replace(co_consts=constants)
