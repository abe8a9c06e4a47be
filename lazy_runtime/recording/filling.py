"""Numbers that go into tensors as they are: what does not fit into the dtype is refused, as torch's kernels do."""

from __future__ import annotations

from typing import Any

import torch

from ..compat.torch import DisableTorchDispatch
from ..ops import registry
from ..tensor.xla_tensor import XLATensor
from . import dispatch

aten = torch.ops.aten

#: Integers up to this fit into these dtypes, which need no second look.
_SMALL = 2**31
_WIDE = frozenset({torch.int32, torch.int64, torch.float32, torch.float64, torch.complex64, torch.complex128})


def require_fit(value: Any, dtype: torch.dtype) -> None:
    """Checks that a Python number can be an element.

    Raises:
        RuntimeError: torch's own, for one that does not fit.
    """
    kind = type(value)
    if kind is bool or (dtype in _WIDE and (kind is int or kind is float) and -_SMALL < value < _SMALL):
        return
    with DisableTorchDispatch():
        torch.empty(2, dtype=dtype, device="cpu").fill_(value)  # a single element is not checked


def _checked(place: int, *names: str) -> None:
    """Lets operators with a number at `place` look at it before they are recorded: it may be an input of the graph,
    of which a node that is known already says nothing.
    """

    @dispatch.handler(*names)
    def serve(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        value = args[place] if place < len(args) else kwargs.get("value", kwargs.get("fill_value"))
        if isinstance(value, bool | int | float | complex):
            dtype = kwargs.get("dtype") or (args[0].dtype if isinstance(args[0], XLATensor) else None)
            if dtype is not None:
                require_fit(value, dtype)
        return dispatch.record(registry.table[func], args, kwargs)


_checked(0, "aten::scalar_tensor")
_checked(1, "aten::fill.Scalar", "aten::full_like", "aten::full")
_checked(2, "aten::masked_fill.Scalar", "aten::new_full")
_checked(3, "aten::index_fill.int_Scalar", "aten::scatter.value", "aten::scatter.value_reduce")


@dispatch.handler("aten::where.ScalarOther", "aten::where.ScalarSelf")
def _where(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The number gives way to the tensor's dtype if it is of the same kind."""
    _, x, y = args
    number, tensor = (y, x) if isinstance(x, XLATensor) else (x, y)
    if isinstance(tensor, XLATensor):
        require_fit(number, torch.result_type(torch.empty(1, dtype=tensor.dtype, device="meta"), number))
    return dispatch.record(registry.table[func], args, kwargs)


@dispatch.handler("aten::masked_fill.Tensor")
def _masked_fill(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, _, value = args
    if value.is_complex() and not x.is_complex():
        require_fit(1j, x.dtype)
    return dispatch.record(registry.table[func], args, kwargs)
