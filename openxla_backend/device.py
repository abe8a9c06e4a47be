"""Runs a program on xla tensors."""

from __future__ import annotations

import time
from typing import Any

import jax
import torch

from lazy_runtime import compiler, dispatch, execute, lifetimes, metrics, transfer
from lazy_runtime.ir import Handle, Value
from lazy_runtime.tensor import XLATensor, make, unwrap

from . import fx

# the bare C functions: a training step unwraps and wraps hundreds of tensors
_torch: Any = torch
_apply_pending_writes = _torch._functionalize_sync
_inner = _torch._from_functional_tensor
_outer = _torch._to_functional_tensor


class DeviceRun:
    """Runs a program on xla tensors, asynchronously; CPU tensors among the arguments are copied to the device."""

    def __init__(self, program: fx.Program, executable: compiler.Executable, elsewhere: frozenset[int]):
        """Args:
        elsewhere: numbers of the arguments that are CPU tensors.
        """
        self._program = program
        self._executable = executable
        self._device = program.graph.device
        self._arguments = [leaf for leaf in program.leaves if isinstance(leaf, int)]
        self._constants = [leaf.handle.value.array for leaf in program.leaves if isinstance(leaf, XLATensor)]
        self._order = _positions(program.leaves) if self._constants else None
        self._mixed = not elsewhere.isdisjoint(self._arguments)
        # for each of `_arguments`, whether the executable wants it channels last
        wanted = set(program.graph.channels_last)
        self._channels_last = [n in wanted for n, leaf in enumerate(program.leaves) if isinstance(leaf, int)]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        program = self._program
        began = time.perf_counter_ns()
        arrays = self._arrays([arguments[number] for number in self._arguments])
        if self._order is not None:
            arrays += self._constants
            arrays = [arrays[position] for position in self._order]
        seeds = self._device.random.draw(program.seeds) if program.seeds else ()
        metrics.record("RunCachedGraphInputData", time.perf_counter_ns() - began)
        self._device.raise_failures()
        results = self._executable(arrays, (), seeds, program.lines)
        metrics.count("ExecuteComputation")
        began = time.perf_counter_ns()
        made: dict[int, torch.Tensor] = {}
        # all values first, then the writes: what is written to one argument may be what another one held
        written = [self._handle(output, arguments, results) for _, output in program.mutations]
        outputs = [self._tensor(output, arguments, results, made) for output in program.outputs]
        if written:
            for (number, output), handle in zip(program.mutations, written, strict=True):
                _write(arguments[number], handle, output.spec)
        arguments.clear()
        lifetimes.bound(len(results))
        metrics.record("RunCachedGraphOutputData", time.perf_counter_ns() - began)
        return outputs

    def _arrays(self, tensors: list[torch.Tensor]) -> list[Any]:
        if self._mixed:
            return [self._array(tensor, last) for tensor, last in zip(tensors, self._channels_last, strict=True)]
        for tensor in tensors:
            _apply_pending_writes(tensor)
        values = [_inner(tensor).handle.value for tensor in tensors]
        for value in values:
            if value.array is None:
                metrics.count("DynamoSyncInputExecuteTime")
                execute.sync(self._device)
                break
        return [
            value.array if value.channels_last is last else execute.array_of(value, self._device, last)
            for value, last in zip(values, self._channels_last, strict=True)
        ]

    def _array(self, tensor: torch.Tensor, channels_last: bool) -> jax.Array:
        if tensor.device.type != "xla":
            return transfer.upload(tensor, self._device)
        value = unwrap(tensor).handle.value
        if value.array is None:
            metrics.count("DynamoSyncInputExecuteTime")
        return execute.array_of(value, self._device, channels_last)

    def _handle(self, output: fx.Output, arguments: list[Any], results: list[Any]) -> Handle:
        """The value of an output, which nobody writes to."""
        if output.result is not None:
            value = Value(None, 0, results[output.result])
            value.channels_last = self._executable.physical[output.result]
            return Handle(value)
        if output.argument is None:
            return output.value.handle
        source = arguments[output.argument]
        if source.device.type != "xla":
            source = transfer.to_device(source, self._device)
        return unwrap(source).handle

    def _tensor(
        self, output: fx.Output, arguments: list[Any], results: list[Any], made: dict[int, torch.Tensor]
    ) -> Any:
        """What the user gets."""
        if output.spec is None:
            return output.value
        if output.itself:
            return arguments[output.argument]  # type: ignore[index]
        if output.device is not None and output.device.type != "xla":
            return transfer.to_host(make(self._handle(output, arguments, results), output.spec))
        if output.base is not None:
            return self._view(output, self._tensor(output.base, arguments, results, made), results)
        if output.result is None or output.fresh:
            return _outer(make(self._handle(output, arguments, results), output.spec))
        tensor = made.get(output.result)
        if tensor is None:
            handle = self._handle(output, arguments, results)
            tensor = made[output.result] = _outer(make(handle, output.spec))
        return tensor

    def _view(self, output: fx.Output, base: torch.Tensor, results: list[Any]) -> torch.Tensor:
        """A view in torch's books, whose value the program has computed along with its base."""
        spec: Any = output.spec
        with dispatch.Trace(self._device), torch.no_grad():
            view = base.as_strided(spec.shape, spec.stride, spec.offset)
        value = _inner(view).handle.value
        value.array, value.node = results[output.result], None  # type: ignore[index]
        value.channels_last = self._executable.physical[output.result]  # type: ignore[index]
        return view


def _positions(leaves: tuple[Any, ...]) -> list[int]:
    """Where each leaf stands once the constants have been put behind the arguments."""
    number = sum(isinstance(leaf, int) for leaf in leaves)
    argument, constant = iter(range(number)), iter(range(number, len(leaves)))
    return [next(argument if isinstance(leaf, int) else constant) for leaf in leaves]


def _write(target: torch.Tensor, handle: Handle, spec: Any) -> None:
    """What `target.copy_(value)` does under `no_grad`, without five microseconds of dispatch.

    These are the steps that torch's functionalization takes at the end of any in-place operator: exchange the value,
    tell the storage that all views share, and take the new value back through it.
    """
    if target.device.type != "xla":
        target.copy_(transfer.to_host(make(handle, spec)))
        return
    _apply_pending_writes(target)
    if not _torch._is_functional_tensor_base(target):
        _torch.ops.lazy_runtime.reroot(target)
    _torch._functionalize_replace(target, make(handle, _inner(target).spec))
    _torch._functionalize_commit_update(target)
    _apply_pending_writes(target)
    if not target.is_inference():
        torch.autograd.graph.increment_version(target)
