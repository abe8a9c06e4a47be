"""Forks of a process in which jax runs.

A forked child has the memory of jax's client and none of its threads, so whatever it asks of the client never ends. The
child's first use of xla raises instead, as with CUDA; what it computes on the CPU in torch goes on, in one thread as in
torch's DataLoader.

Jax warns at every fork. The workers of torch's `DataLoader` make CPU tensors and never come near xla, so for these
forks, and no others, the warning is held back.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch

_held = threading.local()

#: Called in a forked child of a process in which jax runs: what must not be inherited is made anew or refused there.
in_child: list[Callable[[], None]] = []


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """Takes the place of what needs jax's client, in a forked child.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        "Cannot re-initialize xla in a forked subprocess: the parent process has used xla, or a function compiled by "
        "backend='openxla', and XLA's threads stayed there. Use the 'spawn' start method of multiprocessing "
        "(DataLoader: multiprocessing_context='spawn'), or move tensors to the CPU in the parent, for the child"
    )


def refuse_in_child(owner: Any, *names: str) -> None:
    """Has functions refused in forked children.

    Args:
        owner: the module or class that has them.
        names: of the functions; they are looked up in `owner` at each call.
    """
    in_child.extend(functools.partial(setattr, owner, name, refuse) for name in names)


@functools.cache
def watch() -> None:
    """Call it once jax's client is there: its handler must have been registered first, to run after ours."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)


def _after_in_child() -> None:
    _after()
    for function in in_child:
        function()
    # torch's kernels in XLA's programs have made OpenMP's threads, which the child waits for but does not have
    torch.set_num_threads(1)


def _before() -> None:
    if _is_data_loader():
        _held.filters = warnings.catch_warnings()
        _held.filters.__enter__()
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)


def _after() -> None:
    filters: Any = getattr(_held, "filters", None)
    if filters is not None:
        _held.filters = None
        filters.__exit__(None, None, None)


def _is_data_loader() -> bool:
    """Whether torch's DataLoader has asked for the fork that is about to happen."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.data.dataloader":
            return True
        frame = frame.f_back
    return False
