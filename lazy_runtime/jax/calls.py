"""jax functions as operators of torch's graphs, `lazy_runtime.jax.call`."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..compat import dynamo
from ..compat.dynamo import mark_constant
from . import nested

Function = TypeVar("Function", bound=Callable[..., Any])


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a jax function with tensors, as one operator: it is recorded lazily, executed at once in eager mode, and
    traced into the graph of `torch.compile`, whole training steps included.

    jax traces the function once for each kind of arguments: their nest, the shapes and dtypes of tensors, the values of
    all else. A function that is made anew at each call is traced at each call.

    Gradients are those of `jax.vjp`, so `jax.custom_vjp` has its way; a gradient of a gradient computes the function
    again.

    Args:
        function: pure; gets arrays in place of tensors. 64-bit types stay so where an argument is of one, or where
            `jax_enable_x64` is on.
        args, kwargs: nests (pytrees of jax) of tensors on one device, xla or CPU, of jax arrays, random keys among
            them, of numpy arrays, and of other hashable values. All but tensors and jax arrays are constants: a number
            that changes at each call belongs into a tensor.

    Returns:
        what the function returns, with tensors on that device in place of arrays.

    Raises:
        TypeError: no argument is a tensor, one can be no constant, or the function returns something else than arrays.
        ValueError: the tensors are on several devices.
        what the function raises: jax's errors of tracing name its line.
    """
    if torch.compiler.is_dynamo_compiling():
        while isinstance(function, functools.partial):
            args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
            function = function.func
        id(function)  # has Dynamo guard it: what a constant is made of is guarded by its code alone
        name = "" + name_of(function)  # no longer what `name_of` returned, for which Dynamo would want a guard
        return by_name(name, args, kwargs)
    return nested.record(function, args, kwargs)


def operator(function: Function) -> Function:
    """A jax function that takes and gives tensors: `call` as a decorator.

    Returns:
        a function of the same name and documentation.
    """

    @functools.wraps(function)
    def of_tensors(*args: Any, **kwargs: Any) -> Any:
        return call(function, *args, **kwargs)

    return of_tensors  # type: ignore[return-value]


#: Functions of which Dynamo is told the names alone. A graph may ask for its own as long as it lives.
_named: dict[str, Callable[..., Any]] = {}
_numbers = itertools.count()
_lock = threading.Lock()


@mark_constant
def name_of(function: Callable[..., Any]) -> str:
    """A name by which `by_name` finds the function: a function is no argument that a graph can have. Dynamo runs this
    while it traces, and takes the result for a constant.
    """
    global by_name
    if by_name is _by_name:
        by_name = dynamo.nonstrict_trace(_by_name)
    with _lock:
        name = next((known for known, each in _named.items() if each is function), None)
        if name is None:
            name = f"{nested.name(function)} {next(_numbers)}"
            _named[name] = function
        return name


def _by_name(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return nested.record(_named[name], args, kwargs)


#: The function of this name with arguments: one call of a graph, which AOTAutograd looks into.
by_name = _by_name
