"""The road through `lazy_runtime.jax.function`: a call is a module's, which jax jits and differentiates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from lazy_runtime.jax import asarray, from_array, function

from .arguments import XLA
from .case import Case
from .compare import Result
from .roads import attempt, drop_pending


def run(cases: Sequence[Case]) -> Iterator[Result]:
    """Every call by `jax.jit`, its gradients by `jax.vjp`."""
    for case in cases:
        result = attempt(case, XLA, through_jax)
        if result.error is not None:
            drop_pending()
        yield result


def through_jax(called: Callable[..., Any]) -> Callable[..., Any]:
    """The function as jax computes it: of tensors, and differentiable, as it was."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree_flatten((args, kwargs))
        module = _Module(called, leaves, structure)
        _, pure = function(module)
        jitted = jax.jit(lambda *arrays: pure({}, *arrays, key=jax.random.key(0)))
        found = _Jitted.apply(jitted, *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)))
        assert module.results is not None
        return tree_unflatten(
            [each.to(dtype) for each, dtype in zip(found, module.dtypes, strict=True)], module.results
        )

    return call


class _Module(torch.nn.Module):
    """A call as a module's.

    Attributes:
        results: the nest of what the function gives.
        dtypes: of the tensors in it; jax by itself has none of 64 bits.
    """

    def __init__(self, called: Callable[..., Any], leaves: list[Any], structure: TreeSpec):
        super().__init__()
        self._called = called
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._structure = structure
        self.results: TreeSpec | None = None
        self.dtypes: list[torch.dtype] = []

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor.clone()  # may be written to, as statistics are, which an argument may not
        args, kwargs = tree_unflatten(leaves, self._structure)
        found, self.results = tree_flatten(self._called(*args, **kwargs))
        self.dtypes = [torch.as_tensor(each).dtype for each in found]
        return found


class _Jitted(torch.autograd.Function):
    """A jitted function of tensors, with its gradient by `jax.vjp`.

    To jax the gradient of a complex number is the conjugate of torch's.
    """

    @staticmethod
    def forward(ctx: Any, jitted: Callable[..., Any], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arrays = [asarray(tensor) for tensor in tensors]
        ctx.wanted = [place for place, needs in enumerate(ctx.needs_input_grad[1:]) if needs]

        def of_wanted(*given: jax.Array) -> list[jax.Array]:
            filled = list(arrays)
            for place, array in zip(ctx.wanted, given, strict=True):
                filled[place] = array
            return jitted(*filled)

        if ctx.wanted:
            found, ctx.vjp = jax.vjp(of_wanted, *(arrays[place] for place in ctx.wanted))
        else:
            found = of_wanted()
        results = tuple(map(from_array, found))
        ctx.mark_non_differentiable(*(each for each in results if not (each.is_floating_point() or each.is_complex())))
        return results

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        arrays = [jax.numpy.conj(asarray(each.resolve_conj().contiguous())) for each in cotangents]
        found = ctx.vjp([_cotangent(each) for each in arrays])
        gradients: list[torch.Tensor | None] = [None] * len(ctx.needs_input_grad)
        for place, gradient in zip(ctx.wanted, found, strict=True):
            gradients[1 + place] = from_array(jax.numpy.conj(gradient))
        return tuple(gradients)


def _cotangent(array: jax.Array) -> Any:
    """What jax takes for the cotangent of a result: none of integers."""
    return array if jax.numpy.issubdtype(array.dtype, np.inexact) else np.zeros(array.shape, jax.dtypes.float0)
