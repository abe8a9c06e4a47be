"""Functions in one process, or one thread, for each device, with what they return."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from .. import runtime as xr
from .. import torch_xla
from ..core import xla_env_vars as xenv
from ..core import xla_model as xm
from ..distributed import data_parallel
from ..distributed import xla_multiprocessing as xmp
from . import tpu

_Result = TypeVar("_Result")


def run_multiprocess(
    fn: Callable[..., _Result], *args: Any, start_method: str = "spawn", **kwargs: Any
) -> dict[int, _Result]:
    """Calls `fn(*args, **kwargs)` in one process for each device of this host, of its own even if there is one device.

    Args:
        start_method: see `xmp.spawn`.

    Returns:
        what the calls have returned, by the ranks' numbers. Results go through files, by pickle.

    Raises:
        what `xmp.spawn` does.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = fn, args, kwargs, folder
        if xmp.device_count() == 1:
            start: Any = torch.multiprocessing
            start.start_processes(_keep_result, given, nprocs=1, start_method=start_method)
        else:
            xmp.spawn(_keep_result, given, start_method=start_method)
        files = sorted(Path(folder).iterdir(), key=lambda file: int(file.name))
        return {int(file.name): torch.load(file, weights_only=False) for file in files}


def _keep_result(
    index: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], folder: str
) -> None:
    torch.save(fn(*args, **kwargs), Path(folder) / str(xr.global_ordinal()))


def spawn(
    fn: Callable[..., Any], nprocs: int | None = None, start_method: str = "spawn", args: tuple[Any, ...] = ()
) -> None:
    """Calls `fn(rank, *args)` in one process for each device of this host.

    Args:
        nprocs: 1 for a call in this process; otherwise None.
        start_method: see `xmp.spawn`.

    Raises:
        ValueError: `nprocs` is another number.
    """
    if nprocs not in (None, 1):
        raise ValueError(f"nprocs: expected 1 or None, got {nprocs}: xmp.spawn takes other numbers")
    xmp.spawn(fn, args, nprocs, start_method=start_method)


def spawn_threads(fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
    """Calls `fn(rank, *args)` in a thread for each device of this process; the threads are the ranks.

    Raises:
        what a call has raised.
        NotImplementedError: this process is one of several.
    """

    def call(model: Any, loader: Any, device: torch.device, context: Any) -> None:
        fn(xr.global_ordinal(), *args)

    data_parallel.DataParallel(torch.nn.Identity())(call, [])


def initialize_singleprocess() -> None:
    """Makes this process the only one on its host, with a single chip of its TPUs. Call it before the first use of xla,
    which it is.
    """
    if os.environ.get(xenv.PJRT_DEVICE, "").upper() == "TPU":
        tpu.configure_one_chip_topology()
    xm.set_replication(torch_xla.device(), [])


def initialize_multiprocess(local_rank: int, local_world_size: int) -> None:
    """Makes this process one of several on its host, with one chip of its TPUs. Call it before the first use of xla,
    which it is. Launchers that set the variables of `torchrun` have said it already.

    Raises:
        ValueError: the environment says otherwise.
    """
    for name, value in ((xenv.LOCAL_RANK, local_rank), (xenv.LOCAL_WORLD_SIZE, local_world_size)):
        found = os.environ.setdefault(name, str(value))
        if found != str(value):
            raise ValueError(f"initialize_multiprocess: the environment has {name}={found}, expected {value}")
    if os.environ.get(xenv.PJRT_DEVICE, "").upper() == "TPU":
        tpu.configure_topology(local_rank, local_world_size)
    xm.set_replication(torch_xla.device(), xm.get_xla_supported_devices())
