"""Torch's control flow outside of compiled functions, on xla tensors: `cond`, `while_loop`, `map`, `scan`.

As on any device without a compiler, Python decides: what a branch or another turn depends on is read, which executes
what is pending, and the functions record their operators like all others. Compiled, it stays in the program
(`openxla_backend/graph/control_flow.py`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..compat import tracing
from ..tensor.xla_tensor import XLATensor


def _scan(
    combine: Callable[..., Sequence[Any]], init: Sequence[Any], xs: Sequence[torch.Tensor], additional: Sequence[Any]
) -> tuple[Any, ...]:
    """Torch's own writes what the turns give into one tensor, in place, which ours are not."""
    carried, given = list(init), []
    for number in range(xs[0].shape[0]):
        made = combine(*carried, *[torch.select_copy(x, 0, number) for x in xs], *additional)
        carried = list(made[: len(init)])
        given.append(made[len(init) :])
    return (*carried, *[torch.stack(each) for each in zip(*given, strict=True)])


#: operator, and its implementation on tensors with data: torch's own, or ours
_OPERATORS: tuple[tuple[str, str | Callable[..., Any]], ...] = (
    ("cond_op", "cond_op_dense"),
    ("while_loop_op", "while_loop_dense"),
    ("map_impl", "map_dense"),
    ("scan_op", _scan),
)


@functools.cache
def register() -> None:
    """Gives each operator a rule for our tensors, where this torch has it."""
    for operator, rule in _OPERATORS:
        with contextlib.suppress(ImportError):
            found = getattr(tracing, rule) if isinstance(rule, str) else rule
            getattr(tracing, operator).py_impl(XLATensor)(found)
