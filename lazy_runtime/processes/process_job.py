"""The job: processes that compute together, each of them one rank with its own devices.

Jax carries the engine: `jax.distributed` makes the processes' clients find each other, and XLA's collectives run over
gloo on CPUs, NCCL on GPUs, ICI on TPUs. A process belongs to a job if its environment says so, as `torchrun` and
`xla_multiprocessing.spawn` leave it: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, `LOCAL_RANK` and
`LOCAL_WORLD_SIZE`. It joins when xla is first used.
"""

from __future__ import annotations

import datetime
import functools
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import torch.distributed

from ..common import environment, special_numbers
from . import collective_checker, ports, process_exit, thread_ranks, watchdog
from .thread_ranks import AXIS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..platform.xla_devices import Device

dist: Any = torch.distributed

_SIGNS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Place(NamedTuple):
    """A process's place in its job.

    Attributes:
        rank: its number among all.
        size: how many there are.
        local_rank, local_size: the same on its host.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


ALONE = Place()


def place() -> Place:
    """The calling thread's place: that of its process, or, where threads are ranks, its own among them."""
    found, rank = thread_ranks.member()
    if found is None:
        return process_place()
    size = len(found.devices)
    return Place(rank, size, rank, size)


@functools.cache
def process_place() -> Place:
    """What the environment says of this process, when that is first asked for.

    Raises:
        ValueError: it says something else than numbers, or a rank that there is not.
    """
    if not all(os.environ.get(sign) for sign in _SIGNS):
        return ALONE
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    found = Place(rank, size, _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", size))
    if not (0 <= found.rank < found.size and 0 <= found.local_rank < found.local_size):
        raise ValueError(f"the environment has no such rank: RANK={rank} and WORLD_SIZE={size}, {found}")
    return found


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise ValueError(f"the environment variable {name} is {text!r}, which is no integer") from None


@functools.cache
def store() -> torch.distributed.Store:  # pyright: ignore[reportPrivateImportUsage]
    """Where the ranks leave each other notes: the one that torch's `env://` finds.

    Raises:
        RuntimeError: this rank has to hold it, and another process keeps its port.
    """
    found, _, _ = ports.retried(lambda: next(dist.rendezvous("env://", timeout=_timeout())), "MASTER_PORT")
    return dist.PrefixStore(collective_checker.PREFIX, found)


def _timeout() -> datetime.timedelta:
    return datetime.timedelta(seconds=environment.value("XLA_JOB_TIMEOUT"))


def join() -> None:
    """Makes jax's client one of the job's. Before jax has a client; alone, nothing is to be done.

    Raises:
        RuntimeError: jax has a client already, or the others did not come in time.
    """
    here = process_place()
    if here.size == 1 or _joined():
        return
    process_exit.with_launcher()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would keep a process alive that is to end
    if here.rank == 0:
        _host_coordinator(here)
    else:
        _initialize(store().get("coordinator").decode(), here)
    watchdog.start(here.rank, store())
    special_numbers.use(False)


def _joined() -> bool:
    return jax.distributed.is_initialized()


def _initialize(address: str, here: Place) -> None:
    seconds = int(environment.value("XLA_JOB_TIMEOUT"))
    jax.distributed.initialize(
        address,
        here.size,
        here.rank,
        local_device_ids=[here.local_rank] if here.local_size > 1 else None,  # of a host's GPUs each rank has one
        cluster_detection_method="deactivate",
        initialization_timeout=seconds,
        heartbeat_timeout_seconds=seconds,
        shutdown_timeout_seconds=seconds,
    )


def _host_coordinator(here: Place) -> None:
    """Starts jax's coordinator in this process, and tells the others where once it listens."""
    host = os.environ["MASTER_ADDR"]
    failed: list[BaseException] = []
    with ports.reserved() as port:

        def start() -> None:
            try:
                _initialize(f"{host}:{port}", here)  # returns when all have come
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        if ports.listens(host, port, thread.is_alive):
            store().set("coordinator", f"{host}:{port}")
    thread.join()
    if failed:
        raise failed[0]


def members(ranks: Sequence[int]) -> list[int]:
    """The ranks of a group as the operators take them (`ops/collective/collectives.py`): none for all of the job's."""
    return [] if list(ranks) == list(range(place().size)) else list(ranks)


def sharding(device: Device) -> jax.sharding.NamedSharding:
    """Of arrays of which each rank has one of its own: to jax, copies of one array on a device of each rank.

    Args:
        device: this rank's.
    """
    return device.team.sharding if device.team is not None else _of_processes(device.platform)


@functools.cache
def _of_processes(platform: str) -> jax.sharding.NamedSharding:
    """The sharding over the first device of each process.

    XLA compiles what ranks compute together as the program of any one of them (`jax.shard_map`), so it takes no two
    buffers to be equal.
    """
    first: dict[int, Any] = {}
    for device in jax.devices(platform):
        first.setdefault(device.process_index, device)
    mesh = jax.sharding.Mesh(np.array([first[rank] for rank in sorted(first)]), (AXIS,))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def ranks(device: Device) -> list[int]:
    """Those that run programs with collectives together with this process, whose device it is."""
    devices: Any = sharding(device).mesh.devices
    return [each.process_index for each in devices.flat]


def together(array: jax.Array) -> jax.Array:
    """An array on this rank's device as its part of what all ranks compute with."""
    (device,) = array.devices()
    return jax.make_array_from_single_device_arrays(array.shape, _of_processes(device.platform), [array])


def own(array: jax.Array) -> jax.Array:
    """This rank's part of what all ranks have computed."""
    return array.addressable_data(0)


def exchange(tag: str, payload: bytes, ranks: Sequence[int] = ()) -> list[bytes]:
    """Waits for the other ranks; what each of them passed.

    Args:
        tag: names the place where they meet; it can be used again.
        ranks: those that take part; by default all.

    Raises:
        RuntimeError: some did not come in time: it says which.
        NotImplementedError: the ranks are threads, and some of them are to meet.
    """
    here = place()
    members = list(ranks) or list(range(here.size))
    if here.rank not in members:
        raise ValueError(f"rank {here.rank} is at {tag!r}, where only the ranks {members} are to meet")
    if len(members) == 1:
        return [payload]
    threads, _ = thread_ranks.member()
    if threads is not None:
        if members != list(range(here.size)):
            raise NotImplementedError(f"the threads of DataParallel meet all together, not only {members}")
        return threads.exchange(here.rank, tag, payload)
    key = f"exchange/{tag}/{','.join(map(str, members))}"
    turn = _turns[key] = _turns.get(key, 0) + 1
    notes: Any = store()  # whose `set` takes bytes too
    notes.set(f"{key}/{turn}/{here.rank}", payload)
    found: list[bytes] = []
    until = time.monotonic() + environment.value("XLA_JOB_TIMEOUT")
    for rank in members:
        remaining = datetime.timedelta(seconds=max(until - time.monotonic(), 0.001))
        try:
            store().wait([f"{key}/{turn}/{rank}"], remaining)
        except dist.DistStoreError:
            missing = [each for each in members if not store().check([f"{key}/{turn}/{each}"])]
            raise RuntimeError(
                f"rank {here.rank} waited {environment.value('XLA_JOB_TIMEOUT')} s (XLA_JOB_TIMEOUT) at {tag!r} for "
                f"the ranks {missing}, which did not come"
            ) from None
        found.append(store().get(f"{key}/{turn}/{rank}"))
    # all have come, so all have read the turn before this one
    if turn > 1:
        store().delete_key(f"{key}/{turn - 1}/{here.rank}")
    return found


_turns: dict[str, int] = {}
