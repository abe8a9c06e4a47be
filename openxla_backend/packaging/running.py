"""Runs a package's program: its machine code is loaded, its weights lie where it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import torch

from lazy_runtime.cache import disk_program
from lazy_runtime.compat.jaxlib import DeviceList
from lazy_runtime.compilation import compiler
from lazy_runtime.compilation.plan import CompilePlan
from lazy_runtime.execution import transfer
from lazy_runtime.ir import dtypes
from lazy_runtime.ir.graph import Graph, Handle, Value
from lazy_runtime.ir.spec import TensorSpec
from lazy_runtime.ops import registry
from lazy_runtime.platform.xla_devices import Device
from lazy_runtime.regions import compiling as regions
from lazy_runtime.tensor.xla_tensor import XLATensor, make

from ..execution.device import DeviceRun
from ..execution.dlpack import import_tensor
from ..execution.host import HostRun
from . import program
from .archive import Contents, PackageError


class LoadedProgram:
    """Calls a package's program with the tensors among the arguments of a call, in order.

    Attributes:
        state: the buffers that it writes to, by name, as they are now.
        written: numbers of the tensors that it writes to.
    """

    def __init__(self, contents: Contents, device: Device):
        described, weights = contents.description, contents.weights
        sources: list[list[Any]] = described["graph arguments"]
        leaves = [
            leaf if isinstance(leaf, int) else _constant(weights[leaf], spec, device, number, described["program"])
            for number, (leaf, spec) in enumerate(
                zip(described["graph leaves"], described["program"]["leaves"], strict=True)
            )
        ]
        _require(described["program"]["calls"])
        restored, physical, checked = program.restore(described["program"], device, leaves)
        disk_program.prepare(described["custom calls"])
        code: Any = _Code(contents.program, device)
        executable = compiler.Executable(_Plan(restored.graph, described["is of kernels"]), code, physical, checked)
        self.state: dict[str, torch.Tensor] = {}
        #: for each argument of the graph a number of the call's tensors, or what it always is
        self._given: list[int | torch.Tensor | None] = []
        for kind, source in sources:
            given: Any = source if kind == "input" else None
            if kind in ("state", "kept"):
                given = weights[source].clone().to(device.torch_device)
            if kind == "state":
                self.state[source.removeprefix("state.")] = given
            self._given.append(given)
        written = {number for number, _ in restored.mutations} | {write.number for write in restored.partial_writes}
        self.written = [sources[number][1] for number in written if sources[number][0] == "input"]
        self._run: HostRun | DeviceRun
        if device.torch_device.type == "xla":
            self._run = _DeviceRun(restored, lambda: executable, frozenset(), None)
        else:
            self._run = HostRun(restored, executable, frozenset())

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results, without gradients."""
        given: list[Any] = [tensors[each] if isinstance(each, int) else each for each in self._given]
        with torch.no_grad():
            return self._run(given)


def _require(calls: Sequence[str]) -> None:
    """Makes sure that torch's kernels which the code calls are there.

    Raises:
        PackageError: an operator of another library is not.
    """
    for name in calls:
        if not name.startswith(("aten::", "lazy_runtime::")) and registry.overload(name) is None:
            raise PackageError(f"the program calls {name}: import the library that defines this operator before")


def _constant(
    tensor: torch.Tensor, spec: dict[str, Any], device: Device, leaf: int, described: program.Described
) -> XLATensor:
    """A weight where the program reads it."""
    look = TensorSpec.of(device, getattr(torch, spec["dtype"]), tuple(spec["shape"]))
    if device.torch_device.type == "xla":
        value = Value(None, 0, transfer.upload(tensor, device))
    else:
        with dtypes.x64():
            value = Value(None, 0, import_tensor(tensor))
    value.channels_last = leaf in described["channels_last"]
    return make(Handle(value), look)


class _Plan(CompilePlan):
    """What the executable asks its plan."""

    def __init__(self, graph: Graph, is_of_kernels: bool):
        super().__init__(graph)
        self.is_of_kernels = is_of_kernels  # a cached property there, which would look at the operators


class _Code:
    """Machine code as `Executable` calls it."""

    def __init__(self, code: bytes, device: Device):
        jax_device = device.jax_device
        self._sharding = device.sharding
        self._loaded: Any = jax_device.client.deserialize_executable(code, executable_devices=DeviceList((jax_device,)))

    def __call__(self, *arguments: Any) -> list[jax.Array]:
        arrays = [each if isinstance(each, jax.Array) else jax.device_put(each, self._sharding) for each in arguments]
        return [array for (array,) in self._loaded.execute_sharded(arrays).disassemble_into_single_device_arrays()]


class _DeviceRun(DeviceRun):
    """Runs packaged code on xla tensors: at once, since it cannot be a part of a larger program."""

    def _is_deferred(self, arguments: list[Any]) -> bool:
        if regions.is_tracing():
            raise NotImplementedError(
                "a packaged function within lazy_runtime.compile: it is a program by itself, call it outside"
            )
        return False
