"""Inference: weights that are kept from call to call are kept in the order that the kernels want.

Which kernel computes with a kept weight, and in which order it wants it, say the tables of kernels
(`lazy_runtime/ops/kernels.py`): those of convolutions and of matrix products have rows that pack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lazy_runtime.compat.torch import DisableTorchDispatch
from lazy_runtime.compat.tracing import FakeTensor
from lazy_runtime.ir import dtypes
from lazy_runtime.ops.convolution.convolution_kernels import CONVOLUTION
from lazy_runtime.ops.convolution.convolution_problem import ConvolutionProblem, Geometry
from lazy_runtime.ops.kernels import Packing
from lazy_runtime.ops.linalg import bfloat16_upcast, packed
from lazy_runtime.ops.linalg.matmul_kernels import MATMUL
from lazy_runtime.ops.linalg.matmul_problem import MatmulProblem
from lazy_runtime.platform import xla_devices

from ..graph import fx

aten = torch.ops.aten


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
            if node.args[1] in self.known:
                self._pack_filters(node)
        for target in (aten.mm.default, aten.addmm.default):
            for node in self.graph.find_nodes(op="call_function", target=target):
                self._pack_matrix(node)
        packed.rooms.keep()

    def _pack_filters(self, node: torch.fx.Node) -> None:
        image, weight, bias, *geometry = node.args
        problem = _convolution(image.meta["val"], weight.meta["val"], geometry)  # type: ignore[union-attr]
        kernel = CONVOLUTION.choose_packing(problem)
        if kernel is None or kernel.packing is None:
            return
        stride, padding, dilation, *_, groups = geometry
        where = stride, padding, dilation, groups
        self._pack(node, kernel.packing, problem, weight, lambda made, size: (image, made, bias, size, *where))

    def _pack_matrix(self, node: torch.fx.Node) -> None:
        *bias, x, turned = node.args
        weight = _transposed(turned)
        if node.kwargs or weight is None or weight not in self.known or x in self.known:
            return
        problem = _product(x.meta["val"], weight.meta["val"], bias[0] if bias else None)  # type: ignore[union-attr]
        kernel = MATMUL.choose_packing(problem)
        if kernel is None or kernel.packing is None:
            return
        self._pack(node, kernel.packing, problem, weight, lambda made, size: (x, made, bias[0] if bias else None, size))

    def _pack(
        self,
        node: torch.fx.Node,
        packing: Packing,
        problem: Any,
        weight: Any,
        arguments: Callable[[torch.fx.Node, list[int]], tuple[Any, ...]],
    ) -> None:
        """Has a node's weight packed, and computes with the packed one.

        Args:
            arguments: (packed weight, the weight's size) → those of the operator that takes packed weights.
        """
        size, named = list(weight.meta["val"].shape), {}
        if packing.upcasts:
            weight, named = self._widened(weight)
        made = self._kept(packing, problem, weight)
        if packing.apply is None:
            node.replace_input_with(weight, made)
        else:
            replace(self.graph, node, packing.apply, arguments(made, size), named)

    def _widened(self, weight: Any) -> tuple[torch.fx.Node, dict[str, Any]]:
        """A weight, in float32 where products are faster so (`bfloat16_upcast.py`), and what tells the product."""
        value = weight.meta["val"]
        if not bfloat16_upcast.is_wanted(_platform(value), value.dtype):
            return weight, {}
        made = self._computed(aten._to_copy.default, (weight,), {"dtype": torch.float32})
        made.meta = {**weight.meta, "val": value.float()}
        return made, {"weight_dtype": torch.float32}

    def _kept(self, packing: Packing, problem: Any, weight: torch.fx.Node) -> torch.fx.Node:
        """A packed weight."""
        value = weight.meta["val"]
        further = packing.arguments(problem, value)
        made = self._computed(packing.pack, (weight, *further))
        if packing.apply is None:
            made.meta = {**weight.meta, fx.CHANNELS_LAST: True}
        elif packing.in_bytes:
            made.meta["val"] = self._bytes(value, *packing.shape(value, further))
        else:
            made.meta["val"] = value.new_empty(packing.shape(value, further))
        return made

    def _computed(self, target: Any, arguments: tuple[Any, ...], named: dict[str, Any] | None = None) -> torch.fx.Node:
        """A node that depends on parameters alone, the same for the same arguments."""
        key = (target, str(arguments))
        if key not in self.made:
            weight = arguments[0]
            with self.graph.inserting_after(weight):
                made = self.made[key] = self.graph.call_function(target, arguments, named)
            made.meta = dict(weight.meta)
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


def _convolution(image: torch.Tensor, filters: torch.Tensor, geometry: Sequence[Any]) -> ConvolutionProblem:
    dtype, stored = _name(image.dtype), _stores_fewer_bits(image.dtype, filters.device)
    return ConvolutionProblem(
        _sizes(image),
        _sizes(filters),
        Geometry.of(filters.dim() - 2, *geometry),
        dtype,
        _platform(filters),
        _name(filters.dtype),
        dtype,
        kept_on=filters.device.type,
        is_narrowed=stored,
    )


def _product(x: torch.Tensor, matrix: torch.Tensor, bias: torch.fx.Node | None) -> MatmulProblem:
    """The product of `x` with the transpose of a kept matrix."""
    refuses = ""
    if bias is not None and not is_row(bias, matrix.shape[0], matrix.dtype):
        refuses = "what is added is no bias as oneDNN takes it"
    if _stores_fewer_bits(x.dtype, matrix.device):
        refuses = "the device stores fewer bits than the dtype has"
    sizes, names = (_sizes(x), _sizes(matrix)[::-1]), (_name(x.dtype), _name(matrix.dtype))
    return MatmulProblem(*sizes, *names, _platform(matrix), kept_on=matrix.device.type, refuses_packing=refuses)


def _sizes(tensor: torch.Tensor) -> tuple[int, ...]:
    """Sizes, -1 for those that vary from call to call."""
    return tuple(size if isinstance(size, int) else -1 for size in tensor.shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _stores_fewer_bits(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "xla" and dtype in dtypes.narrowed()


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
