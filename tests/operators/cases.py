"""The calls that a row stands for, the same on every device."""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import layouts, limits, modules, optimizers, rows, ties
from .arguments import Target, arguments, differentiable
from .case import Call, Case, Wrap, gradients


def seed(row: rows.Row) -> int:
    """One seed per sample generator: the same on every road."""
    return zlib.crc32(f"{row.database}/{row.entry}/{row.direction}/{row.dtype}".encode())


def cases(row: rows.Row, limit: int) -> list[Case]:
    """The row's calls.

    Args:
        limit: at most so many, spread evenly over all that there are; 0 for all.
    """
    number = seed(row)
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number % 2**32)
    return _spread(_MAKERS[row.database](row), limit)


def _spread(found: Sequence[Case], limit: int) -> list[Case]:
    """`limit` of them with the first and the last: later samples are often of another kind than the first."""
    if not limit or len(found) <= limit:
        return list(found)
    if limit == 1:
        return [found[0]]
    return [found[round(i * (len(found) - 1) / (limit - 1))] for i in range(limit)]


def _operator(row: rows.Row) -> list[Case]:
    entry, dtype = rows.entry_of(row), row.torch_dtype
    if row.direction == "errors":
        samples = [error.sample_input for error in entry.error_inputs("cpu")]
        return [_forward(entry, sample) for sample in samples]
    if row.direction == "layouts":
        return layouts.cases(row)
    if row.direction == "limits":
        return limits.cases(row)
    samples = list(entry.sample_inputs("cpu", dtype, requires_grad=row.direction == "backward"))
    if row.direction == "backward":
        return [_backward(entry, sample) for sample in samples]
    if row.direction == "inplace":
        return [_inplace(entry, sample) for sample in samples if not sample.broadcasts_input]
    if row.direction == "out":
        return [_out(entry, sample, (_same, _no_elements)) for sample in samples]
    if row.direction == "strided_out":
        return [_out(entry, sample, (_transposed,)) for sample in samples]
    return [_forward(entry, sample) for sample in samples]


def _forward(entry: Any, sample: Any) -> Case:
    process = ties.UNORDERED.get(entry.name)

    def prepare(target: Target) -> Call:
        args, kwargs = arguments(entry, sample, target)

        def call(wrap: Wrap) -> Any:
            result = wrap(_call(entry.op))(*args, **kwargs)
            return process(result, *args, **kwargs) if process else result

        return call

    return Case(prepare, sample.summary())


def _call(op: Callable[..., Any]) -> Callable[..., Any]:
    """A function in Python around what may be a builtin, which Dynamo compiles differently."""
    return lambda *args, **kwargs: op(*args, **kwargs)


def _backward(entry: Any, sample: Any) -> Case:
    """The results, and their gradients for fixed cotangents, after what torch's own gradient tests do to the results
    whose gradients are not unique (`output_process_fn_grad`).
    """

    def prepare(target: Target) -> Call:
        args, kwargs = arguments(entry, sample, target)

        def function(*args: Any, **kwargs: Any) -> Any:
            return sample.output_process_fn_grad(entry.op(*args, **kwargs))

        return lambda wrap: gradients(wrap(function)(*args, **kwargs), differentiable((args, kwargs)))

    return Case(prepare, sample.summary())


def _inplace(entry: Any, sample: Any) -> Case:
    """The first argument after the call, what the call gave, and whether that is the argument itself."""

    def prepare(target: Target) -> Call:
        args, kwargs = arguments(entry, sample, target)

        def call(wrap: Wrap) -> Any:
            result = wrap(entry.inplace_variant)(*args, **kwargs)
            return args[0], result, result is args[0]

        return call

    return Case(prepare, sample.summary())


def _out(entry: Any, sample: Any, makers: Sequence[Callable[[torch.Tensor], torch.Tensor]]) -> Case:
    """The call with each `out=` that `makers` make for what it gives."""
    process = ties.UNORDERED.get(entry.name)

    def prepare(target: Target) -> Call:
        args, kwargs = arguments(entry, sample, dataclasses.replace(target, device="cpu"))
        expected = entry.op(*args, **kwargs)
        args, kwargs = arguments(entry, sample, target)

        def call(wrap: Wrap) -> Any:
            results = []
            for make in makers:
                out = tree_map(lambda x: make(x).to(target.device) if isinstance(x, torch.Tensor) else x, expected)  # noqa: B023
                result = wrap(entry.op)(*args, **kwargs, out=out)
                itself = [x is y for x, y in zip(tree_leaves(result), tree_leaves(out), strict=True)]
                results.append((process(result, *args, **kwargs) if process else (result, out), itself))
            return results

        return call

    return Case(prepare, sample.summary())


def _same(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, 1)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    order = range(x.dim() - 1, -1, -1)
    return torch.ones([x.shape[dim] for dim in order], dtype=x.dtype).permute(*order) if x.dim() > 1 else _same(x)


def _no_elements(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=x.dtype)


_MAKERS: dict[str, Callable[[rows.Row], list[Case]]] = {
    "op_db": _operator,
    "foreach": _operator,
    "module_db": modules.cases,
    "optim_db": optimizers.cases,
}
