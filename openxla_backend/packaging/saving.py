"""A call becomes a file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from lazy_runtime.cache import disk_program
from lazy_runtime.cache.disk_key import UncacheableError
from lazy_runtime.common import interrupts
from lazy_runtime.compilation import compiler
from lazy_runtime.compilation.plan import CompilePlan
from lazy_runtime.tensor import host_arrays
from lazy_runtime.tensor.xla_tensor import XLATensor

from ..compiled import CompiledGraph, device_of
from ..graph import fx
from ..graph.outputs import Argument
from ..inference import constant_hoisting
from . import archive, program, requirements
from .capture import Captured, capture


class Package(NamedTuple):
    """What was written.

    Attributes:
        path: the file.
        digest: what names it, `sha256:...`: tell it to those who load it with another key than yours.
    """

    path: str
    digest: str


def package(
    function: Callable[..., Any],
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    key: bytes | None = None,
) -> Package:
    """Compiles a call and writes its machine code and weights to a file, which `load` calls in another process: with no
    Dynamo, no tracing and no compile, and without the Python code of the function.

    Inference alone: the loaded function knows no gradients. Its results are tensors of their own. Buffers that the call
    writes to (a cache of keys, running statistics) start with what they hold now.

    Args:
        function: a module or a function, or what `torch.compile` made of one. Its tensors are all on the CPU or all on
            one xla device.
        args, kwargs: what it is called with here. Calls of the loaded function have tensors of these sizes, dtypes and
            devices, and the same numbers and strings.
        path: the file; one that is there is replaced when the new one is complete.
        key: what the package is signed with; the user's own key by default (`load`).

    Raises:
        NotImplementedError: the call does what a package cannot hold; the message says what.
        TypeError: an argument or a result is no tensor, number or string, and no list, dict or dataclass of them.
    """
    captured = capture(function, tuple(args), kwargs or {})
    contents = contents_of(captured)
    return Package(os.fspath(path), archive.write(path, contents, key))


def contents_of(captured: Captured) -> archive.Contents:
    """A captured call, compiled.

    Raises:
        NotImplementedError: see `package`.
    """
    _check(captured)
    device = device_of(captured.gm, captured.examples)()
    requirements.refuse_grid(device)
    with torch.no_grad(), interrupts.deferred():
        parts = constant_hoisting.split(captured.gm, frozenset(captured.state), freezing=True)
        if parts is None:
            graph, examples = captured.gm, captured.examples
            arguments = [_argument(captured, number) for number in range(len(examples))]
            kept: list[torch.Tensor] = []
        else:
            graph, examples = parts.always, [*(captured.examples[number] for number in parts.others), *parts.examples]
            once = CompiledGraph(parts.once, [captured.examples[number] for number in parts.parameters])
            kept = once([captured.state[number][1] for number in parts.parameters])
            arguments = [_argument(captured, number) for number in parts.others]
            arguments += [["weight", f"computed.{number}"] for number in range(len(kept))]
        traced = fx.trace(graph, examples, device, captured.visible, captured.aliases)
        plan = _Plan(traced.graph)
        executable = compiler.compile_graph(plan, keep_unused=True)
    written = {number for number, _ in traced.mutations} | {write.number for write in traced.partial_writes}
    for kind, numbers in (("kept", _given_on(traced)), ("state", written)):
        for number in numbers:
            if arguments[number][0] != "input":
                arguments[number][0] = kind
    weights, leaves = _weights(traced, arguments, captured, kept)
    described = {
        "arguments": captured.arguments,
        "parameters": list(captured.parameters),
        "results": captured.results,
        "inputs": _inputs(captured),
        "device": device.torch_device.type,
        "program": program.describe(traced, executable.physical, executable.checks),
        "graph arguments": arguments,
        "graph leaves": leaves,
        "is of kernels": plan.is_of_kernels,
        "custom calls": plan.custom_calls,
        "requires": requirements.of(device),
    }
    return archive.Contents(described, plan.code, weights)


class _Plan(CompilePlan):
    """Takes the compiled program where others write it to the disk."""

    def __init__(self, graph: Any) -> None:
        super().__init__(graph)
        self.code = b""
        self.custom_calls: list[str] = []

    @functools.cached_property
    def place(self) -> Any:
        return self

    def store(self, lowered: jax.stages.Lowered, compiled: jax.stages.Compiled, *_: Any) -> None:
        """What `Place.store` does.

        Raises:
            NotImplementedError: the program calls back into this process.
        """
        try:
            self.custom_calls = disk_program.custom_calls(lowered)
        except UncacheableError as error:
            raise NotImplementedError(
                f"the program cannot leave the process: {error}. An operator that runs in Python is a part of it"
            ) from None
        executable: Any = compiled.runtime_executable()
        self.code = self.graph.device.jax_device.client.serialize_executable(executable)


def _argument(captured: Captured, number: int) -> list[Any]:
    """Where an argument of the graph comes from, and which it is: "input", the caller; "weight", a parameter or buffer
    that is read alone. Of those, "state" is written to, and a result has the value of what is "kept".
    """
    given = captured.inputs[number]
    return ["input", given] if given is not None else ["weight", f"state.{captured.state[number][0]}"]


def _inputs(captured: Captured) -> list[dict[str, Any]]:
    """What the tensors among the arguments look like, in order."""
    found: dict[int, dict[str, Any]] = {}
    for number, example in zip(captured.inputs, captured.examples, strict=True):
        if number is not None:
            found[number] = {"dtype": str(example.dtype).removeprefix("torch."), "shape": list(example.shape)}
    return [found[number] for number in sorted(found)]


def _check(captured: Captured) -> None:
    devices = {example.device for example in captured.examples}
    if len(devices) > 1:
        where = ", ".join(sorted(map(str, devices)))
        raise NotImplementedError(f"the call has tensors on {where}: move the module and its arguments to one of them")
    for name, value in captured.state.values():
        if type(value) is not torch.Tensor:
            raise NotImplementedError(f"{name} is a {type(value).__name__}, of which a package would lose what it is")


def _values(captured: Captured, kept: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters and buffers, and what was computed of them, by their names in the file."""
    state = {f"state.{name}": value for name, value in captured.state.values()}
    return {**state, **{f"computed.{number}": value for number, value in enumerate(kept)}}


