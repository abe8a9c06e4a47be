"""Python functions of nested arguments as computations: one for each kind of arguments, kept."""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from ....compat.torch import tree_flatten, tree_unflatten
from ....ir import dtypes
from ....ops import computation as operator
from . import computations
from .expressions import Computation
from .op import Op, create_computation
from .shapes import tensor_shape

_TENSOR = object()  # stands for a tensor among the arguments


class FlattenedInputFunc:
    """A function of nested arguments as one of a list of tensors.

    `function(*args)` is `postprocess(flat_call(preprocess(args)))`: what is no tensor among the arguments is kept in
    between.

    Args:
        orig_func: the function.

    Attributes:
        non_tensors: the other arguments, flat.
        in_spec, out_spec: how the arguments, and the results, are nested.
    """

    def __init__(self, orig_func: Callable[..., Any]):
        self.orig_func = orig_func
        self.non_tensors: tuple[Any, ...] | None = None
        self.in_spec: Any = None
        self.out_spec: Any = None

    def preprocess(self, args: Any, kwargs: dict[str, Any] | None = None) -> tuple[torch.Tensor, ...]:
        """The tensors among the arguments. The rest is kept for `flat_call`."""
        flat, self.in_spec = self.flatten((args, kwargs or {}))
        self.non_tensors = tuple(_TENSOR if isinstance(each, torch.Tensor) else each for each in flat)
        return tuple(each for each in flat if isinstance(each, torch.Tensor))

    def flat_call(self, flat_input: Sequence[Any]) -> list[Any]:
        """The function of what stands for the tensors; its results, flat.

        Raises:
            RuntimeError: `preprocess` has not been called.
        """
        if self.non_tensors is None:
            raise RuntimeError("flat_call: call preprocess first, which keeps the arguments that are no tensors")
        given = iter(flat_input)
        filled = [next(given) if each is _TENSOR else each for each in self.non_tensors]
        args, kwargs = self.unflatten(filled, self.in_spec)
        results, self.out_spec = self.flatten(self.orig_func(*args, **kwargs))
        return results

    def postprocess(self, res_flattened: Sequence[Any]) -> Any:
        """The results as the function nests them.

        Raises:
            RuntimeError: `flat_call` has not been called.
        """
        if self.out_spec is None:
            raise RuntimeError("postprocess: call flat_call first, which learns how the results are nested")
        return self.unflatten(list(res_flattened), self.out_spec)

    def flatten(self, inputs: Any) -> tuple[list[Any], Any]:
        """The leaves of a nest, and how they are nested."""
        return tree_flatten(inputs)

    def unflatten(self, flattened: Sequence[Any], spec: Any) -> Any:
        """The nest of these leaves."""
        return tree_unflatten(list(flattened), spec)


class JaxFlattenedInputFunc(FlattenedInputFunc):
    """The same for a function of jax's: nested as jax nests, and with jax's dtypes in place of torch's."""

    def preprocess(self, args: Any, kwargs: dict[str, Any] | None = None) -> tuple[torch.Tensor, ...]:
        """See `FlattenedInputFunc.preprocess`."""
        found = super().preprocess(args, kwargs)
        assert self.non_tensors is not None
        self.non_tensors = tuple(
            dtypes.to_numpy(each) if isinstance(each, torch.dtype) else each for each in self.non_tensors
        )
        return found

    def flatten(self, inputs: Any) -> tuple[list[Any], Any]:
        """See `jax.tree.flatten`."""
        return jax.tree.flatten(inputs)

    def unflatten(self, flattened: Sequence[Any], spec: Any) -> Any:
        """See `jax.tree.unflatten`."""
        return jax.tree.unflatten(spec, flattened)


