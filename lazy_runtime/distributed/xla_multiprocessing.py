"""PyTorch/XLA's `xmp`: a function in several processes, each of them one rank of a job (`job.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from .. import environment, xla_devices

_torch: Any = torch

#: Seconds that ranks get to end after another one has failed, before they are killed.
GRACE_S = 5.0


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
    """
    count = _device_count() if nprocs is None else nprocs
    if count < 1:
        raise ValueError(f"nprocs: expected 1 or more, got {nprocs}")
    if count == 1:
        fn(0, *args)
        return None
    if start_method == "fork" and xla_devices.is_started():
        raise RuntimeError('start_method="fork" after xla was used in this process: use "spawn", or spawn before that')
    # the ranks' store stands here, so it outlives any of them, and its port is the system's choice
    store = _torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with _environment(MASTER_ADDR="localhost", MASTER_PORT=str(store.port), WORLD_SIZE=str(count)):
        context: Any = _torch.multiprocessing.start_processes(
            _run, args=(fn, count, args), nprocs=count, join=False, daemon=daemon, start_method=start_method
        )
    context.store = store
    if not join:
        return context
    while not context.join(grace_period=GRACE_S):
        pass
    return None


def _run(index: int, fn: Callable[..., Any], count: int, args: tuple[Any, ...]) -> None:
    os.environ.update(
        RANK=str(index),
        LOCAL_RANK=str(index),
        LOCAL_WORLD_SIZE=str(count),
        TORCHELASTIC_USE_AGENT_STORE="True",  # to torch: somebody else holds the store
        CPU_NUM_DEVICES="1",
    )
    fn(index, *args)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Sets variables for what is started within."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _device_count() -> int:
    """How many devices this host has, found out without a use of xla in this process."""
    if os.environ.get("PJRT_DEVICE", "").upper() == "CPU" or environment.value("CPU_NUM_DEVICES") is not None:
        return environment.value("CPU_NUM_DEVICES") or 1
    if xla_devices.is_started():
        return len(xla_devices.devices())
    code = "import jax; print(jax.local_device_count())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


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
        from . import job

        here = job.place()
        result = None
        for turn in range(here.local_size):
            if turn == here.local_rank:
                result = fn()
            job.exchange("MpSerialExecutor", b"")
        return result
