"""Ranks that are threads of one process, each of them with one of its devices (`data_parallel.DataParallel`).

Their pending graphs are programs of their own until collectives are in them. XLA runs such a program on all devices of
a process at once, so the threads meet: one of them compiles and starts it with the buffers of all, and each takes what
has come for its device. They have to come with the same program.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from ..common import environment, special_numbers

if TYPE_CHECKING:
    from ..ir.graph import Graph
    from ..platform.xla_devices import Device

#: The mesh axis over ranks, whether they are processes or threads.
AXIS = "rank"


class Team:
    """The threads that work on some devices.

    Attributes:
        devices: those of the ranks, in their order.
        sharding: of arrays of which each rank has one of its own (`process_job.sharding`).
    """

    def __init__(self, devices: Sequence[Device]):
        self.devices = tuple(devices)
        mesh = jax.sharding.Mesh(np.array([device.jax_device for device in devices]), (AXIS,))
        self.sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        self._barrier = threading.Barrier(len(devices))
        self._notes: list[tuple[str, Any]] = [("", None)] * len(devices)

    def exchange(self, rank: int, tag: str, payload: Any) -> list[Any]:
        """Waits for the other threads; what each of them passed.

        Args:
            tag: names the place where they meet.

        Raises:
            RuntimeError: some did not come in time, are somewhere else, or have failed.
        """
        self._notes[rank] = tag, payload
        self._wait(rank, tag)
        notes = list(self._notes)
        self._wait(rank, tag)  # all have read
        if len({place for place, _ in notes}) > 1:
            places = "; ".join(f"xla:{each} at {place!r}" for each, (place, _) in enumerate(notes))
            raise RuntimeError(f"the threads of DataParallel have come to different places: {places}")
        return [payload for _, payload in notes]

    def _wait(self, rank: int, tag: str) -> None:
        seconds = environment.value("XLA_JOB_TIMEOUT")
        try:
            self._barrier.wait(seconds)
        except threading.BrokenBarrierError:
            raise TeamError(
                f"rank {rank} ({self.devices[rank].torch_device}) waited at {tag!r} for the other threads of "
                f"DataParallel: one of them has failed, or did not come within {seconds} s (XLA_JOB_TIMEOUT)"
            ) from None

    def fail(self) -> None:
        """Lets all who wait know that this thread does not come any more."""
        self._barrier.abort()

    def begin(self) -> None:
        """Makes the threads' devices those of this team.

        Raises:
            RuntimeError: threads are at work on one of them.
        """
        if any(device.team is not None for device in self.devices):
            raise RuntimeError("DataParallel: threads are at work on these devices already")
        self._barrier.reset()
        special_numbers.use(False)
        for device in self.devices:
            device.team = self

    def end(self) -> None:
        """Lets go of the devices. Collectives that some have recorded and not come to execute are forgotten."""
        special_numbers.use(True)
        for device in self.devices:
            if self._barrier.broken:
                device.pending.clear()
            device.team = None

    # ---- what they compute together

    def rank_of(self, device: Device) -> int:
        """The rank of the thread that works on a device."""
        return self.devices.index(device)

    def run(self, device: Device, compiled: Any, arguments: list[jax.Array]) -> list[jax.Array]:
        """One execution of a program for all ranks.

        Args:
            arguments: this rank's buffers.

        Returns:
            this rank's results.
        """
        rank = self.rank_of(device)
        notes = self.exchange(rank, "execution", (compiled, arguments))
        results: Any = None
        if rank == 0:
            results = _outcome(self._run, notes)
        return self.exchange(rank, "results", results)[0].get()[rank]

    def _run(self, notes: list[tuple[Any, list[jax.Array]]]) -> list[list[jax.Array]]:
        """Each rank's results."""
        if any(compiled is not notes[0][0] for compiled, _ in notes):
            raise RuntimeError("the threads of DataParallel have come to different programs")
        results = notes[0][0](*map(self._together, zip(*(arguments for _, arguments in notes), strict=True)))
        # not `addressable_data`, which gives any of them where jax takes them for copies
        shards = [{shard.device: shard.data for shard in result.addressable_shards} for result in results]
        return [[each[device.jax_device] for each in shards] for device in self.devices]

    def _together(self, arrays: tuple[jax.Array, ...]) -> jax.Array:
        return jax.make_array_from_single_device_arrays(arrays[0].shape, self.sharding, list(arrays))

    def share(self, graph: Graph, compile: Any) -> Any:
        """What `compile` gives to the first rank, for all.

        Raises:
            RuntimeError: the ranks have come with different graphs.
            what `compile` raises.
        """
        rank = self.rank_of(graph.device)
        graphs = self.exchange(rank, "compilation", graph)
        found = _outcome(_first, graphs, compile) if rank == 0 else None
        return self.exchange(rank, "program", found)[0].get()


@functools.cache
def of(devices: tuple[Device, ...]) -> Team:
    """The team for these devices, in this order: its programs are known by it."""
    return Team(devices)


class TeamError(RuntimeError):
    """Another thread has failed: its error is the one to look at."""


class _Outcome(NamedTuple):
    result: Any
    error: BaseException | None

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def _outcome(function: Any, *arguments: Any) -> _Outcome:
    try:
        return _Outcome(function(*arguments), None)
    except BaseException as error:
        return _Outcome(None, error)


def _first(graphs: Sequence[Graph], compile: Any) -> Any:
    """Compiles the first of the ranks' graphs, which are alike.

    Raises:
        RuntimeError: they are not alike but for their devices.
    """
    first = _described(graphs[0])
    for graph in graphs[1:]:
        for mine, other in zip(first, _described(graph), strict=False):
            if mine != other:
                raise RuntimeError(_different(graphs[0], graph, mine, other))
        if len(graph.calls) != len(graphs[0].calls):
            raise RuntimeError(_different(graphs[0], graph, f"{len(first)} operators", f"{len(graph.calls)} operators"))
    return compile()


def _different(first: Graph, other: Graph, here: str, there: str) -> str:
    return (
        "the threads of DataParallel have recorded different programs: "
        f"{here} on {first.device.torch_device}, {there} on {other.device.torch_device}. Between two collectives "
        "every thread has to do the same; what one of them alone reports belongs behind a sync"
    )


def _described(graph: Graph) -> list[str]:
    """The calls of a graph and then the rest of it, without its device."""
    from ..cache import disk_key  # which knows the devices' module

    where = re.compile(rf"\b({graph.device.platform}|xla):\d+")
    calls = [where.sub(r"\1", f"{call.name} {disk_key.described(call)}") for call in graph.calls]
    rest = (*graph.operands, *graph.outputs, *graph.donated, *graph.channels_last, *map(str, graph.options))
    leaves = [where.sub(r"\1", str(leaf)) for leaf in graph.leaves]
    return [*calls, " ".join(map(str, rest)), " ".join(leaves)]


# ---- who the calling thread is


class _Thread(threading.local):
    team: Team | None = None
    rank = 0


_thread = _Thread()


class Member(NamedTuple):
    """A thread's place in a team; without a team, in none."""

    team: Team | None
    rank: int

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Within, the calling thread has this place: autograd runs backward passes in threads of its own."""
        before = member()
        _thread.team, _thread.rank = self
        try:
            yield
        finally:
            _thread.team, _thread.rank = before


def member() -> Member:
    """The calling thread's place."""
    return Member(_thread.team, _thread.rank)
