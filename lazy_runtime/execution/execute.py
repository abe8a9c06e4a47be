"""Runs what is pending on a device: graph to executable, results bound to the live tensors."""

from __future__ import annotations

import operator
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ..common import config, forking, interrupts, metrics, output, source_locations
from ..common.skipped_by_dynamo import skip
from ..compilation import compiler, deferred_views, linearization, lower
from ..compilation.plan import CompilePlan
from ..debug import compiling, graph_saver, graphs
from ..ir import dtypes, lifetimes, scalar_deduplication
from ..ir.graph import Handle, Node, Value
from ..lowering import checks
from ..platform.xla_devices import Device
from ..tensor import sharding
from . import op_by_op, recorders

#: Eager mode: every operator is executed as soon as it is recorded.
eager = config.eager()

_SYNC_WAITS = config.sync_waits()
_ONE_BY_ONE = {reading: config.op_by_op(reading) for reading in (False, True)}
_SAVES_GRAPHS = graph_saver.is_on()
_NAMES_LINES = config.hlo_debug()
_REPORTS = output.level() > 0

#: Called with what is about to cut the pending graph in two (a read, a sync): `experimental.compiling` raises from it
#: where a graph must stay whole.
before_cut: Callable[[str], None] | None = None

#: Whether programs may be executed. While they may not, what is pending stays so, and whoever asks for it is told.
is_allowed = True

#: Whether a compiled function executes what its arguments wait for, and else raises.
takes_pending_inputs = True

#: Options of the XLA compiler for all programs of the device that have none of their own.
options: dict[str, Any] = {}

#: Called before what is pending is executed: messages to other ranks that nobody waited for are recorded then
#: (`torch_xla/distributed/point_to_point.py`).
before_run: Callable[[], None] | None = None


class _Growing(Protocol):
    """See `growing.py`."""

    def set_apart(self, device: Device, pending: list[Node]) -> tuple[list[Node], list[Node]]: ...

    def finish(self, device: Device, left: list[Node]) -> None: ...


#: What computes integer tensors that grow with each turn of a loop, once there are any.
growing: _Growing | None = None


#: How many operators may be pending on a device before a warning says where they began. A graph of so many takes XLA
#: minutes to compile: it is a loop that neither syncs nor reads.
pending_limit = 100_000


def warn_of_length(device: Device) -> None:
    """Warns of a pending graph that nobody seems to execute."""
    warnings.warn(
        f"{len(device.pending)} operators are pending on {device.torch_device}, the first of them recorded at "
        f"{device.began or 'no known line'}: call lazy_runtime.sync() at the end of each step",
        RuntimeWarning,
        stacklevel=3,
    )


class NotAllowedError(RuntimeError):
    """Something is to be executed while nothing may be (`is_allowed`)."""


class _Thread(threading.local):
    """What is true of the calling thread.

    Attributes:
        options: of the XLA compiler, for what the calling thread executes.
    """

    options: tuple[tuple[str, Any], ...] = ()


thread = _Thread()


def is_unobserved() -> bool:
    """Whether nobody asks to see what is recorded and when it is executed, so that a program need not go that way."""
    asked = eager or _SYNC_WAITS or _SAVES_GRAPHS or _NAMES_LINES or _REPORTS or any(_ONE_BY_ONE.values())
    return not asked and not source_locations.keep and before_run is None


