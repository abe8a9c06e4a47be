"""Calls of operators of integers at both ends of a type: its least and largest number, 0, 1 and -1."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
from torch.utils._pytree import tree_map

from . import rows, ties
from .arguments import Target, arguments
from .case import Call, Case, Wrap

#: Entries whose CPU kernels divide: the least number by -1 ends a process on x86.
_DIVIDE = frozenset({"__rmod__", "div_floor_rounding", "div_trunc_rounding", "floor_divide", "fmod", "remainder"})


@dataclasses.dataclass
class Sample:
    """The arguments of a call, as `SampleInput` has them."""

    input: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)


def cases(row: rows.Row) -> list[Case]:
    """All pairs of such numbers for an operator of two, else samples of torch's whose first tensor consists of them."""
    entry, dtype = rows.entry_of(row), row.torch_dtype
    return [_case(entry, sample) for sample in _samples(entry, dtype)]


def numbers(dtype: torch.dtype) -> list[int]:
    """The numbers at the ends of a type and around 0."""
    ends = torch.iinfo(dtype)
    return sorted(
        {number for number in (ends.min, ends.min + 1, -1, 0, 1, 2, ends.max - 1, ends.max) if number >= ends.min}
    )


def _samples(entry: Any, dtype: torch.dtype) -> Iterator[Sample]:
    ends = numbers(dtype)
    if isinstance(entry, BinaryUfuncInfo):
        pairs = list(itertools.product(ends, ends))
        least = torch.iinfo(dtype).min
        if entry.formatted_name in _DIVIDE:
            pairs = [(x, y) for x, y in pairs if y != 0 and (x, y) != (least, -1)]
        if entry.formatted_name == "lcm":  # which divides the least number by a divisor that may be -1
            pairs = [(x, y) for x, y in pairs if least == 0 or least not in (x, y) or x == y]
        if "_polynomial_" in entry.name:  # of a degree, to which the CPU's kernel counts
            pairs = [(x, y) for x, y in pairs if y < 1 << 16]
        first, second = (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))
        yield Sample(first, (second,))
        return
    if isinstance(entry, UnaryUfuncInfo):
        kwargs = entry.sample_kwargs("cpu", dtype, None)[0]
        yield Sample(torch.tensor(ends, dtype=dtype), (), kwargs)
        return
    for sample in list(entry.sample_inputs("cpu", dtype))[:3]:
        if isinstance(sample.input, torch.Tensor) and sample.input.numel():
            size = sample.input.numel()
            cycle = torch.tensor(list(itertools.islice(itertools.cycle(ends), size)), dtype=dtype)
            yield Sample(cycle.reshape(sample.input.shape), sample.args, sample.kwargs)


def _case(entry: Any, sample: Any) -> Case:
    process = ties.UNORDERED.get(entry.name)

    def prepare(target: Target) -> Call:
        args, kwargs = arguments(entry, sample, target)

        def call(wrap: Wrap) -> Any:
            result = wrap(lambda *args, **kwargs: entry.op(*args, **kwargs))(*args, **kwargs)
            return process(result, *args, **kwargs) if process else result

        return call

    return Case(prepare, f"{sample.input} {tree_map(str, sample.args)} {sample.kwargs}")