def _given_on(traced: fx.Program) -> set[int]:
    """Numbers of the graph's arguments that a result, or what is written, has the value of."""
    sources = [getattr(output, "source", None) for output in traced.outputs]
    sources += [output.source for _, output in traced.mutations]
    sources += [source for write in traced.partial_writes for source in write.read]
    return {source.number for source in sources if isinstance(source, Argument)}


def _weights(
    traced: fx.Program, arguments: Sequence[Sequence[Any]], captured: Captured, kept: Sequence[torch.Tensor]
) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """The tensors of the file, and for each leaf of the graph the argument's number or its tensor's name."""
    values = _values(captured, kept)
    weights: dict[str, torch.Tensor] = {}
    leaves: list[Any] = []
    for place, leaf in enumerate(traced.leaves):
        if isinstance(leaf, XLATensor):
            name = f"constant.{place}"
            weights[name] = host_arrays.from_numpy(np.asarray(leaf.handle.value.array))
        else:
            kind, name = arguments[leaf]
            if kind in ("input", "state"):
                leaves.append(leaf)
                continue
            value = values[name].detach().cpu()
            if place in traced.graph.channels_last:
                name, value = f"channels_last.{name}", value.movedim(1, -1)
            weights[name] = value
        leaves.append(name)
    for kind, name in arguments:
        if kind in ("state", "kept"):
            weights[name] = values[name].detach().cpu()
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in weights.items()}, leaves
