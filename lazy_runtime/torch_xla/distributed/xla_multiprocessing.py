"""PyTorch/XLA's `xmp`: a function in several processes, each of them one rank of a job (`process_job.py`)."""

from __future__ import annotations

import os
import pickle
import re
import signal
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from ...platform import discovery, xla_devices
from ...processes import collective_checker, process_exit, process_job

_torch: Any = torch

#: Seconds that ranks get to end after another one has failed, before they are killed.
GRACE_S = 5.0

#: Seconds within which ranks end that fail for one reason.
SETTLE_S = 0.5


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Calls `fn(index, *args)` in each of several processes.

    Args:
        nprocs: how many; by default as many as there are devices (on the CPU `CPU_NUM_DEVICES`). One is this process.
        join: waits for them all.
        daemon: they end with this process.
        start_method: "spawn", "fork" or "forkserver", as `multiprocessing` has them.

    Returns:
        torch's `ProcessContext` where `join` is False, else None.

    Raises:
        torch.multiprocessing.ProcessRaisedException: a rank raised; the message has its number and traceback. The
            others are ended.
        torch.multiprocessing.ProcessExitedException: a rank ended without raising, as one that is killed.
        RuntimeError: a fork, after xla was used here.
        ValueError: nprocs is less than 1.
        NotImplementedError: a process for each of several TPU chips.
    """
    count = device_count() if nprocs is None else nprocs
    if count < 1:
        raise ValueError(f"nprocs: expected 1 or more, got {nprocs}")
    if count == 1:
        fn(0, *args)
        return None
    if start_method == "fork" and xla_devices.is_started():
        raise RuntimeError('start_method="fork" after xla was used in this process: use "spawn", or spawn before that')
    # the ranks' store stands here, so it outlives any of them, and its port is the system's choice
    store = _torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    context: Any = _torch.multiprocessing.start_processes(
        _run, args=(fn, count, store.port, args), nprocs=count, join=False, daemon=daemon, start_method=start_method
    )
    context.store = store
    if not join:
        return context
    wait(context)
    return None


def wait(context: Any) -> None:
    """Waits for the processes of `spawn(join=False)`.

    Raises:
        what `spawn` does: of several ranks that have failed, for the one that the others have failed for.
    """
    sentinels: dict[int, int] = dict(context.sentinels)
    while sentinels:
        for sentinel in connection.wait(list(sentinels)):
            index = sentinels.pop(sentinel)  # type: ignore[call-overload]
            context.processes[index].join()
            if context.processes[index].exitcode != 0:
                time.sleep(SETTLE_S)
                _raise(context, _first(context))


def _first(context: Any) -> int:
    """The rank that has failed by itself: when one dies, the others' collectives break, and jax ends processes whose
    coordinator has gone.
    """
    failed = [index for index, process in enumerate(context.processes) if process.exitcode not in (None, 0)]
    return min(failed, key=lambda index: (_is_consequence(context, index), index))


def _is_consequence(context: Any, index: int) -> bool:
    try:
        with open(context.error_files[index], "rb") as file:
            return _CONSEQUENCE.search(pickle.load(file)) is not None
    except OSError:  # it was not Python that ended it
        return context.processes[index].exitcode == -signal.SIGABRT


_CONSEQUENCE = re.compile(
    r"(Gloo|NCCL) .*failed|[Cc]onnection (closed|reset|refused)|[Bb]roken pipe|[Ss]ocket closed|coordination service"
    r"|rank \d+: has ended"
)


def _raise(context: Any, index: int) -> None:
    """Ends the ranks, and raises what became of one.

    Raises:
        ProcessRaisedException, ProcessExitedException: see `spawn`.
    """
    sentinel = next(each for each, number in context.sentinels.items() if number == index)
    context.sentinels = {sentinel: index}  # all that torch is to look at
    try:
        context.join(grace_period=GRACE_S)
    except _torch.multiprocessing.ProcessExitedException as error:
        words = collective_checker.heard(context.store, index)
        if not words:
            raise
        signal_name = getattr(error, "signal_name", None)
        raise type(error)(f"{error}: {words}", index, error.error_pid, error.exit_code, signal_name) from None


def _run(index: int, fn: Callable[..., Any], count: int, port: int, args: tuple[Any, ...]) -> None:
    os.environ.update(  # here, since a server that forks has the variables of the time when it was started
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
        WORLD_SIZE=str(count),
        RANK=str(index),
        LOCAL_RANK=str(index),
        LOCAL_WORLD_SIZE=str(count),
        TORCHELASTIC_USE_AGENT_STORE="True",  # to torch: somebody else holds the store
        CPU_NUM_DEVICES="1",
    )
    process_job.process_place.cache_clear()  # the script, which has been imported here, may have asked before
    process_exit.with_launcher()
    try:
        fn(index, *args)
    except BaseException:
        process_exit.has_failed = True
        raise


def create_optimized_replica_groups() -> list[list[int]] | None:
    """Groups of ranks for reductions over all, in an order that suits the machine's network.

    Returns:
        None, which collectives take for one group of all: XLA orders it by the devices' places in their network.
    """
    return None


def device_count() -> int:
    """How many devices this host has, found out without a use of xla in this process.

    Raises:
        NotImplementedError: they are TPU chips, of which a process would take all.
    """
    kind, count = discovery.kind_and_count()
    if kind == "TPU" and count > 1:
        raise NotImplementedError(
            f"a process for each of this host's {count} TPU chips: one process drives them all. Call "
            "runtime.use_spmd() in it, or give distributed.data_parallel.DataParallel the devices (docs/scaling.md)"
        )
    return count


class MpModelWrapper:
    """A model that is made once, before the processes are forked, and moved to the device in each of them.

    Args:
        model: on the CPU.
    """

    def __init__(self, model: torch.nn.Module):
        self._model = model

    def to(self, device: torch.device | str) -> torch.nn.Module:
        """The model on a device."""
        return self._model.to(device)


class MpSerialExecutor:
    """Runs a function in one rank of a host, whose result the others see done: a download, say."""

    def run(self, fn: Callable[[], Any]) -> Any:
        """`fn()`, in one process after the other."""
        from ...processes import process_job

        here = process_job.place()
        result = None
        for turn in range(here.local_size):
            if turn == here.local_rank:
                result = fn()
            process_job.exchange("MpSerialExecutor", b"")
        return result
