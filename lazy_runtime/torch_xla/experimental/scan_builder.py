"""What loops that are written with `xla_builder` need: parameters for tensors, and elements of the first dimension."""

from __future__ import annotations

import torch

from ..core import xla_builder as xb

__all__ = ["Builder", "XlaBuildHelper", "dynamic_slice", "dynamic_update_slice"]


class Builder:
    """A builder of a computation, with a parameter for each tensor that it is to be called with.

    Args:
        name: of the computation.
    """

    def __init__(self, name: str):
        self._builder = xb.create_builder(name)
        self._params: list[xb.Op] = []
        self._tensors: list[torch.Tensor] = []

    def add_param(self, val: torch.Tensor) -> int:
        """Adds a parameter of a tensor's shape and dtype; its number."""
        number = len(self._params)
        self._params.append(xb.mkparam(self._builder, number, xb.tensor_shape(val)))
        self._tensors.append(val)
        return number

    def params(self) -> tuple[xb.Op, ...]:
        """The parameters, in order."""
        return tuple(self._params)

    def param_tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors that they were added for."""
        return tuple(self._tensors)

    def num_params(self) -> int:
        """How many there are."""
        return len(self._params)


class XlaBuildHelper:
    """`Builder` as `experimental.gradient_accumulation` has it: parameters with numbers of one's own.

    Args:
        name: of the computation.
    """

    def __init__(self, name: str):
        self._builder = xb.create_builder(name)
        self._params: list[xb.Op] = []
        self._tensors: list[torch.Tensor] = []

    def add_param(self, val: torch.Tensor, idx: int | None = None) -> int:
        """Adds a parameter of a tensor's shape and dtype; its number, the next one by default."""
        number = len(self._params) if idx is None else idx
        self._params.append(xb.mkparam(self._builder, number, xb.tensor_shape(val)))
        self._tensors.append(val)
        return number

    @property
    def params(self) -> tuple[xb.Op, ...]:
        """The parameters, in the order in which they were added."""
        return tuple(self._params)

    @property
    def param_tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors that they were added for."""
        return tuple(self._tensors)

    @property
    def num_params(self) -> int:
        """How many there are."""
        return len(self._params)


def dynamic_slice(xs: xb.Op, idx: xb.Op) -> xb.Op:
    """The element `idx` of the first dimension of `xs`, without that dimension."""
    sizes = list(xs.shape().sizes)
    element = xs.dynamic_slice([idx, *[idx.zeros_like()] * (len(sizes) - 1)], [1, *sizes[1:]])
    return element.reshape(sizes[1:])


def dynamic_update_slice(ys: xb.Op, y: xb.Op, idx: xb.Op) -> xb.Op:
    """`ys` with `y` as the element `idx` of its first dimension."""
    return ys.dynamic_update_slice(y.broadcast([1]), [idx, *[idx.zeros_like()] * (len(ys.shape().sizes) - 1)])
