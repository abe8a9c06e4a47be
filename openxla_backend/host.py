"""Runs a program on plain torch tensors, in their own memory: both frameworks see the same buffers through DLPack."""

from __future__ import annotations

from typing import Any

import jax
import torch

from lazy_runtime import compiler, dtypes, metrics, transfer

from . import fx

ALIGNMENT = 64  # bytes; XLA copies a buffer that starts elsewhere


class HostRun:
    """Runs a program on CPU (or CUDA) tensors. Returns when it has been executed: torch may write to the arguments at
    once, and XLA reads them where they are."""

    def __init__(self, program: fx.Program, executable: compiler.Executable, static: frozenset[int]):
        self._program = program
        self._executable = executable
        self._device = program.graph.device
        self._static = static
        self._imported: dict[int, tuple[int, jax.Array]] = {}  # argument → (address, array over the same memory)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        program = self._program
        with dtypes.x64():
            arrays = [
                self._array(leaf, arguments[leaf]) if type(leaf) is int else leaf.handle.value.array  # type: ignore
                for leaf in program.leaves
            ]
        seeds = self._device.random.draw(program.seeds) if program.seeds else ()
        results = self._executable(arrays, (), seeds)
        metrics.count("ExecuteComputation")
        jax.block_until_ready(results)
        tensors: dict[int, torch.Tensor] = {}

        def tensor(output: fx.Output) -> Any:
            spec = output.spec
            if spec is None:
                return output.value
            if output.argument is not None:
                return arguments[output.argument]
            number = output.result
            if number is None:
                return _export(output.value.handle.value.array).clone()
            made = tensors.get(number)
            if made is None:
                made = tensors[number] = _export(results[number])
            return transfer.restride(made, spec)

        with torch.no_grad():
            for number, output in program.mutations:
                arguments[number].copy_(tensor(output))
            outputs = [tensor(output) for output in program.outputs]
        arguments.clear()
        return outputs

    def _array(self, number: int, tensor: torch.Tensor) -> jax.Array:
        if number not in self._static:
            return import_tensor(tensor)
        address = tensor.data_ptr()
        known = self._imported.get(number)
        if known is not None and known[0] == address:
            return known[1]
        array = import_tensor(tensor)
        if array.unsafe_buffer_pointer() == address:
            # the array keeps the memory alive, so the address cannot come to mean another tensor's
            self._imported[number] = (address, array)
        return array


def import_tensor(tensor: torch.Tensor) -> jax.Array:
    """A jax array over the tensor's memory; over a copy of it where that is strided or not aligned. Under x64."""
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.data_ptr() % ALIGNMENT:
        tensor = tensor.clone()
    return jax.dlpack.from_dlpack(tensor)


def _export(array: jax.Array) -> torch.Tensor:
    return torch.from_dlpack(array)
