"""Operators that nobody lowers: torch's own CPU kernel is called from inside the XLA program.

On the CPU that is the ATen bridge, elsewhere a host callback. Each such operator is an ordinary node, so the graph is
not cut and autograd, which works above, has torch's formulas for it. What cannot be called so (sizes that depend on
data, numbers that are read, random kernels) runs on the CPU between two programs.

Counted as `aten::name`; `XLA_STRICT_FALLBACK=1` makes it an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree as pytree

from . import aten_bridge, checks, config, decompose, dispatch, dtypes, errors, metrics, transfer
from .ir import Call
from .layout import logical
from .ops import registry
from .ops.registry import Operator
from .tensor import XLATensor


def call(func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Serves an operator without a lowering.

    Raises:
        NotImplementedError: it cannot be called either, or the strict mode forbids it.
    """
    if config.strict_fallback():
        trace = dispatch.current_trace()
        raise NotImplementedError(errors.strict_fallback(func, errors.users_line() if trace is None else trace.line))
    if func._schema.is_mutable:
        raise NotImplementedError(errors.no_lowering(func))
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU"):
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.QuantizedCPU):
            raise NotImplementedError(errors.no_quantized(func.name()))
        raise NotImplementedError(errors.no_kernel(func))
    if _in_program(func) and _can_pass(args, kwargs):
        try:
            return dispatch.record(_operator(func), args, kwargs)
        except _NoShapesError:
            pass
    return _between_programs(func, args, kwargs)


@functools.cache
def _in_program(func: torch._ops.OpOverload) -> bool:
    """Whether the operator's results are tensors of sizes that do not depend on data, and the same for the same
    arguments."""
    if not {torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}.isdisjoint(func.tags):
        return False
    returns = [str(returned.type) for returned in func._schema.returns]
    return bool(returns) and all(kind in ("Tensor", "List[Tensor]") for kind in returns)


