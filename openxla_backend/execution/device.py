"""Runs a program on xla tensors."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import torch

from lazy_runtime.common import metrics
from lazy_runtime.compat.torch import from_functional_tensor as _inner
from lazy_runtime.compat.torch import to_functional_tensor as _outer
from lazy_runtime.compilation import compiler, linearization, lower
from lazy_runtime.debug import graph_saver
from lazy_runtime.execution import execute, transfer
from lazy_runtime.execution.assign import write
from lazy_runtime.ir import lifetimes
from lazy_runtime.ir.graph import Handle, Value
from lazy_runtime.lowering import checks
from lazy_runtime.recording import dispatch
from lazy_runtime.regions import compiling
from lazy_runtime.tensor.xla_tensor import XLATensor, make, unwrap, values_of

from ..graph import fx, origin
from ..graph.outputs import ArgumentItself, Constant, Output, PythonValue, Result, Source, View
from . import asynchronous_load, step
from .step_replay import StepReplay

# the bare C functions: a training step unwraps and wraps hundreds of tensors

#: The values of results, by their numbers.
Handles = Mapping[int, Handle] | Sequence[Handle]

_SAVES_GRAPHS = graph_saver.is_on()


class DeviceRun:
    """Runs a program on xla tensors, asynchronously; CPU tensors among the arguments are copied to the device.

    A training step is one XLA program: its forward and its backward graph are not executed by themselves but become one
    node each of the device's pending graph, and the optimizer's operators follow. What ends the step executes it all:
    a read, a sync, the return of `optimizer.step()` (`step.py`), or the next forward graph.
    """

    def __init__(
        self,
        program: fx.Program,
        compile: Callable[[], compiler.Executable],
        elsewhere: frozenset[int],
        updated: frozenset[int] | None,
        ends_step: bool = False,
    ):
        """Makes the calls of a program.

        Args:
            compile: gives the executable, where the program is run by itself.
            elsewhere: numbers of the arguments that are CPU tensors.
            updated: of a graph of a training step, numbers of the arguments that an optimizer updates between the
                steps; None for an inference graph.
            ends_step: it has the optimizer's update in it.
        """
        self._program = program
        self._compile = compile
        self._device = program.graph.device
        self._arguments = [leaf for leaf in program.leaves if isinstance(leaf, int)]
        self._constants = [leaf.handle.value for leaf in program.leaves if isinstance(leaf, XLATensor)]
        self._order = _positions(program.leaves) if self._constants else None
        self._mixed = not elsewhere.isdisjoint(self._arguments)
        # for each of `_arguments`, whether the executable wants it channels last
        wanted = set(program.graph.channels_last)
        self._channels_last = [n in wanted for n, leaf in enumerate(program.leaves) if isinstance(leaf, int)]
        self._updated = updated
        self._has_run = False
        self._ends_step = ends_step
        self._lines = program.known_lines()
        self._written_specs: list[Any] = [output.spec for _, output in program.mutations]
        self._call = lower.nested_call(program.graph, program.lines, origin.scopes(program))
        compiler.hold(self._call)
        weakref.finalize(self, compiler.let_go, self._call).atexit = False
        self._loading: Future[compiler.Executable] | None = None
        #: what `begin` has started: the values of the arguments, as the weak reference that each has for as long as it
        #: lives, and the results' buffers
        self._begun: tuple[list[Any], Future[list[Any]]] | None = None
        self._taking = threading.Lock()
        self._replay = StepReplay.of(program, self._call, elsewhere) if ends_step else None

    @functools.cached_property
    def _executable(self) -> compiler.Executable:
        found = self._compile() if self._loading is None else self._loading.result()
        self._compile = lambda: found  # lets go of the program's plan, which holds the graph in parts
        return found

    def prepare(self, is_on_disk: bool) -> None:
        """Compiles now what else is compiled when it is first run by itself.

        Args:
            is_on_disk: it has only to be loaded. Another thread does that.
        """
        if is_on_disk:
            self._loading = asynchronous_load.start(self._compile)
        else:
            _ = self._executable

    @property
    def is_loading(self) -> bool:
        """Whether a thread of `prepare` is still at work."""
        return self._loading is not None and not self._loading.done()

    def begin(self, arguments: Sequence[Any]) -> None:
        """Starts what a call with these arguments will ask for, if nobody could tell that no such call has come: the
        first execution of a program takes longer than the next ones, and Dynamo has guards to build before it calls.
        The next call takes the results if each of its arguments still has the value that it has now.
        """
        if self._mixed or _SAVES_GRAPHS or not self._is_without_effects():
            return
        tensors = [arguments[number] for number in self._arguments]
        values = values_of(tensors)
        if all(value.array is not None for value in values):
            arrays = self._arrays(tensors)
            metrics.count("ExecuteComputation")  # here, in the thread that asks: no count changes behind its back
            self._begun = (
                [value.owner for value in values],
                asynchronous_load.start(lambda: self._start(arrays, (), counted=True)),
            )

    def _is_without_effects(self) -> bool:
        program = self._program
        if program.mutations or program.exchanges or program.seeds or program.graph.is_collective:
            return False
        return all(call.is_ours and not call.fallible for call in program.graph.calls)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        program = self._program
        if self._replay is not None and (given := self._replay(arguments)) is not None:
            made: dict[Any, Any] = {}
            outputs = [self._tensor(output, arguments, given, made) for output in program.outputs]
            arguments.clear()
            return outputs
        if not program.graph.calls:  # it gives out its arguments, seen in some way
            handles: list[Handle] = []
        elif self._is_deferred(arguments):
            handles = self._defer(arguments)
        elif self._device.grid is not None:  # how its arguments lie shows now, and is a part of the program
            handles = self._defer(arguments)
            execute.sync(self._device, wanted=())
        else:
            handles = self._execute(arguments)
        began = time.perf_counter_ns()
        made = {}
        # all values first, then the writes: what is written to one argument may be what another one held
        written = [self._handle(output.source, arguments, handles) for _, output in program.mutations]
        outputs = [self._tensor(output, arguments, handles, made) for output in program.outputs]
        exchanged = [(number, self._tensor(output, arguments, handles, made)) for number, output in program.exchanges]
        if written:
            write([arguments[number] for number, _ in program.mutations], written, self._written_specs)
        for number, tensor in exchanged:
            arguments[number].set_(tensor)
        arguments.clear()
        if self._ends_step and not compiling.is_tracing():
            execute.sync(self._device, wanted=())
        metrics.record("RunCachedGraphOutputData", time.perf_counter_ns() - began)
        return outputs

    def _is_deferred(self, arguments: list[Any]) -> bool:
        device = self._device
        if execute.eager:
            return False
        if compiling.is_tracing():  # all that a region of `lazy_runtime.compile` does is one program
            return True
        if self._updated is None:  # an optimizer that is compiled too belongs to the step, an evaluation does not
            return device.deferred and any(_is_pending(arguments[number]) for number in self._arguments)
        if device.deferred and any(_is_pending(arguments[number]) for number in self._updated):
            execute.sync(device, wanted=())  # they have been updated: the step before has ended
        return True

    def _defer(self, arguments: list[Any]) -> list[Handle]:
        began = time.perf_counter_ns()
        tensors = [arguments[number] for number in self._arguments]
        if self._mixed:
            tensors = [x if x.device.type == "xla" else _outer(transfer.to_device(x, self._device)) for x in tensors]
        values = self._in_order(values_of(tensors), self._constants)
        seeds = self._device.random.draw(self._program.seeds) if self._program.seeds else ()
        metrics.record("RunCachedGraphInputData", time.perf_counter_ns() - began)
        if not self._ends_step:  # else Dynamo, whose graph has the optimizer in it, would see a new hook of it
            step.watch_optimizers()
        return dispatch.record_graph(self._call, values, seeds)

    def _execute(self, arguments: list[Any]) -> list[Handle]:
        program = self._program
        began = time.perf_counter_ns()
        tensors = [arguments[number] for number in self._arguments]
        if self._begun is not None:
            with self._taking:  # the results belong to one call
                begun, self._begun = self._begun, None
            if begun is not None and begun[0] == [value.owner for value in values_of(tensors)]:
                return self._handles(begun[1].result())
        arrays = self._arrays(tensors)
        seeds = self._device.random.draw(program.seeds) if program.seeds else ()
        metrics.record("RunCachedGraphInputData", time.perf_counter_ns() - began)
        self._device.raise_failures()
        if _SAVES_GRAPHS:
            self._save(arguments, seeds)
        results = self._start(arrays, seeds)
        self._has_run = True
        return self._handles(results)

    def _start(self, arrays: list[Any], seeds: Sequence[int], counted: bool = False) -> list[Any]:
        """The buffers of the results, which may still be computed."""
        arrays = self._in_order(arrays, [value.array for value in self._constants])
        try:
            return self._executable(arrays, (), seeds, self._lines, counted=counted)
        except checks.KernelError as error:
            raise error.meaning from None

    def _save(self, arguments: list[Any], seeds: Sequence[int]) -> None:
        """Appends the program to the file of graphs."""
        tensors = [arguments[number] for number in self._arguments]
        values = [unwrap(x).handle.value if x.device.type == "xla" else Value(None, 0) for x in tensors]
        graph_saver.save(linearization.of_call(self._call, self._in_order(values, self._constants), seeds))

    def _in_order(self, given: list[Any], constants: list[Any]) -> list[Any]:
        """What stands for the arguments and for the constants, in the order of the program's leaves."""
        if self._order is None:
            return given
        together = given + constants
        return [together[position] for position in self._order]

    def _arrays(self, tensors: list[torch.Tensor]) -> list[Any]:
        if self._mixed:
            return [self._array(tensor, last) for tensor, last in zip(tensors, self._channels_last, strict=True)]
        values = values_of(tensors)
        buffers = list(map(execute.buffer, values))
        for array, _ in buffers:
            if array is None:
                if not execute.takes_pending_inputs and self._has_run:
                    raise RuntimeError(
                        "input data to dynamo graph can not be a pending ir: an argument waits for a program, and "
                        "torch_xla._dynamo.config.skip_input_data_check is set; call torch_xla.sync() before"
                    )
                metrics.count("DynamoSyncInputExecuteTime")
                execute.sync(self._device, wanted=values)
                buffers = list(map(execute.buffer, values))
                break
        return [
            array if array is not None and is_last is last else execute.array_of(value, self._device, last)
            for value, (array, is_last), last in zip(values, buffers, self._channels_last, strict=True)
        ]

    def _array(self, tensor: torch.Tensor, channels_last: bool) -> jax.Array:
        if tensor.device.type != "xla":
            return transfer.upload(tensor, self._device)
        value = unwrap(tensor).handle.value
        if value.array is None:
            metrics.count("DynamoSyncInputExecuteTime")
        return execute.array_of(value, self._device, channels_last)

    def _handles(self, results: list[Any]) -> list[Handle]:
        """The values of the executable's results. One each, whoever shows it: who holds a value decides whether its
        buffer is donated.
        """
        handles = []
        for array, channels_last in zip(results, self._executable.physical, strict=True):
            value = Value(None, 0, array)
            value.channels_last = channels_last
            handles.append(Handle(value))
        lifetimes.bound(len(handles))
        return handles

    def _handle(self, source: Source, arguments: list[Any], handles: Handles) -> Handle:
        """The value of an output, which nobody writes to."""
        if isinstance(source, Result):
            return handles[source.number]
        if isinstance(source, Constant):
            return source.tensor.handle
        argument = arguments[source.number]
        if argument.device.type != "xla":
            argument = transfer.to_device(argument, self._device)
        return unwrap(argument).handle

    def _tensor(self, output: Output, arguments: list[Any], handles: Handles, made: dict[Any, Any]) -> Any:
        """What the user gets."""
        if isinstance(output, PythonValue):
            return output.value
        if isinstance(output, ArgumentItself):
            return arguments[output.source.number]
        handle = self._handle(output.source, arguments, handles)
        if output.device.type != "xla":
            return transfer.to_host(make(handle, output.spec))
        if isinstance(output, View):
            base = self._tensor(output.base, arguments, handles, made)
            return self._view(output, output.seen_base(base, made), handle)
        if output.memory is None:
            return _outer(make(handle, output.spec))
        tensor = made.get(output.memory)
        if tensor is None:
            tensor = made[output.memory] = _outer(make(handle, output.spec))
        return tensor

    def _view(self, output: View, base: torch.Tensor, handle: Handle) -> torch.Tensor:
        """A view in torch's books, whose value the program has computed along with its base."""
        with dispatch.Trace(self._device), torch.no_grad():
            view = output.of(base)
        _inner(view).handle = handle
        return view


def _is_pending(tensor: Any) -> bool:
    return tensor.device.type == "xla" and unwrap(tensor).handle.value.array is None


def _positions(leaves: tuple[Any, ...]) -> list[int]:
    """Where each leaf stands once the constants have been put behind the arguments."""
    number = sum(isinstance(leaf, int) for leaf in leaves)
    argument, constant = iter(range(number)), iter(range(number, len(leaves)))
    return [next(argument if isinstance(leaf, int) else constant) for leaf in leaves]
