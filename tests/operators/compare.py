"""Whether two results are the same: structure, dtypes, sizes, strides, values, and errors."""

from __future__ import annotations

import dataclasses
import re
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
        late: the error came after the call, from a sync or a read.
    """

    leaves: list[Any] = dataclasses.field(default_factory=list)
    structure: TreeSpec | None = None
    device: str = "cpu"
    error: BaseException | None = None
    late: bool = False


def result_of(tree: Any, device: str) -> Result:
    """Reads everything in `tree`. What the values are to blame for raises here."""
    leaves, structure = tree_flatten(tree)
    return Result([_look(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure, device)


def _look(x: torch.Tensor) -> Look:
    strided = x.layout is torch.strided
    value = x.detach().cpu().resolve_conj().resolve_neg()
    stride = tuple(x.stride()) if strided and not x.is_nested else None
    return Look(value, x.dtype, tuple(value.shape), stride, x.layout, x.device.type)


def difference(
    entry: str, expected: Result, result: Result, values: bool = True, strides: bool = True, errors: bool = True
) -> str | None:
    """How the result differs from what was expected, in one line; None if it does not.

    Args:
        entry: whose tolerances count.
        values: also compare the elements; a random call's are its own.
        strides: also compare strides.
        errors: also compare the types and messages of errors; Dynamo has its own.
    """
    if expected.error is not None and result.error is not None and not errors:
        return None
    if expected.error is not None or result.error is not None:
        return _error_difference(expected.error, result.error, result.late)
    if expected.structure != result.structure:
        return f"structure {result.structure} instead of {expected.structure}"
    if any(isinstance(x, Look) and x.device != result.device for x in result.leaves):
        return f"a result is not on the {result.device} device"
    pairs = list(enumerate(zip(expected.leaves, result.leaves, strict=True)))
    # strides last: they are the least of all differences
    for number, (x, y) in pairs:
        found = _leaf_difference(entry, x, y, values)
        if found is not None:
            return found + (f" in result {number}" if len(pairs) > 1 else "")
    for number, (x, y) in pairs:
        if strides and isinstance(x, Look) and _visible_strides(x) != _visible_strides(y):
            found = f"stride {y.stride} instead of {x.stride} for shape {x.shape}"
            return found + (f" in result {number}" if len(pairs) > 1 else "")
    return None


def _leaf_difference(entry: str, x: Any, y: Any, values: bool) -> str | None:
    if not isinstance(x, Look) or not isinstance(y, Look):
        return _other_difference(entry, x, y, values)
    for what in ("dtype", "shape", "layout"):
        if getattr(x, what) != getattr(y, what):
            return f"{what} {getattr(y, what)} instead of {getattr(x, what)}"
    return _value_difference(entry, x.value, y.value) if values else None


def _visible_strides(x: Look) -> list[int] | None:
    """The strides of dimensions that have more than one element."""
    if x.stride is None or 0 in x.shape:
        return None
    return [stride for size, stride in zip(x.shape, x.stride, strict=True) if size > 1]


def _value_difference(entry: str, x: torch.Tensor, y: torch.Tensor) -> str | None:
    bound = tolerances.bounds(entry, x.dtype)
    try:
        torch.testing.assert_close(y, x, rtol=bound.rtol, atol=bound.atol, equal_nan=True, check_stride=False)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line]
        return "values differ: " + "; ".join(lines[1:4] or lines)
    return None


def _other_difference(entry: str, x: Any, y: Any, values: bool) -> str | None:
    if type(x) is not type(y):
        return f"{_named(y)} instead of {_named(x)}"
    if isinstance(x, torch.device):
        return None
    if isinstance(x, float | complex):
        if not values:
            return None
        bound = tolerances.bounds(entry, torch.float32)
        same = torch.allclose(torch.tensor(y), torch.tensor(x), bound.rtol, bound.atol, equal_nan=True)
    else:
        same = x == y or not values
    return None if same else f"values differ: {y!r} instead of {x!r}"


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


def _error_difference(expected: BaseException | None, error: BaseException | None, late: bool) -> str | None:
    if expected is None:
        assert error is not None
        return first_line(error)
    if error is None:
        return f"does not raise {first_line(expected)}"
    if late and type(error) is type(expected) and "aten::" in str(error):
        return None  # what values are to blame for is found when they are computed, and names the operator
    if type(error) is not type(expected) or message(error) != message(expected):
        return f"raises {first_line(error)!r} instead of {first_line(expected)!r}"
    return None


def message(error: BaseException) -> str:
    """An exception's message, for which it does not matter on which device it was raised."""
    return str(error).replace("torch.xla.", "torch.").replace("xla:0", "cpu").replace("xla", "cpu").strip()
