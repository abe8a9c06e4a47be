"""Calls of operators whose operands come from other operators of the same program, each in another order of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import rows, ties
from .arguments import Target, arguments
from .case import Call, Case, Wrap

#: Samples of an entry, and operands of each, that are tried in every order.
SAMPLES, OPERANDS = 3, 3

#: Elements of a sample's tensors together that a call may have.
_LARGEST = 20_000


class Order(NamedTuple):
    """How an operand comes to its order.

    Attributes:
        store: the tensor that is an input of the program.
        load: gives the operand from it, within the program.
        dims: how many dimensions an operand must have.
    """

    store: Callable[[torch.Tensor], torch.Tensor]
    load: Callable[[torch.Tensor], torch.Tensor]
    dims: Callable[[int], bool] = lambda dims: dims >= 1


def _reversed(x: torch.Tensor) -> torch.Tensor:
    return x.permute(*range(x.dim() - 1, -1, -1))


def _convolved(x: torch.Tensor) -> torch.Tensor:
    """The same image from a convolution, whose result has its channels last."""
    channels = x.shape[1]
    return F.conv2d(x, torch.eye(channels, dtype=x.dtype).to(x.device).reshape(channels, channels, 1, 1))


ORDERS = {
    "transposed": Order(lambda x: x.mT.contiguous(), lambda x: x.mT, lambda dims: dims >= 2),
    "permuted": Order(lambda x: _reversed(x).contiguous(), _reversed, lambda dims: dims >= 2),
    "strided": Order(lambda x: torch.stack([x, x], -1).flatten(-2), lambda x: x[..., ::2]),
    "taken": Order(lambda x: torch.stack([x, x], 1), lambda x: x.unbind(1)[1]),
    "taken of permuted": Order(lambda x: torch.stack([x, x], -1), lambda x: _reversed(_reversed(x)[1])),
    "expanded": Order(lambda x: x[:1], lambda x: x.expand(3, *x.shape[1:])),
    "convolved": Order(lambda x: x, _convolved, lambda dims: dims == 4),
}


def cases(row: rows.Row) -> list[Case]:
    """Every order of each of the first operands of some samples."""
    entry = rows.entry_of(row)
    return list(_cases(entry, row.torch_dtype))


def _cases(entry: Any, dtype: torch.dtype) -> Iterator[Case]:
    samples = [sample for sample in entry.sample_inputs("cpu", dtype) if _is_small(sample)]
    for sample in samples[:: max(1, (len(samples) - 1) // (SAMPLES - 1))][:SAMPLES]:
        leaves, _ = tree_flatten(([sample.input, *sample.args], sample.kwargs))
        dense = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.layout is torch.strided]
        for number in dense[:OPERANDS]:
            for name, order in ORDERS.items():
                if _fits(leaves[number], name, order):
                    yield _case(entry, sample, number, name, order)


def _is_small(sample: Any) -> bool:
    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return sum(x.numel() for x in leaves if isinstance(x, torch.Tensor)) <= _LARGEST


def _fits(x: torch.Tensor, name: str, order: Order) -> bool:
    if name == "convolved" and (x.dtype is not torch.float32 or not x.numel()):
        return False
    return order.dims(x.dim()) and (name != "expanded" or x.shape[0] == 3)


def _case(entry: Any, sample: Any, number: int, name: str, order: Order) -> Case:
    process = ties.UNORDERED.get(entry.name)

    def prepare(target: Target) -> Call:
        args, kwargs = arguments(entry, sample, target)
        leaves, structure = tree_flatten((args, kwargs))
        stored = order.store(leaves[number].detach().resolve_conj().resolve_neg()).clone()

        def call(wrap: Wrap) -> Any:
            def function(stored: torch.Tensor, *others: Any) -> Any:
                filled = list(others)
                filled[number] = order.load(stored)
                args, kwargs = tree_unflatten(filled, structure)
                result = entry.op(*args, **kwargs)
                return process(result, *args, **kwargs) if process else result

            return wrap(function)(stored, *leaves)

        return call

    return Case(prepare, f"operand {number} is {name} in {sample.summary()}")
