"""What stands behind a compiled call: an FX graph that is traced and compiled once per set of sizes, then only run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from lazy_runtime import compiler, dtypes, execute, metrics, transfer, xla_devices
from lazy_runtime.spec import TensorSpec
from lazy_runtime.tensor import XLATensor, from_array, make, unwrap
from lazy_runtime.xla_devices import Device

from . import fx, host


class CompiledGraph:
    """A callable with AOTAutograd's boxed convention: it takes one list of arguments and empties it.

    Args:
        gm: the graph; symbolic sizes are ordinary int arguments of it.
        examples: fake tensors and SymInts, one per placeholder.
        static: numbers of the arguments whose memory does not change from call to call (parameters, buffers).
    """

    def __init__(self, gm: torch.fx.GraphModule, examples: Sequence[Any], static: frozenset[int] = frozenset()):
        self._boxed_call = True  # on the instance: Dynamo's wrappers copy its dictionary
        self._gm = gm
        self._static = static
        self._numbers = [i for i, example in enumerate(examples) if not isinstance(example, torch.Tensor)]
        self._programs: dict[tuple, Callable[[list[Any]], list[Any]]] = {}
        self._device = _device_of(gm, examples)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        # Dynamo's guards hold all sizes but the symbolic ones, which are arguments
        key = tuple([arguments[i] for i in self._numbers])
        run = self._programs.get(key)
        if run is None:
            run = self._programs[key] = self._compile(arguments)
        return run(arguments)

    def _compile(self, arguments: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        device = self._device() if callable(self._device) else self._device
        specs = [
            TensorSpec.like(device, torch.empty_like(argument, device="meta"))
            if isinstance(argument, torch.Tensor)
            else argument
            for argument in arguments
        ]
        program = fx.trace(self._gm, specs, device)
        runner = host.HostRun if device.torch_device.type != "xla" else DeviceRun
        return runner(program, compiler.executable(program.graph), self._static)


def _device_of(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
    """Where the graph runs: on the xla device that its tensors name, else on the memory of the tensors it is given."""
    seen = [example.device for example in examples if isinstance(example, torch.Tensor)]
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        seen += [leaf.device for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    xla = {found for found in seen if found.type == "xla"}
    if len(xla) > 1:
        raise NotImplementedError(
            f"one compiled graph works on several xla devices ({', '.join(map(str, sorted(xla, key=str)))}): "
            "compile one function per device"
        )
    if xla:
        return lambda: xla_devices.get(next(iter(xla)))
    others = {found for found in seen if found.type != "cpu"}
    return lambda: xla_devices.host(next(iter(others), torch.device("cpu")))


class DeviceRun:
    """Runs a program on xla tensors; CPU tensors among the arguments are copied to the device."""

    def __init__(self, program: fx.Program, executable: compiler.Executable, static: frozenset[int]):
        self._program = program
        self._executable = executable
        self._device = program.graph.device

    def __call__(self, arguments: list[Any]) -> list[Any]:
        program, device = self._program, self._device
        arrays = [
            self._array(arguments[leaf]) if type(leaf) is int else leaf.handle.value.array  # type: ignore[union-attr]
            for leaf in program.leaves
        ]
        seeds = device.random.draw(program.seeds) if program.seeds else ()
        results = self._executable(arrays, (), seeds)
        metrics.count("ExecuteComputation")
        handles: dict[int, XLATensor] = {}

        def tensor(output: fx.Output) -> Any:
            if output.spec is None:
                return output.value
            if output.result is not None:
                made = handles.get(output.result)
                if made is None:
                    made = handles[output.result] = from_array(results[output.result], output.spec)
                else:
                    made = make(made.handle, output.spec)
            elif output.argument is not None:
                source = arguments[output.argument]
                if source.device.type != "xla":
                    source = transfer.to_device(source, device)
                made = make(unwrap(source).handle, output.spec)
            else:
                made = make(output.value.handle, output.spec)
            if output.device is not None and output.device.type != "xla":
                return transfer.to_host(made)
            return torch._to_functional_tensor(made)

        for number, output in program.mutations:
            _write(arguments[number], tensor(output))
        outputs = [tensor(output) for output in program.outputs]
        arguments.clear()
        return outputs

    def _array(self, argument: torch.Tensor) -> jax.Array:
        if argument.device.type != "xla":
            return transfer.upload(argument, self._device)
        value = unwrap(argument).handle.value
        if value.array is None:
            metrics.count("DynamoSyncInputExecuteTime")
            execute.sync(self._device)
        return value.array  # type: ignore[return-value]


def _write(target: torch.Tensor, source: torch.Tensor) -> None:
    """What `target.copy_(source)` does, for tensors that may require a gradient."""
    with torch.no_grad():
        target.copy_(source)
