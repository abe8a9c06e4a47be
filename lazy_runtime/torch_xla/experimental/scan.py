"""`scan`: a function called for each element of the first dimension, as one loop of the program, with gradients.

AOTAutograd splits the function into a forward and a backward graph. The forward graph is scanned over the elements and
gives, beside what the user asked for, what the backward graph needs; the backward graph is scanned over that from the
last element to the first. The semantics are those of `jax.lax.scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from functorch.compile import default_partition

from ...compat.torch import tree_flatten, tree_leaves, tree_unflatten
from ...functions import joint, loops
from ...functions.joint import Look
from .scan_builder import Builder, dynamic_slice, dynamic_update_slice

__all__ = [
    "Builder",
    "Scan",
    "dynamic_slice",
    "dynamic_update_slice",
    "scan",
    "split",
    "tree_flatten_none",
    "value_and_grad_partitioned",
]

#: `forward`, `alias_input` and `backward` of `value_and_grad_partitioned`.
Parts = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]

#: Of pure functions, what their tracing gave: function → shapes and structure of its arguments → parts.
_SCAN_COMPUTATION_CACHE: MutableMapping[Any, dict[Any, Parts]] = WeakKeyDictionary()


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Callable[..., Any] = default_partition,
    is_fn_pure: bool = False,
) -> tuple[Any, Any]:
    """Calls `fn(carry, x)` for each element of the first dimension of `xs`; it gives the next carry and a `y`.

    Args:
        fn: of trees of tensors. It is traced once, with AOTAutograd, so it must not write to tensors from outside.
        init: the first carry; each one that `fn` gives has the same structure, shapes and dtypes.
        xs: a tree of tensors with one first size.
        partition_fn: decides what the forward pass keeps for the backward pass:
            `functorch.compile.min_cut_rematerialization_partition` keeps less and computes again.
        is_fn_pure: `fn` depends on its arguments alone, so that it need not be traced again for the same shapes.

    Returns:
        the last carry, and the `y` of all calls, along a new first dimension. None stays None.

    Raises:
        ValueError: `fn` cannot be called, or `xs` has no tensor or several first sizes.
        RuntimeError: a carry looks otherwise than `init`, or `fn` writes to its arguments.
    """
    if not callable(fn):
        raise ValueError(f"scan: fn must be callable, got {fn!r}")
    lengths = {len(leaf) for leaf in tree_leaves(xs)}
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "no tensor at all"
        raise ValueError(f"scan: the leaves of xs must have one first size, got {found}")
    forward, alias_input, backward = value_and_grad_partitioned(fn, init, xs, partition_fn, is_fn_pure)
    return Scan.apply(forward, alias_input, backward, init, xs)


class _Structures:
    """How the trees of a call of `scan` are built.

    Attributes:
        init, xs: of the arguments.
        of_results: of the last carry and the ys, None among them; known after the forward pass.
    """

    def __init__(self, init: Any, xs: Any):
        self.init = init
        self.xs = xs
        self.of_results: Any = None


class Scan(torch.autograd.Function):
    """The loop that `scan` records, and the one of its backward pass."""

    @classmethod
    def apply(cls, forward: Any, alias_input: Any, backward: Any, init: Any, xs: Any) -> Any:  # type: ignore[override]
        """The last carry and the ys.

        Args:
            forward, alias_input, backward: see `value_and_grad_partitioned`.
            init, xs: trees; see `scan`.
        """
        flat_init, init_structure = tree_flatten(init)
        flat_xs, xs_structure = tree_flatten(xs)
        structures = _Structures(init_structure, xs_structure)
        made: Any = super().apply(forward, alias_input, backward, structures, *flat_init, *flat_xs)
        return tree_unflatten(list(made), structures.of_results)

    @staticmethod
    def forward(ctx: Any, forward: Any, alias_input: Any, backward: Any, structures: Any, *leaves: Any) -> Any:
        count = structures.init.num_leaves
        init, xs = tree_unflatten(leaves[:count], structures.init), tree_unflatten(leaves[count:], structures.xs)
        with torch.no_grad():
            carry, (ys, partial) = _scan_trees(forward, init, xs, reverse=False)
            activations = alias_input(partial, xs)
        ctx.backward_of, ctx.structures, ctx.leaves = backward, structures, len(leaves)
        ctx.save_for_backward(*activations)
        results, structures.of_results = tree_flatten((carry, ys))
        given = {id(leaf) for leaf in leaves}
        results = [
            result.view_as(result) if isinstance(result, torch.Tensor) and id(result) in given else result
            for result in results
        ]
        ctx.likes = [None if result is None else (result.shape, result.dtype, result.device) for result in results]
        ctx.mark_non_differentiable(
            *[each for each in results if each is not None and not each.dtype.is_floating_point]
        )
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        filled = [
            torch.zeros(like[0], dtype=like[1], device=like[2]) if gradient is None and like is not None else gradient
            for gradient, like in zip(gradients, ctx.likes, strict=True)
        ]
        carry, ys = tree_unflatten(filled, ctx.structures.of_results)
        with torch.no_grad():
            grad_init, grad_xs = _scan_trees(ctx.backward_of, carry, (ys, list(ctx.saved_tensors)), reverse=True)
        found = [*tree_leaves(grad_init), *tree_leaves(grad_xs)]
        assert len(found) == ctx.leaves
        return None, None, None, None, *found


def _scan_trees(fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, reverse: bool) -> tuple[Any, Any]:
    """`loops.scan` of trees, in which None stays None."""
    flat_init, unflatten_init = tree_flatten_none(init)
    flat_xs, unflatten_xs = tree_flatten_none(xs)
    flat_init, flat_xs = list(flat_init), list(flat_xs)
    unflatten: list[Any] = []

    def flat(*tensors: torch.Tensor) -> Any:
        carry, y = fn(unflatten_init(tensors[: len(flat_init)]), unflatten_xs(tensors[len(flat_init) :]))
        flat_carry, unflatten_carry = tree_flatten_none(carry)
        flat_y, unflatten_y = tree_flatten_none(y)
        unflatten[:] = unflatten_carry, unflatten_y
        return list(flat_carry), list(flat_y)

    carry, ys = loops.scan(flat, flat_init, flat_xs, reverse)
    return unflatten[0](carry), unflatten[1](ys)


def value_and_grad_partitioned(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Callable[..., Any] = default_partition,
    is_fn_pure: bool = True,
) -> Parts:
    """Splits `fn(carry, x)` into its forward and its backward pass.

    Args:
        fn, init, xs, partition_fn, is_fn_pure: see `scan`.

    Returns:
        - `forward(carry, x)`: `(new_carry, (y, kept))`, where `kept` is what the backward pass needs beside `x`.
        - `alias_input(kept, xs)`: all that the backward pass needs, for all elements.
        - `backward(grad_carry, (grad_y, needed))`: `(grad_carry, grad_x)`, for one element.
    """
    flat_carry, carry_structure = tree_flatten(init)
    flat_x, x_structure = tree_flatten(xs)
    # a carry has a gradient whatever the first one says: it goes from turn to turn
    looks = [Look.of(x, requires_grad=True) for x in flat_carry] + [Look.of(x, x.shape[1:]) for x in flat_x]
    key = partition_fn, tuple(looks), carry_structure, x_structure
    if is_fn_pure and (found := _SCAN_COMPUTATION_CACHE.get(fn, {}).get(key)) is not None:
        return found
    carries = len(flat_carry)
    trees = tree_unflatten(looks[:carries], carry_structure), tree_unflatten(looks[carries:], x_structure)
    traced = joint.split(fn, trees, partition_fn, "the function of scan")
    aliases = _elements_kept(traced, carries)

    def forward(carry: Any, x: Any) -> Any:
        found = traced.forward(*tree_leaves(carry), *tree_leaves(x))
        results, kept = split(found, traced.results)
        new_carry, y = tree_unflatten(results, traced.structure)
        return new_carry, (y, tuple(each for place, each in enumerate(kept) if place not in aliases))

    def alias_input(kept: Iterable[torch.Tensor], xs: Any) -> tuple[torch.Tensor, ...]:
        rest, flat_xs = iter(kept), tree_leaves(xs)
        count = len(aliases) + len(list(kept))
        return tuple(flat_xs[aliases[place]] if place in aliases else next(rest) for place in range(count))

    def backward(grad_carry: Any, grad_y_and_needed: Any) -> Any:
        grad_y, needed = grad_y_and_needed
        if traced.backward is None:
            found: Any = [None] * len(looks)
        else:
            flat_y, _ = tree_flatten_none(grad_y)
            given = zip((*tree_leaves(grad_carry), *flat_y), traced.of_tensors, strict=True)
            found = traced.backward(*needed, *[gradient for gradient, is_taken in given if is_taken])
        found = [
            torch.zeros(look.shape, dtype=look.dtype, device=look.device)
            if gradient is None and (place < carries or look.requires_grad)
            else gradient
            for place, (gradient, look) in enumerate(zip(found, looks, strict=True))
        ]
        return tree_unflatten(found[:carries], carry_structure), tree_unflatten(found[carries:], x_structure)

    parts = forward, alias_input, backward
    if is_fn_pure:
        _SCAN_COMPUTATION_CACHE.setdefault(fn, {})[key] = parts
    return parts


def _elements_kept(traced: joint.Joint, carries: int) -> dict[int, int]:
    """Which of what the backward pass needs is an element of `xs`, so that the loop need not give it again: place among
    what is needed → number of the leaf of `xs`.
    """
    placeholders = traced.forward.graph.find_nodes(op="placeholder")
    (output,) = traced.forward.graph.find_nodes(op="output")
    elements = {node: number for number, node in enumerate(placeholders[carries:])}
    kept = output.args[0][traced.results :]
    return {place: elements[node] for place, node in enumerate(kept) if node in elements}


def split(seq: Sequence[Any], *part_lengths: int) -> list[Any]:
    """A sequence in parts of these lengths, and the rest as one more part."""
    parts, start = [], 0
    for length in part_lengths:
        parts.append(seq[start : start + length])
        start += length
    return [*parts, seq[start:]]


def tree_flatten_none(pytree: Any) -> tuple[Iterable[Any], Callable[[Iterable[Any]], Any]]:
    """The leaves of a tree but for those that are None, and a function that makes the tree of others in their place."""
    leaves, structure = tree_flatten(pytree)
    places = [place for place, leaf in enumerate(leaves) if leaf is not None]
    count = len(leaves)  # `unflatten` must not keep the leaves

    def unflatten(others: Iterable[Any]) -> Any:
        filled: list[Any] = [None] * count
        for place, other in zip(places, others, strict=True):
            filled[place] = other
        return tree_unflatten(filled, structure)

    return [leaves[place] for place in places], unflatten