class CompiledCallableWithCache(abc.ABC):
    """A function that is traced once for each kind of arguments: their nest, shapes and dtypes, and what is no tensor.

    Args:
        flat_input_func: the function.
    """

    def __init__(self, flat_input_func: FlattenedInputFunc):
        self._cache: dict[Hashable, tuple[Callable[..., Any], Any]] = {}
        self._flat_input_func = flat_input_func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self._flat_input_func
        tensors = function.preprocess(args, kwargs)
        kinds = tuple((tuple(each.shape), each.dtype) for each in tensors)
        # 1, 1.0 and True are equal, and not the same to a function
        others = tuple((type(each), _hashable(each)) for each in function.non_tensors or ())
        device = computations.device_of(tensors)
        key = kinds, others, function.in_spec, device.platform, self._setting()
        found = self._cache.get(key)
        if found is None:
            specialized = self.specialize(tensors)
            found = self._cache[key] = specialized, function.out_spec
        specialized, function.out_spec = found
        return function.postprocess(specialized(tensors))

    def _setting(self) -> Hashable:
        """What else the traced function depends on."""
        return None

    @abc.abstractmethod
    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], Any]:
        """The function of tensors like these: tensors → results, both flat."""


class JaxCallable(CompiledCallableWithCache):
    """A jax function as one of xla tensors.

    Args:
        jax_func: pure, of arrays in place of the tensors.
    """

    def __init__(self, jax_func: Callable[..., Any]):
        super().__init__(JaxFlattenedInputFunc(jax_func))

    def _setting(self) -> Hashable:
        return _jax_setting()

    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], Any]:
        """See `CompiledCallableWithCache.specialize`."""
        avals = [jax.ShapeDtypeStruct(tuple(x.shape), dtypes.to_numpy(x.dtype)) for x in sample_flat_args]

        def flat(*arrays: Any) -> list[Any]:
            return self._flat_input_func.flat_call(arrays)

        traced = operator.trace(flat, avals, computations.device_of(sample_flat_args).platform)
        return lambda tensors: computations.call(traced, tensors)


class XlaCallable(CompiledCallableWithCache):
    """A function that builds operations as one of xla tensors.

    Args:
        xla_func: of an `Op` in place of each tensor.
    """

    def __init__(self, xla_func: Callable[..., Any]):
        super().__init__(FlattenedInputFunc(xla_func))

    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], Any]:
        """See `CompiledCallableWithCache.specialize`."""
        computation: Computation = create_computation(
            "xla_computation",
            lambda *operations: Op.tuple(self._flat_input_func.flat_call(operations)),
            tensor_shape(list(sample_flat_args)),
        )
        return computations.xla_computation_as_func(computation)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):  # a constant of the function
        return value.dtype, value.shape, value.tobytes()
    return value


def _jax_setting() -> Hashable:
    """Flags of jax that a user may change between two calls, and that decide what is traced."""
    config: Any = jax.config
    return tuple(getattr(config, name, None) for name in _FLAGS)


_FLAGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_dtype_bits",
    "jax_default_prng_impl",
    "jax_disable_jit",
)

#: jax function (or what stands for it) → its callable
_JAX_TO_XLA_COMPUTATION_CACHE: dict[Hashable, tuple[Any, JaxCallable]] = {}


def _jax_to_xla_computation_cache_elements() -> int:
    """How many computations have been traced of jax functions."""
    return sum(len(each._cache) for _, each in _JAX_TO_XLA_COMPUTATION_CACHE.values())


def call_jax(
    jax_func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    override_hash: Hashable = None,
) -> Any:
    """A jax function of xla tensors, recorded as one operator. No gradient goes through it.

    The function is traced once for each kind of arguments: their nest, the tensors' shapes and dtypes, the values of
    all else. A function that is made anew for each call is traced at each call.

    Args:
        jax_func: pure; gets jax arrays in place of the tensors. 64-bit types stay so where a tensor is of one, or
            `jax_enable_x64` is on.
        args, kwargs: its arguments, nests of tensors and other values.
        name: accepted for PyTorch/XLA's sake.
        override_hash: what stands for the function among those that have been traced; by default it itself.

    Returns:
        what the function returns, with tensors on the device of the first one in place of arrays.
    """
    key = ("key", override_hash) if override_hash is not None else ("function", id(jax_func))
    known = _JAX_TO_XLA_COMPUTATION_CACHE.get(key)
    if known is None:  # the function is kept: its id must not become another's
        known = _JAX_TO_XLA_COMPUTATION_CACHE[key] = jax_func, JaxCallable(jax_func)
    return known[1](*args, **(kwargs or {}))
