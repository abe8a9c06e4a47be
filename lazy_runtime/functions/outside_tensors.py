"""What a traced function does to tensors that are none of its arguments is undone where it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..compat.torch import base_of, is_functional_tensor
from ..ir.graph import Node
from ..recording import dispatch
from ..tensor.xla_tensor import XLATensor, to_functional, unwrap


class OutsideTensors:
    """Within the block, an exception gives the tensors that `noted` has seen the values back that they had.

    Args:
        trace: what records the function.
    """

    def __init__(self, trace: dispatch.Trace) -> None:
        self._trace = trace
        self._nodes: set[Node] = set()
        self._found: dict[int, tuple[torch.Tensor, XLATensor]] = {}

    def __enter__(self) -> OutsideTensors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._restore()

    def noted(self) -> TorchFunctionMode:
        """Within this mode, the tensors that operators are called with are seen, but for those of the trace."""
        return _Noting(self._note)

    def _note(self, tensor: torch.Tensor) -> None:
        # a write to a view is one to its base, and changes the other views of that
        for each in (tensor, base_of(tensor)):
            if each is not None and id(each) not in self._found and is_functional_tensor(each):
                inner = unwrap(each)
                if self._is_outside(inner):
                    self._found[id(each)] = each, inner

    def _is_outside(self, inner: XLATensor) -> bool:
        value = inner.handle.value
        if value.node is None:
            return value.array is not None  # an argument's stand-in has neither
        self._nodes.update(self._trace.nodes[len(self._nodes) :])
        return value.node not in self._nodes

    def written(self) -> list[tuple[torch.Tensor, XLATensor]]:
        """Those that were written to, as their users hold them and as they were."""
        return [(tensor, inner) for tensor, inner in self._found.values() if unwrap(tensor).handle is not inner.handle]

    def _restore(self) -> None:
        with torch.no_grad():
            for tensor, inner in self.written():
                tensor.copy_(to_functional(inner))


class _Noting(TorchFunctionMode):
    def __init__(self, note: Callable[[torch.Tensor], None]):
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, torch.Tensor):
                self._note(argument)
        return func(*args, **kwargs)
