"""What PyTorch/XLA's example scripts print with, and a decorator of tests. The name is PyTorch/XLA's; it is no test."""

from __future__ import annotations

import functools
import multiprocessing
import time
import unittest
from collections.abc import Callable
from typing import Any

import torch

from .. import runtime as xr
from ..core import xla_model as xm

__test__ = False  # for pytest


def now(format: str = "%H:%M:%S") -> str:
    """The time."""
    return time.strftime(format, time.localtime())


def get_summary_writer(logdir: str | None) -> Any:
    """A writer of TensorBoard's files on the first replica; None without a directory, and on other replicas.

    Raises:
        ImportError: the package tensorboard is not installed.
    """
    if not logdir or not xm.is_master_ordinal():
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(logdir)


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: dict[str, float] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Writes numbers for TensorBoard; nothing without a writer.

    Args:
        dict_to_write: name → number.
        write_xla_metrics: also the counters.
    """
    if summary_writer is None:
        return
    for name, value in (dict_to_write or {}).items():
        summary_writer.add_scalar(name, value, global_step)
    if write_xla_metrics:
        from ...common import metrics

        for name in metrics.names():
            summary_writer.add_scalar(f"XLA counters/{name}", metrics.value(name), global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """Writes what is left."""
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def print_training_update(
    device: torch.device | str,
    step: int,
    loss: Any,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """One line on a training step, and the rates for TensorBoard."""
    parts = [
        "Training",
        f"Device={device}/{xr.global_ordinal()}",
        None if epoch is None else f"Epoch={epoch}",
        f"Step={step}",
        f"Loss={float(loss):.5f}",
        f"Rate={rate:.2f}",
        f"GlobalRate={global_rate:.2f}",
        f"Time={now()}",
    ]
    print("|", " ".join(part for part in parts if part), flush=True)
    write_to_summary(summary_writer, dict_to_write={"examples/sec": rate, "average_examples/sec": global_rate})


def print_test_update(
    device: torch.device | str, accuracy: float | None, epoch: int | None = None, step: int | None = None
) -> None:
    """One line on a test step."""
    parts = [
        "Test",
        f"Device={device}/{xr.global_ordinal()}",
        None if step is None else f"Step={step}",
        None if epoch is None else f"Epoch={epoch}",
        None if accuracy is None else f"Accuracy={accuracy:.2f}",
        f"Time={now()}",
    ]
    print("|", " ".join(part for part in parts if part), flush=True)


def mp_test(func: Callable[..., Any]) -> Callable[..., int]:
    """Runs a method of a `unittest.TestCase` in a process of its own, which is forked.

    Args:
        func: the method. Xla may have been used before in another process alone.

    Returns:
        a method that fails where the process does, and returns its exit status.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> int:
        process = multiprocessing.get_context("fork").Process(target=func, args=args, kwargs=kwargs)
        process.start()
        process.join()
        status = process.exitcode or 0
        if args and isinstance(args[0], unittest.TestCase):
            args[0].assertFalse(status, "the process of the test has failed")  # noqa: PT009
        return status

    return wrapper
