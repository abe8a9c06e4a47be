"""A training step that is one graph and repeats itself: executed without being recorded.

Elsewhere such a graph becomes a node of the pending graph, with a handle for each of its results; these are written to
the arguments, and what is pending is numbered and executed (`device.py`). A step of resnet18 makes and frees a dozen
objects for each of 184 tensors so, in memory that the execution before has pushed out of the caches. When the graph has
been through that, and nobody else holds what it writes to, its next execution is known: the same executable, whose
results take the place of what was donated.
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import torch

from lazy_runtime.common import config, interrupts, metrics
from lazy_runtime.common.errors import user_line
from lazy_runtime.compilation import compiler, linearization
from lazy_runtime.execution import execute, transfer
from lazy_runtime.ir import lifetimes
from lazy_runtime.ir.graph import Call, Handle, Value
from lazy_runtime.lowering import checks
from lazy_runtime.regions import compiling
from lazy_runtime.tensor.xla_tensor import XLATensor, rebind, values_of

from ..graph import fx
from ..graph.outputs import Output, OwnTensor, Result, View, result_of

_ours: Any = torch.ops.lazy_runtime


class _Written(NamedTuple):
    """The arguments that a step writes to, all of them alone with their memory.

    Attributes:
        tensors: the user's.
        inner: what is inside of each.
        roots: what the memory of each holds, None where that is `inner`.
        values: of each.
    """

    tensors: list[torch.Tensor]
    inner: list[XLATensor]
    roots: list[XLATensor | None]
    values: list[Value]


class StepReplay:
    """Executes a program as `DeviceRun` would, if all is as it was; makes nothing and changes nothing if it is not."""

    def __init__(self, program: fx.Program, call: Call, elsewhere: frozenset[int]):
        self._device = program.graph.device
        self._call = call
        self._seeds = program.seeds
        self._targets = [number for number, _ in program.mutations]
        targets = {*self._targets}
        read = [leaf for leaf in program.leaves if isinstance(leaf, int) and leaf not in targets]
        self._elsewhere = [number for number in read if number in elsewhere]
        self._read = [number for number in read if number not in elsewhere]
        self._constants = [leaf.handle.value for leaf in program.leaves if isinstance(leaf, XLATensor)]
        self._order = _order(program.leaves, [*self._targets, *self._elsewhere, *self._read])
        written: list[Any] = [result_of(output) for _, output in program.mutations]
        given = {result for output in program.outputs if (result := result_of(output)) is not None}
        live = sorted({*written, *given})
        places = {result: place for place, result in enumerate(live)}
        #: for each of `_targets`, which of the executable's results it gets
        self._written = [places[result] for result in written]
        self._given = [(result, places[result]) for result in sorted(given)]
        self._is_live = tuple([result in places for result in range(len(call.outputs))])
        # nobody else has what is copied to the device for one call
        dead = targets | elsewhere
        self._is_dead = tuple([isinstance(leaf, int) and leaf in dead for leaf in program.leaves])
        self._known: dict[tuple[Any, ...], weakref.ref[compiler.Executable]] = {}

    @classmethod
    def of(cls, program: fx.Program, call: Call, elsewhere: frozenset[int]) -> StepReplay | None:
        """None if the program gives something out or writes something that has to be looked at each time.

        Args:
            elsewhere: numbers of the arguments that are CPU tensors.
        """
        targets = [number for number, _ in program.mutations]
        written = [result_of(output) for _, output in program.mutations]
        given = [result_of(output) for output in program.outputs]
        if not targets or program.exchanges or None in written or not all(map(_is_simple, program.outputs)):
            return None
        if len({*targets}) < len(targets) or len({*written}) < len(written) or not {*written}.isdisjoint(given):
            return None
        if call.collective or not {*targets} <= {leaf for leaf in program.leaves if isinstance(leaf, int)}:
            return None
        return cls(program, call, elsewhere)

    def __call__(self, arguments: Sequence[Any]) -> dict[int, Handle] | None:
        """Executes the program and writes to the arguments.

        Returns:
            the handles of what it gives out, by number of the result; None if nothing was done.

        Raises:
            what went wrong in an earlier execution, and what torch's kernels raise in this one.
        """
        if not _may_execute(self._device):
            return None
        began = time.perf_counter_ns()
        with self._device.lock:
            executable = self._executable()
            if executable is None or self._device.pending:
                return None
            written = self._find_written(arguments)
            arrays = None if written is None else self._arrays(arguments, written.values)
            if written is None or arrays is None or self._device.pending:  # by another thread, meanwhile
                return None
            self._device.raise_failures()
            metrics.record("RunCachedGraphInputData", time.perf_counter_ns() - began)
            with interrupts.deferred():  # the program has the buffers of what it writes to
                results = self._run(executable, arrays, written)
                began = time.perf_counter_ns()
                self._write(written, results)
        handles = self._handles(executable, results)
        metrics.record("RunCachedGraphOutputData", time.perf_counter_ns() - began)
        return handles

    def _executable(self) -> compiler.Executable | None:
        """What has been executed when all was as it is to be now."""
        options, donates = execute.thread.options, config.donation()
        known = self._known.get((options, donates))
        found = None if known is None else known()
        if found is None:
            no_layout = (False,) * len(self._is_dead)
            key = linearization.key_of_single_call(self._is_live, self._is_dead, no_layout, donates, options)
            graph = self._call.nested.alone.get(key)  # type: ignore[union-attr]
            found = None if graph is None else compiler.known(graph, None)
            if found is None or found.is_new or any(found.physical[place] for place in self._written):
                return None
            self._known[options, donates] = weakref.ref(found)
        return found

    def _find_written(self, arguments: Sequence[Any]) -> _Written | None:
        """None if somebody else holds one of the values."""
        tensors = [arguments[number] for number in self._targets]
        inner, roots = _ours.values_alone(tensors, True)
        if len(inner) < len(tensors):
            return None
        handles = [tensor.handle for tensor in inner]
        if list(map(sys.getrefcount, handles)) != [_LONE if root is None else _LONE + 1 for root in roots]:
            return None
        values = [handle.value for handle in handles]
        if True in [value.pinned or value.channels_last for value in values]:
            return None
        return _Written(tensors, inner, roots, values)

    def _arrays(self, arguments: Sequence[Any], written: Sequence[Value]) -> list[Any] | None:
        """The buffers of the program's leaves; None if one is missing, twice there, or in another order."""
        read = [*values_of([arguments[number] for number in self._read]), *self._constants]
        if len(set(read)) < len(read) or any(value.channels_last for value in read):
            return None
        copied = [transfer.upload(arguments[number], self._device) for number in self._elsewhere]
        together = [*[value.array for value in written], *copied, *[value.array for value in read]]
        arrays = [together[place] for place in self._order]
        return None if type(None) in map(type, arrays) else arrays

    def _run(self, executable: compiler.Executable, arrays: list[Any], written: _Written) -> list[Any]:
        seeds = self._device.random.draw(self._seeds) if self._seeds else ()
        users = {number: user_line() for number in executable.located}
        try:
            results = executable(arrays, (), seeds, users)
        except (checks.KernelError, jax.errors.JaxRuntimeError) as error:
            for value in written.values:
                if value.array.is_deleted():  # type: ignore[union-attr]
                    value.array = None  # who reads it is told
            if isinstance(error, checks.KernelError):
                raise error.meaning from None
            raise
        for counter in ("CachedCompile", "CachedSyncTensors"):
            metrics.count(counter)
        metrics.record("TensorsGraphSize", self._call.operators, metrics.Unit.VALUE)
        return results

    def _write(self, written: _Written, results: list[Any]) -> None:
        """Each value goes on with another buffer. It gets another handle, which is what others know it by."""
        owner = None
        for tensor, root, value, place in zip(written.inner, written.roots, written.values, self._written, strict=True):
            value.array = results[place]
            owner = value.owner  # while it is there, the end of the old handle is counted
            handle = Handle(value)
            rebind(tensor, handle)
            if root is not None:
                rebind(root, handle)
        del owner
        lifetimes.bound(len(results))
        _ours.count_writes(written.tensors)

    def _handles(self, executable: compiler.Executable, results: list[Any]) -> dict[int, Handle]:
        handles = {}
        for result, place in self._given:
            value = Value(None, 0, results[place])
            value.channels_last = executable.physical[place]
            handles[result] = Handle(value)
        return handles


def _is_simple(output: Output) -> bool:
    """Whether it is a result of the program that nothing else shows, an argument itself, or no tensor."""
    return not isinstance(output, View) and (not isinstance(output, OwnTensor) or isinstance(output.source, Result))


def _may_execute(device: Any) -> bool:
    """Whether a program that is not recorded means the same now."""
    if device.pending or device.grid is not None or not execute.is_unobserved():
        return False
    return not compiling.is_tracing() or compiling.is_traced_whole()


def _order(leaves: Sequence[Any], numbers: Sequence[int]) -> list[int]:
    """For each leaf, where it stands among these arguments and, after them, the constants."""
    places = {number: place for place, number in enumerate(numbers)}
    constants = itertools.count(len(numbers))
    return [places[leaf] if isinstance(leaf, int) else next(constants) for leaf in leaves]


class _Holder:
    """Stands for an `XLATensor`."""

    def __init__(self) -> None:
        self.handle = object()


def _references_of_lone() -> int:
    """What `_find_written` counts for a handle that one tensor holds."""
    holders = [_Holder()]
    handles = [holder.handle for holder in holders]
    return list(map(sys.getrefcount, handles))[0]  # noqa: RUF015  counted as there


_LONE = _references_of_lone()
