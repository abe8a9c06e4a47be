"""What a traced function does to tensors that are none of its arguments is undone where it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import TensorWeakRef

from ..compat.torch import base_of, is_functional_tensor
from ..ir.graph import Handle, Node
from ..ir.spec import TensorSpec
from ..recording import dispatch
from ..tensor.xla_tensor import XLATensor, make, to_functional, unwrap


class OutsideTensors:
    """Within the block, an exception gives the tensors that `noted` has seen the values back that they had.

    Args:
        trace: what records the function.
    """

    def __init__(self, trace: dispatch.Trace) -> None:
        self._trace = trace
        self._nodes: set[Node] = set()
        # held weakly: the function may have made one itself, from numbers of the host, and let go of it
        self._found: dict[int, tuple[TensorWeakRef, Handle, TensorSpec]] = {}

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
            if each is not None and is_functional_tensor(each) and not self._is_known(each):
                inner = unwrap(each)
                if self._is_outside(inner):
                    self._found[id(each)] = TensorWeakRef(each), inner.handle, inner.spec

    def _is_known(self, tensor: torch.Tensor) -> bool:
        found = self._found.get(id(tensor))
        return found is not None and found[0]() is tensor  # another one may have had its place

    def _is_outside(self, inner: XLATensor) -> bool:
        value = inner.handle.value
        if value.node is None:  # of an argument's stand-in the array is missing too
            return value.array is not None and not self._is_made_inside(inner.handle)
        self._nodes.update(self._trace.nodes[len(self._nodes) :])
        return value.node not in self._nodes

    def _is_made_inside(self, handle: Handle) -> bool:
        """Whether an operator of the trace has given it; once its value was read, it has no node any more."""
        return any(held is handle for node in self._trace.nodes for held in node.held())

    def written(self) -> list[tuple[torch.Tensor, XLATensor]]:
        """Those that were written to, as their users hold them and as they were."""
        found = [(tensor(), handle, spec) for tensor, handle, spec in self._found.values()]
        return [
            (tensor, make(handle, spec))
            for tensor, handle, spec in found
            if tensor is not None and unwrap(tensor).handle is not handle
        ]

    def _restore(self) -> None:
        with torch.no_grad():
            for tensor, before in self.written():
                tensor.copy_(to_functional(before))


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
