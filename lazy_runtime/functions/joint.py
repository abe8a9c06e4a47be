"""A function's forward and backward pass as two graphs, made by AOTAutograd without data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from functorch.compile import aot_function, make_boxed_func  # pyright: ignore[reportPrivateImportUsage]

from ..compat.torch import tree_flatten, tree_leaves, tree_map
from ..compat.tracing import FakeTensorMode


class Joint(NamedTuple):
    """What AOTAutograd makes of a function.

    Attributes:
        forward: `(*arguments)` to the function's results, and then what `backward` needs, all flat.
        backward: of what it needs and of gradients of results, to those of the arguments, None for those that have
            none; None itself if no result has a gradient.
        structure: of the results.
        takes_gradient: for each result whether `backward` takes its gradient; None for one that is None.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None
    structure: Any
    takes_gradient: list[bool | None]

    @property
    def of_tensors(self) -> list[bool]:
        """`takes_gradient` without those that are None."""
        return [taken for taken in self.takes_gradient if taken is not None]

    @property
    def results(self) -> int:
        """How many of `forward`'s results are the function's."""
        return len(self.takes_gradient)


class Look(NamedTuple):
    """What a function is traced for, in place of an argument.

    Attributes:
        shape: its sizes.
        dtype: its dtype.
        device: where it is.
        requires_grad: whether the backward pass gives its gradient.
    """

    shape: Sequence[int]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor, shape: Sequence[int] | None = None, requires_grad: bool | None = None) -> Look:
        """That of a tensor, or of one like it with another shape.

        Args:
            requires_grad: instead of the tensor's; integers never do.
        """
        wanted = tensor.requires_grad if requires_grad is None else requires_grad
        is_differentiable = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        return cls(
            tuple(tensor.shape if shape is None else shape), tensor.dtype, tensor.device, wanted and is_differentiable
        )


def split(function: Callable[..., Any], arguments: Any, partition: Callable[..., Any], name: str) -> Joint:
    """Traces a function without data.

    Args:
        function: of as many trees as there are in `arguments`, to a tree of tensors and None.
        arguments: a tuple of trees with a `Look` in place of each tensor.
        partition: decides what the forward pass keeps for the backward pass, as `functorch.compile.default_partition`.
        name: what errors call the function.

    Raises:
        RuntimeError: the function writes to its arguments.
        AssertionError: torch's own, the function uses tensors with data that it does not get as arguments.
    """
    mode = FakeTensorMode()
    with mode:
        fake = tree_map(_fake, arguments, is_leaf=lambda each: isinstance(each, Look))
    forward: Any = _Kept(mode)
    backward: Any = _Kept(mode)

    def apart(*given: Any) -> Any:
        # AOTAutograd makes results that are arguments outside of its graph
        known = {id(leaf) for leaf in tree_leaves(given)}
        return tree_map(lambda each: each.clone() if id(each) in known else each, function(*given))

    with torch.enable_grad():
        compiled = aot_function(apart, fw_compiler=forward, bw_compiler=backward, partition_fn=partition)
        results, structure = tree_flatten(compiled(*fake))
        if any(leaf._version for leaf in tree_leaves(fake) if isinstance(leaf, torch.Tensor)):
            raise RuntimeError(f"an in-place operation of {name} writes to its arguments: have it return new tensors")
        takes_gradient = [None if each is None else each.requires_grad for each in results]
        differentiable = [each for each in results if each is not None and each.requires_grad]
        if differentiable:
            with mode:
                torch.autograd.backward(differentiable, [torch.ones_like(each) for each in differentiable])
    return Joint(forward.graph, backward.graph, structure, takes_gradient)


def _fake(look: Any) -> Any:
    if not isinstance(look, Look):
        return look
    return torch.empty(look.shape, dtype=look.dtype, device=look.device, requires_grad=look.requires_grad)


class _Kept:
    """A compiler for AOTAutograd that keeps the graph it is given, and gives fake results in its place."""

    def __init__(self, mode: FakeTensorMode):
        self.graph: Any = None
        self._mode = mode

    def __call__(self, graph: torch.fx.GraphModule, example: Any) -> Any:
        self.graph = graph
        (output,) = graph.graph.find_nodes(op="output")

        def run(*arguments: Any) -> list[Any]:
            with self._mode:
                return [
                    torch.empty_like(node.meta["val"]) if isinstance(node, torch.fx.Node) else node
                    for node in output.args[0]
                ]

        return make_boxed_func(run)
