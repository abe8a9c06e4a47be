"""Runs a program on plain torch tensors, in their own memory: both frameworks see the same buffers through DLPack."""

from __future__ import annotations

import time
import weakref
from typing import Any

import jax
import torch

from lazy_runtime.common import metrics
from lazy_runtime.compat.torch import foreach_copy_
from lazy_runtime.compilation import compiler
from lazy_runtime.execution import transfer
from lazy_runtime.ir import dtypes
from lazy_runtime.ir.spec import TensorSpec
from lazy_runtime.lowering import checks
from lazy_runtime.tensor.xla_tensor import make_resizable

from ..graph import fx
from ..graph.outputs import Argument, ArgumentItself, Constant, Output, OwnTensor, PythonValue, Source, View
from .dlpack import address_of, exporter, import_tensor


class HostRun:
    """Runs a program on CPU (or CUDA) tensors. Returns when it has been executed: torch may write to the arguments at
    once, and XLA reads them where they are.
    """

    def __init__(self, program: fx.Program, executable: compiler.Executable, static: frozenset[int]):
        self._program = program
        self._executable = executable
        self._lines = program.known_lines()
        self._device = program.graph.device
        self._export = exporter(self._device.platform)
        # who holds what a program writes to passes it again, as parameters
        written = [number for number, _ in program.mutations] + [write.number for write in program.partial_writes]
        self._written = frozenset(written)
        self._static = static | self._written
        # arguments whose memory holds dimension 1 last, which is how the executable wants them
        self._channels_last = {program.leaves[number] for number in program.graph.channels_last}
        # argument → (address, array over the same memory, reference that drops the entry when the tensor dies)
        self._imported: dict[int, tuple[int, jax.Array, Any]] = {}

    def __call__(self, arguments: list[Any]) -> list[Any]:
        program = self._program
        began = time.perf_counter_ns()
        with dtypes.x64():
            arrays: list[Any] = [
                self._array(leaf, arguments[leaf]) if type(leaf) is int else leaf.handle.value.array  # type: ignore
                for leaf in program.leaves
            ]
        seeds = self._device.random.draw(program.seeds) if program.seeds else ()
        metrics.record("RunCachedGraphInputData", time.perf_counter_ns() - began)
        try:
            results, execution = self._executable.start(arrays, (), seeds, self._lines)
        except checks.KernelError as error:
            raise error.meaning from None
        if execution is not None:
            execution.finish()
        jax.block_until_ready(results)
        began = time.perf_counter_ns()
        made: dict[Any, Any] = {}
        # all values first, then the writes: what is written to one argument may be what another one held
        written = [self._tensor(output, arguments, results, made) for _, output in program.mutations]
        outputs = [self._tensor(output, arguments, results, made) for output in program.outputs]
        parts = [
            (arguments[write.number], write.dim, *(self._seen_at(source, arguments, results) for source in write.read))
            for write in program.partial_writes
        ]
        exchanged = [(number, self._tensor(output, arguments, results, made)) for number, output in program.exchanges]
        make_resizable(list(made.values()))  # what came through DLPack is the user's now
        with torch.no_grad():
            if written:
                foreach_copy_([arguments[number] for number, _ in program.mutations], written)
            for argument, dim, index, part in parts:
                argument.index_copy_(dim, index, part)
        for number, tensor in exchanged:
            arguments[number].set_(tensor)
        arguments.clear()
        metrics.record("RunCachedGraphOutputData", time.perf_counter_ns() - began)
        return outputs

    def _array(self, number: int, tensor: torch.Tensor) -> jax.Array:
        if number not in self._static:
            return import_tensor(self._seen(number, tensor))
        address = address_of(tensor)
        known = self._imported.get(number)
        if known is not None and known[0] == address:
            return known[1]
        # the array keeps what it was made from alive: the memory, not the tensor
        array = import_tensor(self._seen(number, tensor.detach()))
        if array.unsafe_buffer_pointer() == address:
            imported = self._imported
            imported[number] = (address, array, weakref.ref(tensor, lambda _: imported.pop(number, None)))
        return array

    def _seen(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        """The argument with its dimensions in the order in which the executable wants them."""
        return tensor.movedim(1, -1) if number in self._channels_last else tensor

    def _tensor(self, output: Output, arguments: list[Any], results: list[Any], made: dict[Any, Any]) -> Any:
        """What the user gets."""
        if isinstance(output, PythonValue):
            return output.value
        if isinstance(output, ArgumentItself):
            return arguments[output.source.number]
        if isinstance(output, View):
            base = self._tensor(output.base, arguments, results, made)
            return output.of(output.seen_base(base, made))
        if isinstance(output.source, Argument) and not output.copied:
            return arguments[output.source.number]
        tensor = None if output.memory is None else made.get(output.memory)
        if tensor is None:
            tensor = self._own(output, arguments, results)
            if output.memory is not None:
                made[output.memory] = tensor
        return tensor

    def _seen_at(self, source: Source, arguments: list[Any], results: list[Any]) -> torch.Tensor:
        """A value that is read while arguments are written to."""
        if isinstance(source, Argument):
            argument = arguments[source.number]
            return argument.clone() if source.number in self._written else argument
        if isinstance(source, Constant):
            constant: Any = source.tensor.handle.value.array
            return self._export(constant)
        return self._result(source.number, results)

    def _own(self, output: OwnTensor, arguments: list[Any], results: list[Any]) -> torch.Tensor:
        source, spec = output.source, output.spec
        if isinstance(source, Argument):
            return _laid_out(arguments[source.number].detach().clone(), spec)
        if isinstance(source, Constant):
            constant: Any = source.tensor.handle.value.array
            return _laid_out(self._export(constant).clone(), spec)
        tensor = self._result(source.number, results)
        if output.memory is None:  # an earlier output has the result's own memory
            return _laid_out(tensor.clone(), spec)
        # what is saved for the backward graph stays as it is
        return tensor if self._executable.physical[source.number] else _laid_out(tensor, spec)

    def _result(self, number: int, results: list[Any]) -> torch.Tensor:
        tensor = self._export(results[number])
        return tensor.movedim(-1, 1) if self._executable.physical[number] else tensor


def _laid_out(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The same elements with exactly the spec's strides, those of dimensions with one element or none included."""
    if tensor.stride() == spec.stride:
        return tensor
    if spec.is_contiguous and tensor.is_contiguous():
        return tensor.as_strided(spec.shape, spec.stride)
    return transfer.restride(tensor.contiguous(), spec)
