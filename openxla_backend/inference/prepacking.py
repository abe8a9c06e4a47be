"""Inference: weights that are kept from call to call are kept in the order that the kernels want.

On the CPU that is the order of a kernel of ours where one takes the convolution
(`lazy_runtime/ops/nn/convolution_kernels.py`), else one of oneDNN's own where it can be known in advance
(`lazy_runtime/ops/linalg/packed.py`), and otherwise channels last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lazy_runtime.compat.torch import DisableTorchDispatch
from lazy_runtime.compat.tracing import FakeTensor
from lazy_runtime.ir import dtypes
from lazy_runtime.ops.linalg import bfloat16_upcast, packed
from lazy_runtime.ops.linalg.matmul import SMALLEST_CALL
from lazy_runtime.ops.nn import convolution_kernels
from lazy_runtime.ops.nn.conv import wants_channels_last
from lazy_runtime.platform import xla_devices

from ..graph import fx

aten = torch.ops.aten
ours = torch.ops.lazy_runtime


#: Bytes of filters that are left as they are if they cannot be packed: to turn them costs less than an argument.
SMALL = 64 << 10


def arrange(graph: torch.fx.Graph, known: set[torch.fx.Node]) -> None:
    """Has the weights of convolutions and products arranged.

    Args:
        known: nodes that depend on parameters alone; receives the new ones.
    """
    _Arranging(graph, known).run()


class _Arranging:
    def __init__(self, graph: torch.fx.Graph, known: set[torch.fx.Node]):
        self.graph = graph
        self.known = known
        self.made: dict[Any, torch.fx.Node] = {}
        self.fakes: dict[tuple[torch.device, int], torch.Tensor] = {}

    def run(self) -> None:
        for node in self.graph.find_nodes(op="call_function", target=aten.convolution.default):
            if node.args[1] in self.known and not self._pack_filters(node):
                self._turn_filters(node)
        for target in (aten.mm.default, aten.addmm.default):
            for node in self.graph.find_nodes(op="call_function", target=target):
                self._pack_matrix(node)
        packed.rooms.keep()

    def _pack_filters(self, node: torch.fx.Node) -> bool:
        image, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
        like, filters = image.meta["val"], weight.meta["val"]  # type: ignore[union-attr]
        if transposed or filters.dim() != 4 or like.dim() != 4 or not _fits(like, filters):
            return False
        geometry: list[Any] = [stride, padding, dilation, groups]
        size = list(like.shape)
        where = {"dtype": filters.dtype, "platform": _platform(filters)}
        products = _products(node, filters)
        for kernel in convolution_kernels.KERNELS:
            if products >= kernel.smallest and kernel.pays(filters.shape, size, *geometry, **where):
                ordered = self._kept(kernel.filters, (weight,))
                ordered.meta = {**weight.meta, "val": filters.new_empty(kernel.shape(filters.shape))}  # type: ignore[union-attr]
                arguments = (image, ordered, bias, list(filters.shape), *geometry)
                replace(self.graph, node, kernel.convolution, arguments)
                return True
        if products < SMALLEST_CALL or not packed.available(_platform(filters), filters.dtype):
            return False
        weight, named = self._widened(weight)
        room = packed.packed_filters(weight.meta["val"], size, *geometry)
        arranged = self._kept(ours.pack_filters.default, (weight, room, size, *geometry), room)
        arguments = (image, arranged, bias, list(filters.shape), *geometry)
        replace(self.graph, node, ours.packed_convolution.default, arguments, named)
        return True

    def _turn_filters(self, node: torch.fx.Node) -> None:
        weight: Any = node.args[1]
        transposed: Any = node.args[6]
        filters = weight.meta["val"]
        # a tensor on the CPU has the strides that it is said to have
        if filters.device.type != "xla" or filters.numel() * filters.dtype.itemsize <= SMALL:
            return
        if wants_channels_last(_platform(filters), filters, transposed):
            turned = self._kept(ours.channels_last.default, (weight,))
            turned.meta = {**weight.meta, fx.CHANNELS_LAST: True}
            node.replace_input_with(weight, turned)

    def _pack_matrix(self, node: torch.fx.Node) -> None:
        *bias, x, turned = node.args
        weight = _transposed(turned)
        if node.kwargs or weight is None or weight not in self.known or x in self.known:
            return
        like, matrix = x.meta["val"], weight.meta["val"]  # type: ignore[union-attr]
        if not _fits(like, matrix) or _products(node, matrix) < SMALLEST_CALL:
            return
        if not packed.available(_platform(matrix), matrix.dtype):
            return
        if bias and not is_row(bias[0], matrix.shape[0], matrix.dtype):
            return
        rows = like.shape[0]
        weight, named = self._widened(weight)
        room = packed.packed_matrix(weight.meta["val"], rows)
        arranged = self._kept(ours.pack_matrix.default, (weight, room, rows), room)
        arguments = (x, arranged, bias[0] if bias else None, list(matrix.shape))
        replace(self.graph, node, ours.packed_linear.default, arguments, named)

    def _widened(self, weight: Any) -> tuple[torch.fx.Node, dict[str, Any]]:
        """A weight, in float32 where products are faster so (`bfloat16_upcast.py`), and what tells the product."""
        value = weight.meta["val"]
        if not bfloat16_upcast.is_wanted(_platform(value), value.dtype):
            return weight, {}
        made = self._kept(aten._to_copy.default, (weight,), named={"dtype": torch.float32})
        made.meta = {**weight.meta, "val": value.float()}
        return made, {"weight_dtype": torch.float32}

    def _kept(
        self,
        target: Any,
        arguments: tuple[Any, ...],
        size: int | None = None,
        named: dict[str, Any] | None = None,
    ) -> torch.fx.Node:
        """A node that depends on parameters alone, the same for the same arguments.

        Args:
            size: bytes of the result.
        """
        key = (target, str(arguments))
        if key not in self.made:
            weight = arguments[0]
            with self.graph.inserting_after(weight):
                made = self.made[key] = self.graph.call_function(target, arguments, named)
            made.meta = dict(weight.meta)
            if size is not None:
                made.meta["val"] = self._bytes(weight.meta["val"], size)
            self.known.add(made)
        return self.made[key]

    def _bytes(self, like: torch.Tensor, size: int) -> torch.Tensor:
        """A fake tensor of bytes, beside another one. Made by hand: `new_empty` takes as long as all else here."""
        if (like.device, size) not in self.fakes:
            with DisableTorchDispatch():
                found = torch.empty(size, dtype=torch.uint8, device="meta")
            mode: Any = like.fake_mode if isinstance(like, FakeTensor) else None
            self.fakes[like.device, size] = found if mode is None else FakeTensor(mode, found, like.device)
        return self.fakes[like.device, size]


def replace(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
    target: Any,
    arguments: tuple[Any, ...],
    named: dict[str, Any] | None = None,
) -> torch.fx.Node:
    """Puts a call where a node is."""
    with graph.inserting_before(node):
        made = graph.call_function(target, arguments, named)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return made


def _fits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a weight can be kept in another order for products with x."""
    if x.dtype != weight.dtype or not is_static(x.shape) or not weight.numel():
        return False
    return x.dtype not in dtypes.NARROWED or weight.device.type != "xla"  # which holds another one


