"""Helpers that PyTorch/XLA's scripts use."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import socket
import sys
import tempfile
import time
import types
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


class Cleaner:
    """Calls a function when it dies, or at the latest when the process ends.

    Args:
        func: without arguments.
    """

    def __init__(self, func: Callable[[], Any]):
        self.func = func
        self._finalizer = weakref.finalize(self, func)


class LazyProperty:
    """A value that is made when it is first asked for.

    Args:
        gen_fn: makes it.
    """

    def __init__(self, gen_fn: Callable[[], Any]):
        self._make: Callable[[], Any] | None = gen_fn
        self._value: Any = None

    @property
    def value(self) -> Any:
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value


class TmpFolder:
    """A new folder, which is removed with what is in it when this dies.

    Attributes:
        name: its path.
    """

    def __init__(self) -> None:
        self.name = name = tempfile.mkdtemp()
        self.cleaner = Cleaner(lambda: shutil.rmtree(name, ignore_errors=True))


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


class FnDataGenerator:
    """Gives batches of made-up data with what a function makes of each, in place of a `DataLoader`.

    Args:
        func: batch → target.
        batch_size: the first size of a batch.
        gen_tensor: makes a batch of these sizes, as `torch.randn` does.
        dims: the other sizes; by default one of 1.
        count: how many batches.
    """

    def __init__(
        self,
        func: Callable[[Any], Any],
        batch_size: int,
        gen_tensor: Callable[..., Any],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ):
        self._func = func
        self._make = gen_tensor
        self._sizes = [batch_size, *(dims or [1])]
        self._count = count
        self._given = 0

    def __iter__(self) -> FnDataGenerator:
        return FnDataGenerator(self._func, self._sizes[0], self._make, self._sizes[1:], self._count)

    def __len__(self) -> int:
        return self._count

    def __next__(self) -> tuple[Any, Any]:
        if self._given >= self._count:
            raise StopIteration
        self._given += 1
        data = self._make(*self._sizes)
        return data, self._func(data)

    next = __next__


class DataWrapper:
    """What a batch of a class of the user's inherits, so that a device loader moves the tensors in it."""

    def get_tensors(self) -> Sequence[torch.Tensor]:
        """The tensors that are to be moved."""
        raise NotImplementedError(f"{type(self).__name__}.get_tensors: return the tensors that are to be moved")

    def from_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The batch with these in place of what `get_tensors` returned, in its order."""
        raise NotImplementedError(f"{type(self).__name__}.from_tensors: return the batch with these tensors")


class TimedScope:
    """Prints how long its block took, unless it was told of an error.

    Args:
        msg: printed before the time.
        printfn: prints it; None for `get_print_fn()`.
    """

    def __init__(self, msg: str = "", printfn: Callable[..., None] | None = print):
        self._message = msg
        self._print = get_print_fn() if printfn is None else printfn
        self._error: Any = None

    def set_error(self, error: Any) -> None:
        """Notes that something went wrong in the block, so that its time means nothing; None takes that back."""
        self._error = error

    def __enter__(self) -> TimedScope:
        self._start = time.time()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._error is None:
            self._print(f"{self._message}{time.time() - self._start:.3f}s")


def timed(fn: Callable[[], Any], msg: str = "", printfn: Callable[..., None] | None = print) -> Any:
    """`fn()`, and prints how long it took; see `TimedScope`."""
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

    A `DataWrapper` is made anew of its tensors. Containers are lists, tuples, sets and dicts, of subclasses too; other
    objects are copied with their attributes, if there is one selected among them. What occurs twice stays one.
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
    elif isinstance(value, DataWrapper):
        given = list(value.get_tensors())
        tensors = [inner(item) for item in given]
        if any(new is not old for new, old in zip(tensors, given, strict=True)):
            result = value.from_tensors(tensors)
    elif hasattr(value, "__dict__"):
        done[id(value)] = value, value  # objects may refer to themselves
        attributes = {name: inner(item) for name, item in vars(value).items()}
        if any(attributes[name] is not item for name, item in vars(value).items()):
            result = copy.copy(value)
            vars(result).update(attributes)
    done[id(value)] = value, result  # the value too, so that its id is not given to another
    return result


def as_list(t: Any) -> Any:
    """A list or a tuple as it is, and anything else in a list."""
    return t if isinstance(t, list | tuple) else [t]


def shape(inputs: Any) -> list[int]:
    """The sizes of a nest of lists and tuples; none for anything else.

    Raises:
        ValueError: it is ragged.
    """
    if not isinstance(inputs, list | tuple):
        return []
    sizes = [shape(each) for each in inputs]
    if any(each != sizes[0] for each in sizes):
        raise ValueError(f"shape: expected elements of one shape, got {sizes}")
    return [len(inputs), *(sizes[0] if sizes else [])]


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """The leaves of a nest of lists and tuples, in order."""
    if not isinstance(inputs, list | tuple):
        return (inputs,)
    return tuple(leaf for each in inputs for leaf in flatten_nested_tuple(each))


def list_copy_append(ilist: Sequence[Any], item: Any) -> list[Any]:
    """A new list with one more element."""
    return [*ilist, item]


def check_env_flag(name: str, default: str = "") -> bool:
    """Whether an environment variable is "true" or a number above 0."""
    flag = os.environ.get(name, default)
    return flag == "true" or (flag.isdigit() and int(flag) > 0)


def null_print(*args: Any, **kwargs: Any) -> None:
    """Prints nothing."""


def get_print_fn(debug: bool | int | None = None) -> Callable[..., None]:
    """`eprint` where something is to be debugged, and `null_print` elsewhere.

    Args:
        debug: whether it is; by default the environment variable `DEBUG` says so.
    """
    return eprint if (check_env_flag("DEBUG") if debug is None else debug) else null_print


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
