"""Whether two results are the same: structure, dtypes, sizes, strides, values, and errors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten

from . import tolerances


@dataclasses.dataclass(frozen=True)
class Look:
    """A tensor as its user sees it."""

    value: torch.Tensor  # on the CPU
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    layout: torch.layout
    device: str


@dataclasses.dataclass(frozen=True)
class Result:
    """What a call gave, or raised.

    Attributes:
        device: where the tensors are to be.
        random: the call drew random numbers.
    """

    leaves: list[Any] = dataclasses.field(default_factory=list)
    structure: TreeSpec | None = None
    device: str = "cpu"
    random: bool = False
    error: BaseException | None = None


def result_of(tree: Any, device: str, random: bool = False) -> Result:
    """Reads everything in `tree`. What the values are to blame for raises here."""
    leaves, structure = tree_flatten(tree)
    return Result(
        [_look(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure, device, random
    )


def _look(x: torch.Tensor) -> Look:
    strided = x.layout is torch.strided
    value = x.detach().cpu().resolve_conj().resolve_neg()
    stride = tuple(x.stride()) if strided and not x.is_nested else None
    return Look(value, x.dtype, tuple(value.shape), stride, x.layout, x.device.type)


class Comparison:
    """Compares the results of a row's calls.

    Args:
        entry, direction: whose tolerances count.
        values: also compare the elements.
        strides: also compare strides.
        errors: also compare the types and messages of errors.
        zeros: zeros are as good as no gradient.
    """

    def __init__(
        self,
        entry: str,
        direction: str,
        *,
        values: bool = True,
        strides: bool = True,
        errors: bool = True,
        zeros: bool = False,
    ):
        self._entry = entry
        self._direction = direction
        self._values = values
        self._strides = strides
        self._errors = errors
        self._zeros = zeros

    def difference(self, expected: Result, result: Result, exact: Callable[[], Result] | None = None) -> str | None:
        """How the result differs from what was expected, in one line; None if it does not.

        Args:
            exact: gives the same call's result with hardly any rounding. Where the CPU's own rounding has put its
                element aside of that, one that is right is as good.
        """
        if expected.error is not None or result.error is not None:
            return _error_difference(expected.error, result, self._errors)
        if self._zeros:
            expected = _with_zeros(expected, result)
        if expected.structure != result.structure:
            return f"structure {result.structure} instead of {expected.structure}"
        if any(isinstance(x, Look) and x.device != result.device for x in result.leaves):
            return f"a result is not on the {result.device} device"
        looks = _first(_look_difference, expected.leaves, result.leaves)
        if looks is not None:
            return looks
        values = None if expected.random else self._value_difference(expected.leaves, result.leaves)
        if values is not None and exact is not None:
            values = self._value_difference(self._nearest(expected, result, exact()), result.leaves)
        # strides last: they are the least of all differences
        return values or (_first(_stride_difference, expected.leaves, result.leaves) if self._strides else None)

    def _value_difference(self, expected: list[Any], result: list[Any]) -> str | None:
        return _first(self._leaf_difference, expected, result) if self._values else None

    def _leaf_difference(self, x: Any, y: Any) -> str | None:
        if isinstance(x, torch.device):
            return None
        if isinstance(x, Look):
            return self._tensor_difference(x.value, y.value)
        if not isinstance(x, float | complex):
            return None if x == y else f"values differ: {y!r} instead of {x!r}"
        return self._tensor_difference(torch.tensor(x), torch.tensor(y))

    def _tensor_difference(self, x: torch.Tensor, y: torch.Tensor) -> str | None:
        bound = tolerances.bounds(self._entry, self._direction, x)
        try:
            torch.testing.assert_close(y, x, rtol=bound.rtol, atol=bound.atol, equal_nan=True, check_stride=False)
        except AssertionError as error:
            lines = [line for line in str(error).splitlines() if line]
            return "values differ: " + "; ".join(lines[1:4] or lines)
        return None

    def _nearest(self, expected: Result, result: Result, exact: Result) -> list[Any]:
        """What is expected, with the result's own elements where these are right."""
        if exact.structure != expected.structure:
            return expected.leaves
        leaves = zip(expected.leaves, result.leaves, exact.leaves, strict=True)
        return [self._nearest_leaf(*leaf) for leaf in leaves]

    def _nearest_leaf(self, x: Any, y: Any, exact: Any) -> Any:
        if not isinstance(x, Look):
            return y if self._leaf_difference(exact, y) is None else x
        if not x.value.shape == y.value.shape == exact.value.shape:
            return x
        bound = tolerances.bounds(self._entry, self._direction, exact.value.to(x.dtype))
        value = exact.value.to(x.dtype).to(exact.dtype)  # infinite where it is too large for the dtype
        right = torch.isclose(y.value.to(exact.dtype), value, bound.rtol, bound.atol, equal_nan=True)
        return dataclasses.replace(x, value=torch.where(right, y.value, x.value))


