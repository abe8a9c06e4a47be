"""Calls of jax functions with nested arguments, as calls with flat lists of tensors (`functions/jax_function.py`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..compat.jax_import import jax
from ..functions import jax_function
from ..tensor import host_arrays
from .arrays import from_array

_TENSOR = object()  # stands for a tensor among the leaves


class _Key(NamedTuple):
    """Stands for a random key among the leaves, whose numbers are an operand.

    Attributes:
        implementation: of the random numbers, as `jax.random.key_impl` names it.
    """

    implementation: Any


class _Leaves(NamedTuple):
    """The leaves of arguments.

    Attributes:
        tensors: what is an operand.
        others: all leaves, with `_TENSOR` or a `_Key` in place of each operand.
        key: equal for leaves whose others are equal.
    """

    tensors: list[torch.Tensor]
    others: list[Any]
    key: Hashable


def record(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """See `calls.call`."""
    called = name(function)
    given, structure = jax.tree.flatten((args, kwargs))
    try:
        leaves = _sort(given)
    except _RefusedError as refused:
        raise refused.named(called, (args, kwargs)) from None
    if not leaves.tensors:
        raise TypeError(
            f"{called} gets no tensor, so it has no device: call it with jax alone, and hand its results to "
            "lazy_runtime.jax.from_array"
        )
    noted: dict[str, Any] = {}
    others = leaves.others  # what is traced is kept, and must not keep tensors

    def flat(*arrays: Any) -> list[Any]:
        operands = iter(arrays)
        some, named = jax.tree.unflatten(structure, [_filled(each, operands) for each in others])
        results, noted["results"] = jax.tree_util.tree_flatten_with_path(function(*some, **named))
        return [_array(called, path, each) for path, each in results]

    key = (function, structure, leaves.key)
    found, known = jax_function.call_noting(flat, leaves.tensors, key, called, noted)
    return jax.tree.unflatten(known["results"], found)


def is_array(leaf: Any) -> bool:
    """Whether a function of jax arrays takes the leaf as an operand."""
    return isinstance(leaf, jax.Array | np.ndarray)


def constants(called: str, arguments: tuple[Any, Any], leaves: Sequence[Any]) -> Hashable:
    """What the constants among the leaves of arguments for a function of jax arrays are known by.

    Args:
        called: the function's name, for errors.
        arguments: positional ones and keywords, with these leaves.

    Raises:
        TypeError: one is a tensor, or cannot be hashed.
    """
    try:
        return tuple(None if is_array(each) else _of_jax(number, each) for number, each in enumerate(leaves))
    except _RefusedError as refused:
        raise refused.named(called, arguments) from None


def _of_jax(number: int, leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        what = "a tensor of torch, where arrays of jax are taken: hand over lazy_runtime.jax.asarray(tensor)"
        raise _RefusedError(TypeError, number, what)
    return _constant(number, leaf)


class _RefusedError(Exception):
    """A leaf cannot be handed over.

    Attributes:
        kind: of the error.
        number: of the leaf.
    """

    def __init__(self, kind: type[Exception], number: int, what: str):
        super().__init__(what)
        self.kind = kind
        self.number = number

    def named(self, called: str, arguments: tuple[Any, Any]) -> Exception:
        """The error that says which of the arguments it is: positional ones and keywords."""
        path, _ = jax.tree_util.tree_flatten_with_path(arguments)[0][self.number]
        return self.kind(f"argument {_shown(path)} of {called} is {self}")


def _sort(given: list[Any]) -> _Leaves:
    tensors: list[torch.Tensor] = []
    others: list[Any] = []
    keys: list[Hashable] = []
    is_on_cpu = any(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in given)
    for number, leaf in enumerate(given):
        other: Any = _TENSOR
        if not isinstance(leaf, torch.Tensor) and isinstance(leaf, jax.Array):  # the second takes a microsecond
            if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                other, leaf = _Key(jax.random.key_impl(leaf)), jax.random.key_data(leaf)
            leaf = host_arrays.from_numpy(np.array(leaf)) if is_on_cpu else from_array(leaf)
        if isinstance(leaf, torch.Tensor):
            _check_device(number, leaf, tensors)
            tensors.append(leaf)
            keys.append(other)
        else:
            other = leaf
            keys.append(_constant(number, leaf))
        others.append(other)
    return _Leaves(tensors, others, tuple(keys))


def _check_device(number: int, tensor: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    if tensor.device.type not in ("xla", "cpu"):
        raise _RefusedError(ValueError, number, f"on {tensor.device}: jax functions take xla and CPU tensors")
    if tensors and tensor.device != tensors[0].device:
        what = f"on {tensor.device}, and the first tensor on {tensors[0].device}: move one of them"
        raise _RefusedError(ValueError, number, what)


def _constant(number: int, value: Any) -> Hashable:
    """What a constant is known by: 1, 1.0 and True are not the same to jax."""
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, value.tobytes()
    try:
        hash(value)
    except TypeError:
        what = (
            f"{type(value).__name__}, which is no tensor, and no constant either since it cannot be hashed: register "
            "it as a pytree of jax, or hand over what is in it"
        )
        raise _RefusedError(TypeError, number, what) from None
    return type(value), value


def _filled(other: Any, arrays: Any) -> Any:
    if isinstance(other, _Key):
        return jax.random.wrap_key_data(next(arrays), impl=other.implementation)
    return next(arrays) if other is _TENSOR else other


def _array(name: str, path: Any, result: Any) -> Any:
    if isinstance(result, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
        if jax.numpy.issubdtype(getattr(result, "dtype", None) or type(result), jax.dtypes.prng_key):
            raise TypeError(f"{name} returns a random key{_at(path)}: have it return jax.random.key_data(key)")
        return jax.numpy.asarray(result)
    raise TypeError(f"{name} returns {type(result).__name__}{_at(path)}, which is no array")


def _at(path: Any) -> str:
    return f" as its result{jax.tree_util.keystr(path)}" if path else ""


def _shown(path: Any) -> str:
    """`2['weight']` for what is in the third argument, `scale` for a keyword."""
    place, *rest = path[1:]
    return f"{getattr(place, 'idx', None) if hasattr(place, 'idx') else place.key}{jax.tree_util.keystr(tuple(rest))}"


def name(function: Callable[..., Any]) -> str:
    """What errors call it."""
    return getattr(function, "__name__", None) or type(function).__name__
