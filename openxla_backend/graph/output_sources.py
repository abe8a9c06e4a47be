"""Where each output of a graph comes from, and which outputs share memory."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from lazy_runtime.compat.torch import OpOverload
from lazy_runtime.ir.graph import Handle
from lazy_runtime.ir.spec import TensorSpec
from lazy_runtime.platform.xla_devices import Device
from lazy_runtime.tensor.xla_tensor import XLATensor

from .outputs import (
    Argument,
    ArgumentItself,
    Constant,
    Output,
    OwnTensor,
    PythonValue,
    Result,
    Source,
    TensorOutput,
    View,
    ViewCall,
)
from .sizes import Sizes

aten = torch.ops.aten


class Recorded(NamedTuple):
    """What has been recorded of an FX graph."""

    outputs: list[Any]
    output_nodes: list[Any]
    position: dict[int, int]  # id of a placeholder's value → argument number
    mutated: dict[int, tuple[XLATensor, torch.fx.Node]]  # argument number → what is written to it
    partly: dict[int, tuple[int, XLATensor, XLATensor]]  # argument number → dimension, index and part
    exchanged: dict[int, tuple[XLATensor, torch.fx.Node]]  # argument number → what it becomes an alias of
    arguments: dict[torch.fx.Node, XLATensor]  # keeps the ids above from being used again
    bases: dict[torch.fx.Node, XLATensor]  # what several visible outputs are views of
    views: dict[torch.fx.Node, ViewCall]


class OutputSources:
    """Says of each output where it comes from, and whom it shares memory with."""

    def __init__(self, recorded: Recorded, device: Device, live: Sequence[Handle], sizes: Sizes):
        self._recorded = recorded
        self._device = device
        self._sizes = sizes
        self._results = {id(handle): number for number, handle in enumerate(live)}
        self._roots: dict[int, torch.fx.Node] = {}  # result → the node that its memory belongs to
        self._groups: dict[torch.fx.Node, int] = {}  # root of fresh outputs → number of the memory

    def written(self, value: XLATensor, node: Any) -> TensorOutput:
        """What is written to an argument. It is copied there, so whom it shares memory with does not matter."""
        result = self._results.get(id(value.handle))
        if result is not None:
            return OwnTensor(Result(result), value.spec, self._device.torch_device, ("result", result))
        found = self.describe(value, node, True)
        assert not isinstance(found, PythonValue)
        return OwnTensor(found.source, found.spec, found.device) if isinstance(found, ArgumentItself) else found

    def describe(self, value: Any, node: Any, visible: bool, alias: bool = False) -> Output:
        """One of the graph's outputs.

        Args:
            alias: where it is a view of an argument it shares its memory.
        """
        if not isinstance(value, XLATensor):
            return PythonValue(value)
        fake = node.meta.get("val")
        target = fake.device if isinstance(fake, torch.Tensor) else self._device.torch_device
        like = None if node.target in WRONG_STRIDES else fake
        spec = self._spec(value, like) if visible else TensorSpec.of(self._device, value.spec.dtype, value.spec.shape)
        recorded = self._recorded
        root = root_of(node)
        source = self.source(value)
        if alias and root.op == "placeholder" and node is not root:
            argument = recorded.arguments[root]
            number = recorded.position[id(argument.handle.value)]
            itself = ArgumentItself(Argument(number), self._spec(argument, root.meta.get("val")), target)
            return View(source, spec, target, itself, _is_detached(node), self._view_calls(node))
        if isinstance(source, Argument) and root.op == "placeholder":
            return ArgumentItself(source, spec, target) if node is root else OwnTensor(source, spec, target)
        if visible and node is not root and root in recorded.bases:
            base = self.describe(recorded.bases[root], root, visible)
            assert not isinstance(base, PythonValue)
            return View(source, spec, target, base, _is_detached(node), self._view_calls(node))
        if not isinstance(source, Result):
            memory = "copy", self._groups.setdefault(root, len(self._groups))
            return OwnTensor(source, spec, target, memory, copied=True)
        is_first = self._roots.setdefault(source.number, root) is root
        return OwnTensor(source, spec, target, ("result", source.number) if is_first else None)

    def source(self, value: XLATensor) -> Source:
        """Where a value comes from."""
        result = self._results.get(id(value.handle))
        if result is not None:
            return Result(result)
        argument = self._recorded.position.get(id(value.handle.value))
        return Constant(value) if argument is None else Argument(argument)

    def _view_calls(self, node: torch.fx.Node) -> tuple[ViewCall, ...]:
        """From the root on, if there are some among them that `as_strided` cannot stand for."""
        chain = list(_views(node))[:-1]
        if not any(view.target in _NOT_STRIDED for view in chain):
            return ()
        return tuple(self._recorded.views[view] for view in reversed(chain))

    def _spec(self, value: XLATensor, fake: Any) -> TensorSpec:
        """How eager torch's result looks. Its strides may differ from those that the operator's meta kernel gives."""
        spec = value.spec
        if isinstance(fake, torch.Tensor):
            stride, offset = self._sizes.ints(fake.stride()), self._sizes.ints([fake.storage_offset()])
            if stride is not None and offset is not None:
                return TensorSpec.of(spec.device, spec.dtype, spec.shape, stride, offset[0])
        return spec


#: Operators whose meta kernels give other strides than the CPU's (torch 2.13); those that are inferred here are right.
WRONG_STRIDES = frozenset({aten.max_unpool2d.default, aten.nonzero_static.default})


#: Views of another dtype or with other values than the memory holds.
_NOT_STRIDED = frozenset(
    {
        aten.view.dtype,
        aten.view_as_real.default,
        aten.view_as_complex.default,
        aten._conj.default,
        aten._neg_view.default,
    }
)


def viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """What a node is a view of, or one of several views. `_unsafe_view` says that it is none, since what it is taken of
    is meant to have no other user; where AOTAutograd has written to its result there are several of one tensor.
    """
    if node.op != "call_function":
        return None
    source: Any = node.args[0] if node.target is operator.getitem else node
    target = source.target
    if not (isinstance(target, OpOverload) and (target.is_view or target is aten._unsafe_view.default)):
        return None
    return node.args[0]  # type: ignore[return-value]


def _views(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The node, what it is a view of, and so on."""
    current: torch.fx.Node | None = node
    while current is not None:
        yield current
        current = viewed(current)


def root_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node that makes the memory which `node` is a view of."""
    *_, root = _views(node)
    return root


def _is_detached(node: torch.fx.Node) -> bool:
    return any(view.target is aten.detach.default for view in _views(node))


def shared_roots(nodes: Sequence[Any]) -> list[torch.fx.Node]:
    """The nodes of which several of these are views, or one of these and a view of it."""
    users: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    for node in nodes:
        if isinstance(node, torch.fx.Node):
            users.setdefault(root_of(node), set()).add(node)
    return [root for root, found in users.items() if len(found) > 1 and root.op == "call_function"]
