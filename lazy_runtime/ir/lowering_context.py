"""What a lowering may read of the program that it becomes a part of.

Lowerings are functions of arrays, as jax's are, which call each other: the context is in reach of all of them without
being an argument of each (docs/design/038-lowering-context.md). It is one immutable value, so nothing can be left
behind in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ..lowering.checks import Collector

#: How precisely float32 products are computed, by torch's names (`torch.set_float32_matmul_precision`).
Level = Literal["highest", "high", "medium"]


@dataclasses.dataclass(frozen=True)
class LoweringContext:
    """What holds for the operator that the calling thread lowers.

    Attributes:
        narrows: arrays have fewer bits than torch says (`XLA_USE_BF16` and its like).
        is_sharded: the program is sharded over devices.
        has_kernel_thread: the program's calls of kernels go to a thread of their own (`native/kernel_thread.h`).
        has_other_kernels: the program has kernels that are no products of matrices.
        precision: of float32 products, as the operator was recorded; "highest" for operators without products.
        collector: receives what the program checks when it runs; None where nothing is checked.
        choices: receives (number of the call, choice) for each kernel that is chosen (`ops/kernels.py`); None if
            nobody asks.
    """

    narrows: bool = False
    is_sharded: bool = False
    has_kernel_thread: bool = False
    has_other_kernels: bool = False
    precision: Level = "highest"
    collector: Collector | None = None
    choices: list[Any] | None = None


class _Thread(threading.local):
    context = LoweringContext()


_thread = _Thread()


def current() -> LoweringContext:
    """The context of what the calling thread lowers; the defaults where it lowers nothing."""
    return _thread.context


@contextlib.contextmanager
def changed(**changes: Any) -> Iterator[LoweringContext]:
    """Within the block, the calling thread lowers in a context that differs from the one around it.

    Args:
        changes: attributes of `LoweringContext`.

    Raises:
        TypeError: an attribute that there is none of.
    """
    outer = _thread.context
    _thread.context = dataclasses.replace(outer, **changes)
    try:
        yield _thread.context
    finally:
        _thread.context = outer