@skip
def sync(device: Device, wait: bool = False, wanted: Collection[Value] | None = None, ends_step: bool = False) -> None:
    """Executes everything pending on `device` as one program, asynchronously unless `wait`.

    Tensors that nobody can read any more are not computed, and their buffers are reused for the outputs.

    Args:
        wanted: values that are read, or none where a step ends: nobody asked for a sync. What other threads have
            recorded stays pending, but for what is needed of it (`recorders.py`). None if somebody did ask.
        ends_step: somebody asked, at the end of a step. What other threads that end steps have recorded stays pending.

    Raises:
        what went wrong in an earlier execution (`checks.py`): what is pending stays pending.
        what goes wrong in this one: no later program meets it again, but for those that need a value of it.
    """
    device.raise_failures()
    if before_run is not None:
        before_run()
    asked = time.perf_counter_ns()
    if not is_allowed and device.pending:
        raise NotAllowedError(
            "Unexpected execution happens inside the compiled function, exiting: "
            f"{len(device.pending)} operators are pending on {device.torch_device}, and nothing may be executed now "
            "(_XLAC._set_allow_execution)"
        )
    with device.lock:
        if device.pending and not eager:
            now = time.perf_counter_ns()
            metrics.record("DeviceLockWait", now - asked)
            metrics.record("LazyTracing", asked - device.began_ns)
        pending = recorders.take(device, wanted, ends_step)
        left: list[Node] = []
        try:
            if growing is not None and device.grid is None and not eager:
                pending, left = growing.set_apart(device, pending)
                device.pending[:0] = left
            if pending and _ONE_BY_ONE[bool(wanted)]:
                for node in op_by_op.nodes(pending):
                    _run(device, [node])
            elif pending:
                _run(device, pending)
            if left and growing is not None:
                device.began_ns = time.perf_counter_ns()
                growing.finish(device, _wanted(left, wanted))
        except lower.LoweringError as error:
            # the rest is not lost with it
            failed = {node for node in pending if node.call is error.call}
            device.pending[:0] = _without(failed, pending) if failed else ()  # none: a node that they read
            raise
        except _KernelError as error:
            device.pending[:0] = _without({error.node}, pending)
            raise error.meaning from None
        except Exception:
            _set_aside([*pending, *left])
            for node in left:
                device.pending.remove(node)
            raise
        except BaseException:  # an interrupt: nothing is wrong with what has not been executed
            device.pending[:0] = [node for node in pending if _is_open(node)]
            raise
        finally:
            while pending:  # newest first: nothing else holds it, so a long chain is not freed by deep recursion
                pending.pop()
    if wait or _SYNC_WAITS:
        device.wait()


def _wanted(left: list[Node], wanted: Collection[Value] | None) -> list[Node]:
    """What is asked for of nodes that stay pending, with what that needs of them; all of them if nobody says."""
    if wanted is None:
        return left
    found = {value.node for value in wanted}
    for node in reversed(left):
        if node in found:
            found.update([value.node for value in node.inputs])
    return [node for node in left if node in found]


def array_of(value: Value, device: Device, channels_last: bool = False) -> jax.Array:
    """The value's device buffer, after running what is pending if it has none yet.

    Args:
        channels_last: the order of dimensions that it is wanted in; by default torch's.
    """
    found, is_last = buffer(value)
    if found is not None and is_last is channels_last:
        return found
    if found is None:
        _compute(value, device)
    with device.lock:  # one thread at a time; `buffer` sees the old order, the new one, or nothing
        found, is_last = buffer(value)
        if found is None:
            raise RuntimeError("the tensor has no value: the program that was to compute it failed")
        if is_last is not channels_last:
            with dtypes.x64():
                found = jnp.moveaxis(found, 1, -1) if channels_last else jnp.moveaxis(found, -1, 1)
            value.array = None
            value.channels_last = channels_last
            value.array = found
    return found


#: The buffer of a value and whether it is channels last, both as of one moment.
buffer: Callable[[Value], tuple[jax.Array | None, bool]] = operator.attrgetter("array", "channels_last")


def _compute(value: Value, device: Device) -> None:
    """Executes what gives a value its buffer."""
    if deferred_views.is_deferred(value):
        with device.lock:
            if value.node is not None and value.node not in device.pending:
                _run(device, [value.node])
    if value.array is None:
        if before_cut is not None:
            before_cut("a value is read")
        sync(device, wanted=(value,))
    if value.array is None:
        with device.lock:
            if value.array is None and value.node is not None:  # of a program that failed: whoever reads it is told why
                _run_alone(device, value.node)


@skip
def run_at_once(device: Device, node: Node) -> None:
    """Executes one operator, in eager mode.

    Raises:
        what goes wrong in it, and what went wrong in an earlier execution.
    """
    device.raise_failures()
    with device.lock:
        if device.pending or before_run is not None:
            device.pending.append(node)
            sync(device)
        else:
            _run_alone(device, node)
    if _SYNC_WAITS:
        device.wait()


def _run_alone(device: Device, node: Node) -> None:
    """Executes one operator, and what it needs of operators that are on no list."""
    try:
        _run(device, [node])
    except _KernelError as error:
        raise error.meaning from None
    except Exception:
        _set_aside([node])
        raise


class _KernelError(Exception):
    """A kernel that a program calls has failed before control returned.

    Attributes:
        node: its call.
        meaning: what the user gets.
    """

    def __init__(self, node: Node, meaning: Exception):
        super().__init__(str(meaning))
        self.node = node
        self.meaning = meaning