def _with_zeros(expected: Result, result: Result) -> Result:
    """What is expected, with zeros in place of None where the result is a tensor."""
    if expected.structure is None or len(expected.leaves) != len(result.leaves):
        return expected
    leaves = [
        dataclasses.replace(y, value=torch.zeros_like(y.value)) if x is None and isinstance(y, Look) else x
        for x, y in zip(expected.leaves, result.leaves, strict=True)
    ]
    return dataclasses.replace(expected, leaves=leaves)


def _first(compare: Callable[[Any, Any], str | None], expected: list[Any], result: list[Any]) -> str | None:
    """The first difference between leaves, with the number of the leaf."""
    for number, (x, y) in enumerate(zip(expected, result, strict=True)):
        found = compare(x, y)
        if found is not None:
            return found + (f" in result {number}" if len(expected) > 1 else "")
    return None


def _look_difference(x: Any, y: Any) -> str | None:
    if type(x) is not type(y):
        return f"{_named(y)} instead of {_named(x)}"
    if isinstance(x, Look):
        for what in ("dtype", "shape", "layout"):
            if getattr(x, what) != getattr(y, what):
                return f"{what} {getattr(y, what)} instead of {getattr(x, what)}"
    return None


def _stride_difference(x: Any, y: Any) -> str | None:
    if isinstance(x, Look) and _visible_strides(x) != _visible_strides(y):
        return f"stride {y.stride} instead of {x.stride} for shape {x.shape}"
    return None


def _visible_strides(x: Look) -> list[int] | None:
    """The strides of dimensions that have more than one element."""
    if x.stride is None or 0 in x.shape:
        return None
    return [stride for size, stride in zip(x.shape, x.stride, strict=True) if size > 1]


def _named(x: Any) -> str:
    return "a tensor" if isinstance(x, Look) else type(x).__name__


def first_line(error: BaseException) -> str:
    """Type and first line of an exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]  # a wrapper, and then what it is about
    return f"{type(error).__name__}: {text}"[:400]


def shorten(error: str) -> str:
    """An error without its numbers, so that like ones fall together."""
    if error.startswith("values differ"):
        return "values differ"
    if "has no lowering to XLA" in error:
        return error.partition(" has no lowering")[0] + " has no lowering to XLA"
    return re.sub(r"(?<![\w.])-?\d+(\.\d+)?(e[+-]?\d+)?", "#", error)[:160]


def _error_difference(expected: BaseException | None, result: Result, messages: bool) -> str | None:
    if expected is None:
        assert result.error is not None
        return first_line(result.error)
    error = result.error
    if error is None:
        return f"does not raise {first_line(expected)}"
    if not messages:
        return None
    if type(error) is not type(expected) or not _says(message(error), message(expected)):
        return f"raises {first_line(error)!r} instead of {first_line(expected)!r}"
    return None


def _says(message: str, expected: str) -> bool:
    """Whether a message is the expected one. What values are to blame for also names the operator, and the line of the
    user's that called it.
    """
    return message == expected or message.startswith(f"{expected}\n  aten::")


def message(error: BaseException) -> str:
    """An exception's message, for which it does not matter on which device it was raised."""
    text, wrong_arguments, _ = str(error).partition(_WRONG_ARGUMENTS)
    return (
        (text + wrong_arguments).replace("torch.xla.", "torch.").replace("xla:0", "cpu").replace("xla", "cpu").strip()
    )


#: what comes after it shows the arguments, tensors on xla as such
_WRONG_ARGUMENTS = "failed to match any schema"
