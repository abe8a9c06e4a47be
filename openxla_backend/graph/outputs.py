"""What a call of a program gives its caller, and where the value of each output comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import torch

from lazy_runtime.ir.spec import TensorSpec
from lazy_runtime.tensor.xla_tensor import XLATensor


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The value is one that the executable computes.

    Attributes:
        number: of the executable's result.
    """

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """The value is an argument's.

    Attributes:
        number: of the argument.
    """

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """The value is a constant of the graph."""

    tensor: XLATensor


Source = Result | Argument | Constant


@dataclasses.dataclass(frozen=True, slots=True)
class PythonValue:
    """No tensor: None, a number."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class ArgumentItself:
    """The tensor that was given as an argument.

    Attributes:
        source: which argument.
        spec: how it looks.
        device: where it is.
    """

    source: Argument
    spec: TensorSpec
    device: torch.device


@dataclasses.dataclass(frozen=True, slots=True)
class OwnTensor:
    """A tensor that is no view.

    Attributes:
        source: where its value comes from.
        spec: how it looks.
        device: where the user gets it.
        memory: outputs with the same one are one tensor; None for memory that no other output has.
        copied: it has the value of an argument, or of a constant, in memory of its own.
    """

    source: Source
    spec: TensorSpec
    device: torch.device
    memory: Hashable | None = None
    copied: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """A view of something that is, or that has another view, among the outputs; or of an argument.

    Attributes:
        source: where its value comes from.
        spec: how it looks.
        device: where the user gets it.
        base: what it is a view of.
        detached: autograd is not to know of what it is a view of.
        calls: the view operators that make it from `base`, where `as_strided` cannot say the same.
    """

    source: Source
    spec: TensorSpec
    device: torch.device
    base: ArgumentItself | OwnTensor | View
    detached: bool = False
    calls: tuple[ViewCall, ...] = ()

    def seen_base(self, base: torch.Tensor, made: dict[Any, Any]) -> torch.Tensor:
        """What autograd is to know as the base of the view, one for all views of `base`: AOTAutograd refuses arguments
        that share memory but not their base, once one of them is written to.

        Args:
            made: tensors of one call.
        """
        if not self.detached:
            return base
        key = "detached", id(base)
        if key not in made:
            made[key] = base, base.detach()  # while it is there, no other one has its number
        return made[key][1]

    def of(self, base: torch.Tensor) -> torch.Tensor:
        """What the user gets, as a view of what `self.base` has become."""
        if not self.calls:
            offset = self.spec.offset - self.base.spec.offset + int(base.storage_offset())
            return base.as_strided(self.spec.shape, self.spec.stride, offset)
        seen: Any = base
        for call in self.calls:
            seen = call.target(seen, *call.args, **call.kwargs)
        return seen


@dataclasses.dataclass(frozen=True, slots=True)
class ViewCall:
    """A view operator, or the choice of one of several views, without what it is applied to."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


TensorOutput = ArgumentItself | OwnTensor | View
Output = PythonValue | TensorOutput


def result_of(output: Output) -> int | None:
    """The number of the executable's result that an output has the value of; None if there is none."""
    if isinstance(output, PythonValue) or not isinstance(output.source, Result):
        return None
    return output.source.number
