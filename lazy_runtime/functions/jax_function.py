"""Functions of jax arrays on xla tensors, with jax's gradients or without."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from ..ir import dtypes
from ..ops import computation
from ..platform import xla_devices

#: `(*arrays)` to a sequence of arrays.
Function = Callable[..., Sequence[Any]]

#: How many traces are remembered. A loop that makes a new function at each call would keep them all alive otherwise,
#: with what they close over; what is forgotten is traced again.
REMEMBERED = 1024

Looks = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class _Keyed:
    """A function that another with the same key stands for.

    Attributes:
        name: in errors.
        noted: what the function notes when it is traced, for its caller.
    """

    def __init__(self, function: Function, key: Hashable, name: str, noted: dict[str, Any] | None = None):
        self.function = function
        self.key = key
        self.name = name
        self.noted = {} if noted is None else noted

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def call(function: Function, tensors: Sequence[torch.Tensor], key: Hashable, name: str) -> list[torch.Tensor]:
    """Records a jax function of xla or CPU tensors as one operator. Autograd does not see it.

    Args:
        function: traced by jax once for each look of the tensors.
        tensors: at least one, all on one device; they arrive row-major.
        key: equal for functions that do the same with equal shapes and dtypes. The function itself will do.
        name: in errors.

    Returns:
        what the function gives, as tensors of their device.

    Raises:
        TypeError: the function gives something of a dtype that torch does not have.
        what the function raises for arrays of these shapes.
    """
    return _call(_Keyed(function, key, name), tensors)[0]


def _call(function: _Keyed, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """What the function gives, and what it noted when it was traced."""
    device = tensors[0].device
    platform = xla_devices.get(device).platform if device.type == "xla" else "cpu"
    digest, noted = _traced(function, _looks(tensors), platform)
    return list(torch.ops.lazy_runtime.computation(list(tensors), digest)), noted


@functools.lru_cache(maxsize=REMEMBERED)
def _traced(function: _Keyed, looks: Looks, platform: str) -> tuple[str, dict[str, Any]]:
    """The digest that names what the function does, and what it notes meanwhile."""
    structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in looks]
    found = computation.trace(lambda *arrays: list(function.function(*arrays)), structs, platform)
    for each in found.outputs:
        try:
            dtypes.to_torch(each.dtype)
        except KeyError:
            raise TypeError(f"{function.name} gives {each.dtype}, which torch does not have") from None
    return found.digest, function.noted


def call_with_gradients(
    function: Function, tensors: Sequence[torch.Tensor], key: Hashable, name: str
) -> list[torch.Tensor]:
    """The same, with the gradients that `jax.vjp` gives. What it keeps for them is a result of the operator.

    The gradient of a gradient computes the function again.

    Args:
        function, tensors, key, name: see `call`.
    """
    return call_noting(function, tensors, key, name, {})[0]


def call_noting(
    function: Function, tensors: Sequence[torch.Tensor], key: Hashable, name: str, noted: dict[str, Any]
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """The same, for a function that notes what it learns while it is traced.

    Args:
        function, tensors, key, name: see `call`.
        noted: where this function notes it.

    Returns:
        the results, and the notes of the function that was traced: this one, or an earlier one of the same key.
    """
    wanted = tuple(each.requires_grad and _is_differentiable(each) for each in tensors)
    if not torch.is_grad_enabled() or not any(wanted):
        return _call(_Keyed(function, key, name, noted), tensors)
    told: list[dict[str, Any]] = []
    made = _WithGradients.apply(_Keyed(function, key, name, noted), wanted, told, *tensors)  # type: ignore[arg-type]
    return list(made), told[0]


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keyed: _Keyed, wanted: Any, told: list[dict[str, Any]], *tensors: torch.Tensor) -> Any:
        function, key, noted = keyed.function, keyed.key, keyed.noted

        def with_residuals(*arrays: Any) -> Sequence[Any]:
            results, pull = jax.vjp(_of_wanted(function, wanted, arrays), *_only(wanted, arrays))
            kept, noted["residuals"] = jax.tree.flatten(pull)
            noted["count"] = len(results)
            return [*results, *kept]

        made, known = _call(_Keyed(with_residuals, ("forward", key, wanted), keyed.name, noted), tensors)
        told.append(known)
        results, kept = made[: known["count"]], made[known["count"] :]
        ctx.keyed, ctx.known, ctx.wanted, ctx.looks = keyed, known, wanted, _looks(tensors)
        ctx.save_for_backward(*kept, *tensors)
        ctx.mark_non_differentiable(*[x for x in results if not _is_differentiable(x)])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        keyed, structure, wanted = ctx.keyed, ctx.known["residuals"], ctx.wanted
        are_differentiable = [_is_differentiable(x) for x in gradients]
        given = _only(are_differentiable, gradients)
        kept, tensors = ctx.saved_tensors[: -len(wanted)], ctx.saved_tensors[-len(wanted) :]
        name = f"{keyed.name}_backward"
        looks = _looks(gradients)

        def cotangents(some: Sequence[Any]) -> list[Any]:
            """One for each result of the function; those of integers have none."""
            found = iter(some)
            return [
                next(found) if is_differentiable else np.zeros(shape, jax.dtypes.float0)
                for (shape, _), is_differentiable in zip(looks, are_differentiable, strict=True)
            ]

        def pull(*arrays: Any) -> Sequence[Any]:
            some, residuals = arrays[: len(given)], arrays[len(given) :]
            return list(jax.tree.unflatten(structure, residuals)(cotangents(some)))

        def pull_again(*arrays: Any) -> Sequence[Any]:
            some, inputs = arrays[: len(given)], arrays[len(given) :]
            _, pull = jax.vjp(_of_wanted(keyed.function, wanted, inputs), *_only(wanted, inputs))
            return list(pull(cotangents(some)))

        key = keyed.key, wanted, ctx.looks
        if torch.is_grad_enabled():  # the gradient has one itself
            made = call_with_gradients(pull_again, [*given, *tensors], ("backward again", *key), name)
        else:
            made = call(pull, [*given, *kept], ("backward", *key), name)
        found = iter(made)
        return None, None, None, *[next(found) if w else None for w in wanted]


def _only(wanted: Sequence[bool], given: Sequence[Any]) -> list[Any]:
    return [each for is_wanted, each in zip(wanted, given, strict=True) if is_wanted]


def _of_wanted(function: Function, wanted: Sequence[bool], arrays: Sequence[Any]) -> Function:
    """The function of those of the arrays that it is differentiated by."""

    def of_wanted(*some: Any) -> Any:
        given = iter(some)
        return list(function(*[next(given) if w else x for w, x in zip(wanted, arrays, strict=True)]))

    return of_wanted


def _looks(tensors: Sequence[torch.Tensor]) -> Looks:
    return tuple((tuple(map(int, tensor.shape)), tensor.dtype) for tensor in tensors)  # sizes may be symbols


def _is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex
