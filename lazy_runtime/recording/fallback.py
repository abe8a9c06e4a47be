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

import torch

from ..common import causes, config, errors, metrics
from ..compat.torch import (
    DisableTorchDispatch,
    DispatchKey,
    OpOverload,
    has_computed_kernel,
    schema_of,
    tree_leaves,
    tree_map,
)
from ..execution import transfer
from ..ir import lowering_context
from ..ir.graph import Call
from ..lowering import aten_bridge
from ..lowering.layout import logical
from ..ops import host_call, registry
from ..ops.registry import Operator
from ..tensor.xla_tensor import XLATensor
from . import decompose, dispatch

causes.register(__file__, "an operator without a lowering runs on the CPU")


def call(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Serves an operator without a lowering.

    Raises:
        NotImplementedError: it cannot be called either, or the strict mode forbids it.
    """
    if config.strict_fallback():
        trace = dispatch.current_trace()
        raise NotImplementedError(errors.strict_fallback(func, errors.user_line() if trace is None else trace.line))
    if schema_of(func).is_mutable:
        raise NotImplementedError(errors.no_lowering(func))
    if not has_computed_kernel(func.name(), "CPU"):
        if func.has_kernel_for_dispatch_key(DispatchKey.QuantizedCPU):
            raise NotImplementedError(errors.no_quantized(func.name()))
        raise NotImplementedError(errors.no_kernel(func))
    if _in_program(func) and _can_pass(args, kwargs):
        try:
            return dispatch.record(_operator(func), args, kwargs)
        except _NoShapesError:
            pass
    return _between_programs(func, args, kwargs)


@functools.cache
def _in_program(func: OpOverload) -> bool:
    """Whether the operator's results are tensors of sizes that do not depend on data, and the same for the same
    arguments.
    """
    if not {torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}.isdisjoint(func.tags):
        return False
    returns = [str(returned.type) for returned in schema_of(func).returns]
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
def _operator(func: OpOverload) -> Operator:
    def lowering(call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if lowering_context.current().narrows:  # `lower` then gives what torch's kernels expect
            raise TypeError(f"{func.name()} runs on torch's own dtypes")
        arguments = logical(_all_arguments(func, args, kwargs))
        results = [spec and spec.struct() for spec in call.outputs]
        if call.device.platform == "cpu" and aten_bridge.is_built():
            found = aten_bridge.call(func.name(), arguments, results)
        else:
            found = host_call.on_host(func, arguments, results, call.device.grid)
        return found[0] if call.container is None else found

    operator = Operator(func.name(), func, lowering, infer=_shapes_of(func), fallible=True)
    operator.counter = f"aten::{schema_of(func).name.split('::')[1]}"
    return operator


def _all_arguments(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the schema's order, for the CPU."""
    found = registry.arguments(func, args, kwargs)
    return [torch.device("cpu") if isinstance(argument, torch.device) else argument for argument in found]


class _NoShapesError(NotImplementedError):
    """Torch cannot tell an operator's output shapes without its data."""


def _shapes_of(func: OpOverload) -> Callable[..., Any]:
    """Runs the operator on meta tensors, or if torch has no meta kernel, on zeros."""

    def shapes(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except NotImplementedError:
            pass
        try:
            return func(*tree_map(_zeros, args), **tree_map(_zeros, kwargs))
        except Exception as error:  # zeros are no good example: the real data decides
            raise _NoShapesError(errors.no_lowering(func)) from error

    return shapes


def _zeros(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("cpu")
    if isinstance(x, torch.Tensor) and x.is_meta:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu").zero_()
    return x


def _between_programs(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs what is pending, the operator on the CPU, and goes on with its results on the device."""
    if dispatch.current_trace() is not None:
        raise errors.DataDependentError(func)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, XLATensor)]
    device = tensors[0].spec.device if tensors else dispatch.xla_devices.get(kwargs.get("device"))
    metrics.count(f"aten::{schema_of(func).name.split('::')[1]}")

    def to_host(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device("cpu")
        return transfer.to_host(x) if isinstance(x, XLATensor) else x

    def to_device(x: Any) -> Any:
        return transfer.to_device(x, device) if isinstance(x, torch.Tensor) else x

    host_args, host_kwargs = tree_map(to_host, (tuple(args), kwargs))
    with DisableTorchDispatch(), torch.no_grad():
        result = func(*host_args, **host_kwargs)
    return tree_map(to_device, result)


decompose.fallback = call