def _can_pass(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the bridge takes all arguments that are no tensors."""
    try:
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, list | tuple) and any(isinstance(item, torch.Tensor) for item in arg):
                continue
            if not isinstance(arg, torch.Tensor):
                aten_bridge.encode_static(arg)
    except TypeError:
        return False
    return True


@functools.cache
def _operator(func: torch._ops.OpOverload) -> Operator:
    def lowering(call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if dtypes.is_narrowing():  # `lower` then gives what torch's kernels expect
            raise TypeError(f"{func.name()} runs on torch's own dtypes")
        arguments = logical(_all_arguments(func, args, kwargs))
        results = [spec and spec.struct() for spec in call.outputs]
        if call.device.platform == "cpu" and aten_bridge.is_built():
            found = aten_bridge.call(func.name(), arguments, results)
        else:
            found = on_host(func, arguments, results, call.device.grid)
        return found[0] if call.container is None else found

    operator = Operator(func.name(), func, lowering, infer=_shapes_of(func), fallible=True)
    operator.counter = f"aten::{func._schema.name.split('::')[1]}"
    return operator


def _all_arguments(func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the schema's order, for the CPU."""
    found = registry.arguments(func, args, kwargs)
    return [torch.device("cpu") if isinstance(argument, torch.device) else argument for argument in found]


class _NoShapesError(NotImplementedError):
    """Torch cannot tell an operator's output shapes without its data."""


def _shapes_of(func: torch._ops.OpOverload) -> Callable[..., Any]:
    """Runs the operator on meta tensors, or if torch has no meta kernel, on zeros."""

    def shapes(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except NotImplementedError:
            pass
        try:
            return func(*pytree.tree_map(_zeros, args), **pytree.tree_map(_zeros, kwargs))
        except Exception as error:  # zeros are no good example: the real data decides
            raise _NoShapesError(errors.no_lowering(func)) from error

    return shapes


def _zeros(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("cpu")
    if isinstance(x, torch.Tensor) and x.is_meta:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu").zero_()
    return x


def on_host(
    func: torch._ops.OpOverload,
    arguments: Sequence[Any],
    results: Sequence[Any],
    grid: jax.sharding.Mesh | None = None,
) -> list[Any]:
    """The operator on the host, within a lowering: for platforms whose programs cannot call torch's kernels.

    Args:
        arguments: all of the schema's, in order.
        results: `jax.ShapeDtypeStruct` of each result, None for one that is undefined.
        grid: of the devices that the program is sharded over.
    """
    leaves, structure = pytree.tree_flatten(list(arguments))
    places = [number for number, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    wide = {place: np.dtype(leaves[place].dtype) for place in places}
    number = checks.current_call()

    def run(*arrays: Any) -> list[np.ndarray]:
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = transfer.from_numpy(_widened(np.asarray(array), wide[place]))
        try:
            found = _call_on_host(func, pytree.tree_unflatten(filled, structure))
        except Exception as error:
            raise RuntimeError(f"[aten #{number} {type(error).__name__.lstrip('_')}] {error} [end]") from error
        tensors = pytree.tree_leaves(found)
        found = [x.contiguous() for x, like in zip(tensors, results, strict=True) if like is not None]
        return [_halves(transfer.to_numpy(x)) for x in found]

    wanted = [like for like in results if like is not None]
    halves = [jax.eval_shape(_narrowed, like) for like in wanted]
    narrowed = _whole([_narrowed(leaves[place]) for place in places], grid)
    made = _whole(jax.pure_callback(run, halves, *narrowed), grid)
    restored = iter([_restored(x, like) for x, like in zip(made, wanted, strict=True)])
    return [None if like is None else next(restored) for like in results]


def _whole(arrays: Sequence[jax.Array], grid: jax.sharding.Mesh | None) -> Sequence[jax.Array]:
    """The arrays, all of each on every device: a callback has one, and XLA takes detours between that and parts."""
    if grid is None:
        return arrays
    sharding = jax.sharding.NamedSharding(grid, jax.sharding.PartitionSpec())
    return [jax.lax.with_sharding_constraint(x, sharding) for x in arrays]


# A callback runs on a thread of the platform's, where jax narrows 64-bit types (`enable_x64` belongs to a thread), so
# they cross as pairs of 32-bit integers.
_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def _narrowed(x: jax.Array) -> jax.Array:
    """The array with 64-bit elements as their 32-bit halves, along one more dimension."""
    if x.dtype == np.complex128:
        x = jnp.stack([x.real, x.imag], -1)
    if x.dtype not in _WIDE:
        return x
    halves = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return halves


def _restored(x: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    """Undoes `_narrowed`."""
    if like.dtype not in _WIDE:
        return x
    if like.dtype == np.complex128:
        parts = jax.lax.bitcast_convert_type(x, jnp.float64)
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    return jax.lax.bitcast_convert_type(x, like.dtype)


def _halves(x: np.ndarray) -> np.ndarray:
    """`_narrowed` on the host."""
    if x.dtype not in _WIDE:
        return x
    parts = (2, 2) if x.dtype == np.complex128 else (2,)
    return np.ascontiguousarray(x).reshape(-1).view(np.uint32).reshape(*x.shape, *parts)


def _widened(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`_restored` on the host."""
    if dtype not in _WIDE:
        return x
    shape = x.shape[: -2 if dtype == np.complex128 else -1]
    return np.ascontiguousarray(x).reshape(-1).view(dtype).reshape(shape)


def _call_on_host(func: torch._ops.OpOverload, arguments: Sequence[Any]) -> Any:
    positional = [argument for argument in func._schema.arguments if not argument.kwarg_only]
    named = func._schema.arguments[len(positional) :]
    kwargs = {argument.name: value for argument, value in zip(named, arguments[len(positional) :], strict=True)}
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        return func(*arguments[: len(positional)], **kwargs)


def _between_programs(func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs what is pending, the operator on the CPU, and goes on with its results on the device."""
    if dispatch.current_trace() is not None:
        raise errors.DataDependentError(func)
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, XLATensor)]
    device = tensors[0].spec.device if tensors else dispatch.xla_devices.get(kwargs.get("device"))
    metrics.count(f"aten::{func._schema.name.split('::')[1]}")

    def to_host(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device("cpu")
        return transfer.to_host(x) if isinstance(x, XLATensor) else x

    def to_device(x: Any) -> Any:
        return transfer.to_device(x, device) if isinstance(x, torch.Tensor) else x

    host_args, host_kwargs = pytree.tree_map(to_host, (tuple(args), kwargs))
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        result = func(*host_args, **host_kwargs)
    return pytree.tree_map(to_device, result)


decompose.fallback = call