def _products(node: torch.fx.Node, weight: torch.Tensor) -> int:
    """How many numbers are multiplied with ones of the weight."""
    return node.meta["val"].numel() * (weight.numel() // weight.shape[0])


def _platform(tensor: torch.Tensor) -> str:
    return xla_devices.get(tensor.device).platform if tensor.device.type == "xla" else "cpu"


def is_static(sizes: Sequence[Any]) -> bool:
    """Whether no size of these may change from call to call."""
    return all(isinstance(size, int) for size in sizes)


def _transposed(node: Any) -> torch.fx.Node | None:
    """The matrix that a node is the transpose of."""
    if not isinstance(node, torch.fx.Node):
        return None
    dims = _TRANSPOSES.get(node.target)
    if dims is None or tuple(node.args[1:]) not in dims or node.args[0].meta["val"].dim() != 2:  # type: ignore[union-attr]
        return None
    return node.args[0]  # type: ignore[return-value]


_TRANSPOSES: dict[Any, Sequence[tuple[Any, ...]]] = {
    aten.t.default: [()],
    aten.transpose.int: [(0, 1), (1, 0), (-1, -2), (-2, -1)],
    aten.permute.default: [([1, 0],)],
}


def is_row(node: Any, size: int, dtype: torch.dtype) -> bool:
    """Whether a node is a bias as oneDNN takes it."""
    bias = node.meta.get("val")
    return isinstance(bias, torch.Tensor) and tuple(bias.shape) == (size,) and bias.dtype == dtype