def _without(failed: set[Node], pending: Sequence[Node]) -> list[Node]:
    """The pending nodes but for the failed ones, what depends on them, and what reads a buffer that was donated to the
    failed program.
    """
    lost: set[Node | None] = set(failed)
    for node in pending:
        for value in node.inputs:
            if value.node in lost if value.node is not None else value.array is None or value.array.is_deleted():
                lost.add(node)
    _set_aside([node for node in pending if node in lost])
    return [node for node in pending if node not in lost]


def _set_aside(nodes: Sequence[Node]) -> None:
    """What the nodes of a failed program read keeps its buffer. They are on no list any more; whoever needs a value of
    theirs, by reading it or in another program, has it computed then (`linearization.linearize`).
    """
    for node in nodes:
        for value in node.inputs:
            if value.node is None:
                value.pinned = True


def _is_open(node: Node) -> bool:
    """Whether a node has not been executed, as far as somebody can tell."""
    handles = [owner() for owner in node.outputs if owner is not None]
    return not node.outputs or any(handle is not None and handle.value.node is node for handle in handles)


def _run(device: Device, pending: Sequence[Node]) -> None:
    chosen = tuple(sorted({**options, **dict(thread.options)}.items())) if options else thread.options
    numbered = linearization.linearize(device, pending, True, chosen, others=device.pending)
    graph, leaves, live, nodes = numbered
    if not nodes:
        return
    if _SAVES_GRAPHS:
        graph_saver.save(numbered)
    ints = [number for node in nodes for number in node.ints]
    keep_layout: frozenset[int] | None = None
    if device.grid is not None:
        graph, keep_layout = sharding.place(graph, leaves, live), frozenset()  # shardings are of torch's dimensions
    plan = None
    if eager or _NAMES_LINES:
        plan = CompilePlan(graph, keep_layout, graphs.scopes(nodes) if _NAMES_LINES else (), eager)
    executable = compiler.executable(graph, keep_layout, plan=plan)
    floats = scalar_deduplication.values(nodes, executable.graph)
    new = executable.is_new
    if new:
        compiling.ready(executable, compiling.of_pending("eager" if eager else "lazy", nodes, leaves))
    began = time.perf_counter_ns()
    with interrupts.deferred():  # once a program has the buffers that are donated to it, its results must be kept
        _bind(live, _start(executable, leaves, floats, ints, nodes), executable.physical)
    lifetimes.bound(len(live))
    if eager:
        if new:
            metrics.record("EagerOpCompileTime", executable.compile_ns)
            metrics.count("EagerOpCompileTime")
        metrics.record("EagerOpExecuteTime", time.perf_counter_ns() - began)
        metrics.count("EagerOpExecuteTime")
        if executable.fallible:
            device.wait()
    else:
        metrics.count("UncachedSyncTensors" if new else "CachedSyncTensors")
        metrics.record("TensorsGraphSize", sum([node.call.operators for node in nodes]), metrics.Unit.VALUE)


def _start(
    executable: compiler.Executable,
    leaves: Sequence[Value],
    floats: Sequence[float],
    ints: Sequence[int],
    nodes: Sequence[Node],
) -> list[Any]:
    """The buffers of a program's results, which may still be computed."""
    users = {number: nodes[number].line for number in executable.located}
    try:
        return executable([value.array for value in leaves], floats, ints, users, timed=not eager)  # type: ignore[misc]
    except checks.KernelError as error:
        raise _KernelError(nodes[error.call], error.meaning) from None
    except jax.errors.JaxRuntimeError:
        raise
    except Exception as error:
        if any(value.array is None or value.array.is_deleted() for value in leaves):
            raise RuntimeError(
                "a tensor that this program reads has no value: the program that was to compute it, or that had its "
                "buffer, failed"
            ) from error
        raise


def _bind(live: Sequence[Handle], arrays: Sequence[jax.Array], physical: Sequence[bool]) -> None:
    """Gives the values of a program's results their buffers."""
    for handle, array, channels_last in zip(live, arrays, physical, strict=True):
        value = handle.value
        value.channels_last = channels_last  # first: other threads look for the buffer (`array_of`)
        value.array = array
        if source_locations.keep:
            value.line = source_locations.parse(getattr(value.node, "line", ""))
        value.node = None


forking.refuse_in_child(sys.modules[__name__], "sync", "array_of")
