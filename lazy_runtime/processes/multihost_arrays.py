"""Arrays over the devices of several processes (SPMD): each process has parts or copies of every one.

What jax does with them takes all processes, which know nothing of each other: a program runs when each has started it.
So each start is compared like a collective (`collective_checker.py`), with what the program does for its text. What
needs no program, as an upload, is each process's own affair; whether all have put the same there is compared when a
program first takes it.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ..cache import disk_key
from ..common import errors
from ..compat.jaxlib import device_assignment_of
from ..ir import dtypes
from . import process_job, watchdog
from .collective_log import Collective, Program

if TYPE_CHECKING:
    from ..ir.graph import Graph


# ---- arrays


def put(host: np.ndarray, sharding: Sharding) -> jax.Array:
    """An array with the elements of one that every process has."""
    if sharding.is_fully_addressable:
        return jax.device_put(host, sharding)
    # not `device_put`, for which the processes would meet and compare
    array = jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
    if array.is_fully_replicated:
        key = id(array)
        _unseen[key] = weakref.ref(array, lambda _: _unseen.pop(key, None))
    return array


_unseen: dict[int, weakref.ref[jax.Array]] = {}  # copies in every process that nobody has compared


def put_part(part: np.ndarray, sharding: Sharding, shape: Sequence[int]) -> jax.Array:
    """An array of which this process has some rows, and each other one as many others.

    Args:
        shape: of all.

    Raises:
        ValueError: see `own_rows`.
    """
    first = own_rows(sharding, tuple(shape)).start

    def of_device(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(shape[0])
        return part[(slice(start - first, stop - first), *index[1:])]

    return jax.make_array_from_callback(tuple(shape), sharding, of_device)


@functools.lru_cache(1024)
def own_rows(sharding: Sharding, shape: tuple[int, ...]) -> range:
    """The rows that this process's devices have.

    Raises:
        ValueError: the processes do not have an equal number each, in one piece, and no two of them the same.
    """
    of_process: dict[int, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        start, stop, _ = index[0].indices(shape[0])
        of_process.setdefault(device.process_index, set()).update(range(start, stop))
    count = len(of_process)
    each = [range(min(rows), max(rows) + 1) if rows else range(0) for rows in of_process.values()]
    if any(len(rows) * count != shape[0] for rows in each) or len(set().union(*of_process.values())) != shape[0]:
        has = ", process ".join(f"{process} {_pieces(rows)}" for process, rows in sorted(of_process.items()))
        raise ValueError(
            f"ShardingSpec(minibatch=True): each of {count} processes loads other rows, but the devices of each do not "
            f"have rows of their own, in one piece. Of {shape[0]} rows process {has.replace(' ', ' has ', 1)}: cut the "
            "batch along the axis of the mesh that leads from process to process, or load all of it in each process, "
            "with minibatch=False"
        )
    own = of_process[jax.process_index()]
    return range(min(own), max(own) + 1)


def _pieces(rows: set[int]) -> str:
    ordered = sorted(rows)
    starts = [row for row in ordered if row - 1 not in rows]
    stops = [row for row in ordered if row + 1 not in rows]
    return " and ".join(f"{start} to {stop}" for start, stop in zip(starts, stops, strict=True))


def moved(array: jax.Array, sharding: Sharding) -> jax.Array:
    """The array in another sharding."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    if array.is_fully_addressable:  # one of before `use_spmd`, say, which every process has
        return put(np.array(array), sharding)
    if array.is_fully_replicated:
        return put(np.array(array.addressable_data(0)), sharding)
    return _together(array, sharding)


def whole(array: jax.Array) -> jax.Array:
    """An array that this process can read: itself, or one that is made now, of which each device has all. Then all
    processes have to come here.
    """
    if array.is_fully_addressable or array.is_fully_replicated:
        return array
    lies: Any = array.sharding
    # of a form that only XLA knows, as a slice's may be, jax has the devices in order
    mesh = lies.mesh if isinstance(lies, NamedSharding) else Mesh(np.array(device_assignment_of(lies)), ("all",))
    return _together(array, NamedSharding(mesh, PartitionSpec()))


def local(array: jax.Array, device: Any) -> jax.Array:
    """All of an array on one device of this process."""
    if array.is_fully_addressable:
        return jax.device_put(array, device)
    return next(part.data for part in whole(array).addressable_shards if part.device == device)


def _together(array: jax.Array, sharding: Sharding) -> jax.Array:
    text = f"move({array.dtype}{list(array.shape)} from {_form(array.sharding)} to {_form(sharding)})"
    with dtypes.x64():
        (result,) = run(lambda found: [_mover(sharding)(found)], [array], _program(text))
    return result


def _form(sharding: Any) -> str:
    return str(getattr(sharding, "spec", "")) or str(sharding)


@functools.lru_cache(256)
def _mover(sharding: Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda array: array, out_shardings=sharding)


# ---- programs


def of_graph(graph: Graph) -> Program:
    """What the other processes are told of a program."""
    calls = [inner for call in graph.calls for inner in (call.nested.graph.calls if call.nested else [call])]
    names = [call.name.removeprefix("aten::") for call in calls]
    results = ", ".join(map(str, graph.output_specs()))
    return _program(f"program({', '.join(names)}) -> [{results}], {_digest(graph)}")


def _digest(graph: Graph) -> str:
    kept = graph._replace(donated=())  # which buffers are reused is each process's own affair
    try:
        return disk_key.program(kept, frozenset())[:16]
    except disk_key.UncacheableError:  # an operator of the user's own, say
        return hashlib.sha256(f"{kept}{kept.placements}{kept.results}".encode()).hexdigest()[:16]


@functools.lru_cache(4096)
def _program(text: str) -> Program:
    return Program([Collective(0, text, "")], range(process_job.process_place().size))


def run(compiled: Callable[..., Any], arguments: Sequence[Any], program: Program, smallest: int = 0) -> Any:
    """Runs a program in this process.

    Args:
        smallest: number of a result that is looked at to know whether it has been executed.

    Raises:
        MismatchError: another process has come to something else.
    """
    entry = watchdog.begin(_with_values(program, arguments), {0: errors.user_line()})
    results: Sequence[Any] = ()
    try:
        results = compiled(*arguments)
    except Exception as error:
        if hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(f"in {entry}: another process has failed, or come to something else")
        raise
    finally:
        entry.started(results[smallest] if results else None)
    return results


def _with_values(program: Program, arguments: Sequence[Any]) -> Program:
    """The program, the first time along with what every process should have put there alike."""
    if program in _run_before:
        return program
    _run_before.add(program)
    tensors, numbers = hashlib.sha256(), hashlib.sha256()
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            numbers.update(argument.tobytes())
        elif _unseen.pop(id(argument), None) is not None:
            tensors.update(np.ascontiguousarray(argument.addressable_data(0)).reshape(-1).view(np.uint8).data)
    (collective,) = program.collectives
    text = f"{collective.text}, of tensors {tensors.hexdigest()[:8]} and numbers {numbers.hexdigest()[:8]}"
    return Program([collective._replace(text=text)], program.ranks)


_run_before: weakref.WeakSet[Program] = weakref.WeakSet()
