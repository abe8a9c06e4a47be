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
    """Records a jax function of xla tensors as one operator. Autograd does not see it.

    Args:
        function: traced by jax once for each look of the tensors.
        tensors: at least one, all on one device; they arrive row-major.
        key: equal for functions that do the same with equal shapes and dtypes. The function itself will do.
        name: in errors.

    Returns:
        what the function gives, as xla tensors.

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

    Args:
        function, tensors, key, name: see `call`.
    """
    wanted = tuple(each.requires_grad and _is_differentiable(each) for each in tensors)
    if not torch.is_grad_enabled() or not any(wanted):
        return call(function, tensors, key, name)
    return list(_WithGradients.apply(function, key, name, wanted, *tensors))  # type: ignore[arg-type]


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Function, key: Hashable, name: str, wanted: Any, *tensors: torch.Tensor) -> Any:
        looks = _looks(tensors)
        noted: dict[str, Any] = {}

        def with_residuals(*arrays: Any) -> Sequence[Any]:
            def of_wanted(*some: Any) -> Any:
                given = iter(some)
                return list(function(*[next(given) if w else x for w, x in zip(wanted, arrays, strict=True)]))

            results, pull = jax.vjp(of_wanted, *[x for w, x in zip(wanted, arrays, strict=True) if w])
            kept, noted["structure"] = jax.tree.flatten(pull)
            noted["count"] = len(results)
            return [*results, *kept]

        made, known = _call(_Keyed(with_residuals, ("forward", key, wanted), name, noted), tensors)
        results, kept = made[: known["count"]], made[known["count"] :]
        ctx.known, ctx.key, ctx.name, ctx.wanted = known, (key, wanted, looks), name, wanted
        ctx.save_for_backward(*kept)
        ctx.mark_non_differentiable(*[x for x in results if not _is_differentiable(x)])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        structure, count = ctx.known["structure"], ctx.known["count"]
        are_differentiable = [_is_differentiable(x) for x in gradients]

        def pull(*arrays: Any) -> Sequence[Any]:
            given = [
                x if is_differentiable else np.zeros(x.shape, jax.dtypes.float0)
                for x, is_differentiable in zip(arrays[:count], are_differentiable, strict=True)
            ]
            return list(jax.tree.unflatten(structure, arrays[count:])(given))

        made = iter(call(pull, [*gradients, *ctx.saved_tensors], ("backward", ctx.key), f"{ctx.name}_backward"))
        return None, None, None, None, *[next(made) if w else None for w in ctx.wanted]


def _looks(tensors: Sequence[torch.Tensor]) -> Looks:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)


def _is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex
