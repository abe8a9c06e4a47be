"""A function that depends on its arguments alone, recorded as one call without running its Python again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition

from ..ir.graph import Call
from ..lowering.layout import logical
from ..tensor.xla_tensor import XLATensor, unwrap
from . import calls, joint
from .traced import TracedFunction


class PureCall:
    """A function of xla tensors, traced once for tensors that look as those do.

    Args:
        function: `(*tensors)` to a sequence of tensors and None.
        tensors: what it is traced for, at least one.
        name: in reports and errors.
    """

    def __init__(self, function: Callable[..., Sequence[Any]], tensors: Sequence[torch.Tensor], name: str):
        places: list[bool] = []

        def of_tensors(*given: torch.Tensor) -> Sequence[torch.Tensor]:
            found = function(*given)
            places[:] = [each is not None for each in found]
            return [each for each in found if each is not None]

        operands = [unwrap(tensor) for tensor in tensors]
        device = operands[0].spec.device
        traced = TracedFunction(of_tensors, [operand.spec for operand in operands], device, name)
        self._places = places
        self._captured: list[XLATensor] = traced.captured
        traced.captured = []  # the call outlives this object
        count = len(operands)

        def evaluate(arrays: Sequence[Any], floats: Any, seeds: Sequence[Any]) -> Sequence[Any]:
            arrays = logical(list(arrays))
            results, flag = traced(arrays[:count], arrays[count:], seeds)
            traced.require(flag)
            return results

        def make_call() -> Call:
            return Call(
                f"pure::{name}",
                device,
                evaluate,
                tuple(operand.spec for operand in (*operands, *self._captured)),
                tuple(traced.specs),
                container=list,
                ints=traced.graph.ints,
                fallible=traced.is_fallible,
            )

        self._call = calls.intern(("pure", traced.key), make_call, lambda: f"pure {traced.digest()}")

    @property
    def seeds(self) -> int:
        """How many random seeds a call takes."""
        return self._call.ints

    def __call__(self, tensors: Sequence[torch.Tensor], seeds: Sequence[int] | None = None) -> list[Any]:
        """Records a call; gives its results, and None where the function gave None.

        Args:
            tensors: of the same specs as those that it was traced for.
            seeds: `self.seeds` of them; by default the device's next ones.
        """
        operands = [*(unwrap(tensor) for tensor in tensors), *self._captured]
        made = iter(calls.to_user(calls.record(self._call, operands, seeds)))
        return [next(made) if is_tensor else None for is_tensor in self._places]


class PureFunction:
    """A function with gradients, for arguments of one look.

    Args:
        function: of as many trees as there are in `arguments`.
        arguments: a tuple of trees with a `joint.Look` in place of each tensor.
        name: in reports and errors.

    Raises:
        RuntimeError, AssertionError: see `joint.split`.
    """

    def __init__(self, function: Callable[..., Any], arguments: Any, name: str):
        self.name = name
        self.traced = joint.split(function, arguments, min_cut_rematerialization_partition, name)
        self._calls: dict[Any, PureCall] = {}  # by what the tensors look like to the device: strides as well

    @property
    def structure(self) -> Any:
        """Of the results."""
        return self.traced.structure

    def __call__(
        self, tensors: Sequence[torch.Tensor], draw: Callable[[int], Sequence[int]] | None = None
    ) -> list[Any]:
        """The results, flat.

        Args:
            tensors: the leaves of the arguments.
            draw: makes the random seeds; by default they are the device's next ones.
        """
        return list(_Apply.apply(self, draw, *tensors))  # type: ignore[arg-type]

    def call(
        self, graph: Any, tensors: Sequence[torch.Tensor], draw: Callable[[int], Sequence[int]] | None
    ) -> list[Any]:
        """Records one of the two graphs."""
        key = id(graph), tuple(unwrap(tensor).spec for tensor in tensors)
        found = self._calls.get(key)
        if found is None:
            name = self.name if graph is self.traced.forward else f"{self.name}_backward"
            found = self._calls[key] = PureCall(graph, tensors, name)
        return found(tensors, None if draw is None else draw(found.seeds))


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: PureFunction, draw: Any, *tensors: torch.Tensor) -> Any:
        traced = function.traced
        found = function.call(traced.forward, tensors, draw)
        results, kept = found[: traced.results], found[traced.results :]
        ctx.function, ctx.draw, ctx.count = function, draw, len(tensors)
        ctx.save_for_backward(*kept)
        ctx.set_materialize_grads(False)
        ctx.likes = [None if each is None else (each.shape, each.dtype, each.device) for each in results]
        ctx.mark_non_differentiable(*[r for r, t in zip(results, traced.takes_gradient, strict=True) if t is False])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        traced = ctx.function.traced
        given = [
            torch.zeros(like[0], dtype=like[1], device=like[2]) if gradient is None else gradient
            for gradient, like, is_taken in zip(gradients, ctx.likes, traced.takes_gradient, strict=True)
            if is_taken
        ]
        if traced.backward is None:
            return None, None, *[None] * ctx.count
        return None, None, *ctx.function.call(traced.backward, [*ctx.saved_tensors, *given], ctx.draw)
