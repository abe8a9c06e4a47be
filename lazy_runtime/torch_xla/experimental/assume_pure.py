"""Functions that are traced once for each look of their arguments, so that a step spends no time in their Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...compat.torch import is_functional_tensor, tree_flatten, tree_map, tree_unflatten
from ...functions import jax_function, joint, pure
from ...platform.rng import RandomStream

__all__ = ["PureModule", "assume_pure", "assume_pure_torch", "j2t_autograd", "make_fake_inputs"]


def assume_pure(fn: Callable[..., Any], *, add_rng_seed_argument: bool = False) -> Callable[..., Any]:
    """Has a function of xla tensors run its Python once for each look of its arguments, backward pass included.

    Afterwards a call records one node: what the function computes, compiled with all around it. Random operators draw
    new numbers at each call, as they do outside.

    Args:
        fn: of trees of tensors and other values, to a tree of tensors. It depends on them alone: what it closes over
            counts for a constant, and must not be a tensor with data. It must not write to its arguments.
        add_rng_seed_argument: the function made takes `rng_seed`, an integer that its random numbers follow from.

    Returns:
        a function of the same arguments. Of tensors that are on no xla device, `fn` itself is called.

    Raises:
        TypeError: (the function made) `rng_seed` is missing, or no integer.
        RuntimeError: (the function made) `fn` writes to its arguments.
    """
    known: dict[Any, pure.PureFunction] = {}

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        draw = None
        if add_rng_seed_argument:
            draw = _drawing_from(kwargs.pop("rng_seed", None))
        leaves, structure = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors or not all(each.device.type == "xla" and is_functional_tensor(each) for each in tensors):
            return fn(*args, **kwargs)
        with_gradients = torch.is_grad_enabled()
        looks = [
            joint.Look.of(leaf, requires_grad=leaf.requires_grad and with_gradients)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in leaves
        ]
        modes = torch.is_autocast_enabled("xla"), torch.get_autocast_dtype("xla"), torch.get_default_dtype()
        key = structure, tuple(looks), tuple(map(type, looks)), modes
        function = known.get(key)
        if function is None:
            function = known[key] = _traced(fn, structure, looks)
        return tree_unflatten(function(tensors, draw), function.structure)

    return called


def _traced(fn: Callable[..., Any], structure: Any, looks: list[Any]) -> pure.PureFunction:
    places = [place for place, look in enumerate(looks) if isinstance(look, joint.Look)]

    def of_tensors(*tensors: torch.Tensor) -> Any:
        filled = list(looks)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = tree_unflatten(filled, structure)
        return fn(*args, **kwargs)

    name = getattr(fn, "__name__", type(fn).__name__)
    return pure.PureFunction(of_tensors, tuple(looks[place] for place in places), name)


def _drawing_from(seed: Any) -> Callable[[int], list[int]]:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"assume_pure: pass rng_seed=..., an integer, got {seed!r}")

    def draw(count: int) -> list[int]:
        stream = RandomStream()
        stream.seed(seed)
        return stream.draw(count)

    return draw


def j2t_autograd(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of jax arrays as one of xla tensors, with the gradients of `jax.vjp`.

    Args:
        fn: of trees of arrays and other values, to a tree of arrays. It is traced once for each look of its arguments.

    Returns:
        a function of the same trees with xla tensors, at least one.

    Raises:
        TypeError: (the function made) there is no tensor among the arguments.
    """
    structures: dict[Any, Any] = {}

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        import jax

        leaves, structure = tree_flatten((args, kwargs))
        places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        tensors = [leaves[place] for place in places]
        if not tensors:
            raise TypeError(f"j2t_autograd: expected an xla tensor among the arguments of {fn}, got none")
        rest = tuple(None if place in places else leaf for place, leaf in enumerate(leaves))
        key = fn, structure, places, rest, tuple(map(type, rest))

        def flat(*arrays: Any) -> Any:
            filled = list(rest)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            given, named = tree_unflatten(filled, structure)
            found, structures[key] = jax.tree.flatten(fn(*given, **named))
            return found

        made = jax_function.call_with_gradients(flat, tensors, key, getattr(fn, "__name__", "function"))
        return jax.tree.unflatten(structures[key], made)

    return called


class PureModule(nn.Module):
    """A module whose forward is traced once for each look of its arguments, as by `assume_pure`. Its parameters and
    buffers are arguments, so an optimizer may change them.

    Args:
        module: its forward depends on its parameters, buffers and arguments alone, and writes to no buffer.
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        self._module = module
        self._pure = assume_pure(functools.partial(_functional, module))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives."""
        state = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        return self._pure(state, self._module.training, args, kwargs)


def _functional(module: nn.Module, state: Any, training: bool, args: Any, kwargs: Any) -> Any:
    return torch.func.functional_call(module, state, args, kwargs)


def make_fake_inputs(input: Any) -> Any:
    """A stand-in for a tensor, of the same look on the same device; anything else as it is.

    Returns:
        a tensor of zeros, none of which has been computed.
    """
    if not isinstance(input, torch.Tensor):
        return input
    stand_in = torch.zeros(input.shape, dtype=input.dtype, device=input.device)
    return stand_in.requires_grad_(input.requires_grad)


#: What `assume_pure_torch(use_cache=True)` knows, by the function's name.
_XLA_COMPUTATION_CACHE: dict[str, tuple[pure.PureCall, Any]] = {}


def assume_pure_torch(func: Callable[..., Any], use_cache: bool = False) -> Callable[..., Any]:
    """`assume_pure` without gradients.

    Args:
        func: see `assume_pure`; it may use tensors that it closes over, which count for constants.
        use_cache: trace it once for all functions of its name: it is always called with the same shapes and values.

    Raises:
        RuntimeError: gradients are enabled.
    """
    if torch.is_grad_enabled():
        raise RuntimeError("assume_pure_torch has no gradients: call it within torch.no_grad(), or use assume_pure")

    @functools.wraps(func)
    def called(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree_flatten((args, kwargs))
        tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        found = _XLA_COMPUTATION_CACHE.get(func.__name__) if use_cache else None
        if found is None:
            results: list[Any] = []

            def flat(*given: torch.Tensor) -> list[Any]:
                rest = iter(given)
                filled = tree_map(lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else leaf, leaves)
                with torch.no_grad():
                    inner_args, inner_kwargs = tree_unflatten(filled, structure)
                    made, of_results = tree_flatten(func(*inner_args, **inner_kwargs))
                results[:] = [of_results]
                return made

            made = pure.PureCall(flat, tensors, func.__name__)
            found = made, results[0]
            if use_cache:
                _XLA_COMPUTATION_CACHE[func.__name__] = found
        call, of_results = found
        return tree_unflatten(call(tensors), of_results)

    return called
