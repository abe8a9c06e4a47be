"""Helpers that PyTorch/XLA's scripts use."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import sys
import time
import types
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


class SampleGenerator:
    """Gives the same data a number of times, in place of a `DataLoader`.

    Args:
        data: what each step gets.
        sample_count: how many times.
    """

    def __init__(self, data: Any, sample_count: int):
        self._data = data
        self._sample_count = sample_count
        self._count = 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> Any:
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data

    next = __next__


class TimedScope:
    """Prints how long its block took.

    Args:
        msg: printed before the time.
        printfn: prints it; nothing is printed if None.
    """

    def __init__(self, msg: str = "", printfn: Callable[..., None] | None = print):
        self._message = msg
        self._print = printfn

    def __enter__(self) -> TimedScope:
        self._start = time.time()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._print is not None:
            self._print(f"{self._message}{time.time() - self._start:.3f}s")


def timed(fn: Callable[[], Any], msg: str = "", printfn: Callable[..., None] = print) -> Any:
    """`fn()`, and prints how long it took."""
    with TimedScope(msg=msg, printfn=printfn):
        return fn()


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """An environment variable as a value of a type; `defval` where it is not set.

    Args:
        type: makes the value from the text. For `bool`, "1" and "true" (and any other number but 0) are true.

    Raises:
        ValueError: the text is none of the type's.
    """
    text = os.environ.get(name)
    if text is None:
        return defval
    if type is bool:
        if text.strip().lower() in ("true", "1", "yes", "on"):
            return True
        if text.strip().lower() in ("false", "0", "no", "off", ""):
            return False
        return bool(int(text))
    return type(text)


def for_each_instance(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]) -> None:
    """Calls `fn` with each value that `select_fn` selects, in containers and in attributes of objects."""
    for_each_instance_rewrite(value, select_fn, lambda found: (fn(found), found)[1])


def for_each_instance_rewrite(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]) -> Any:
    """A copy of a nest of containers and objects with `fn(x)` in place of each x that `select_fn` selects.

    Containers are lists, tuples, sets and dicts, of subclasses too; other objects are copied with their attributes, if
    there is one selected among them. What occurs twice stays one.
    """
    return _rewrite(value, select_fn, fn, {})


_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.FunctionType, torch.Tensor)


def _rewrite(
    value: Any, select: Callable[[Any], bool], fn: Callable[[Any], Any], done: dict[int, tuple[Any, Any]]
) -> Any:
    if id(value) in done:
        return done[id(value)][1]

    def inner(item: Any) -> Any:
        return _rewrite(item, select, fn, done)

    result = value
    if select(value):
        result = fn(value)
    elif isinstance(value, _ATOMS):
        return value
    elif isinstance(value, dict):
        items = {inner(key): inner(item) for key, item in value.items()}
        result = copy.copy(value)
        result.clear()
        result.update(items)
    elif isinstance(value, tuple):
        items = [inner(item) for item in value]
        result = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    elif isinstance(value, list):
        items = [inner(item) for item in value]
        result = copy.copy(value)
        result[:] = items
    elif isinstance(value, set | frozenset):
        result = type(value)(inner(item) for item in value)
    elif hasattr(value, "__dict__"):
        done[id(value)] = value, value  # objects may refer to themselves
        attributes = {name: inner(item) for name, item in vars(value).items()}
        if any(attributes[name] is not item for name, item in vars(value).items()):
            result = copy.copy(value)
            vars(result).update(attributes)
    done[id(value)] = value, result  # the value too, so that its id is not given to another
    return result


def eprint(*args: Any, **kwargs: Any) -> None:
    """Prints to standard error."""
    print(*args, file=sys.stderr, **kwargs)


def parallel_work(
    num_workers: int, fn: Callable[..., Any], *args: Sequence[Any], wait_results: bool = True
) -> list[Any]:
    """`fn` over the sequences in `args`, like `map`, on so many threads.

    Args:
        wait_results: give the results; otherwise futures of them.
    """
    with ThreadPoolExecutor(max_workers=num_workers) as pool:
        futures = [pool.submit(fn, *each) for each in zip(*args, strict=True)]
        return [future.result() for future in futures] if wait_results else futures


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Ports that nobody listens on at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(n)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
