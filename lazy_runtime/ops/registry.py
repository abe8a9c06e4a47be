"""The table of operators: aten overload → lowering to jax.

A lowering is a function with the aten schema's arguments, tensors being jax arrays:

    @op("aten::mm")
    def mm(x, y): ...

    @pointwise("aten::atan2")
    def atan2(x, y): ...

`pointwise` casts by torch's promotion rules before and after, so its functions do not. What torch derives from a schema
is derived here too: in-place and `out=` forms never arrive (torch functionalizes them away), and a view operator serves
its `_copy` form as well. Registering an operator twice raises.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ..compat.torch import OpOverload, schema_of
from ..compat.tracing import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion
from ..compat.tracing import corresponding_complex_dtype, elementwise_dtypes, get_computation_dtype
from ..ir import dtypes
from ..ir.graph import Call
from ..ir.spec import contiguous_strides
from ..lowering import layout
from .elementwise.casting import convert

__all__ = ["Operator", "Promotion", "arguments", "checked_dtypes", "lookup", "op", "overload", "pointwise", "table"]


def arguments(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """All arguments in the schema's order, defaults filled in."""
    missing = schema_of(func).arguments[len(args) :]
    return [*args, *(kwargs.get(argument.name, argument.default_value) for argument in missing)]


#: (call, args, kwargs) → output array, or a sequence of them; inside a jax trace, under x64.
Lowering = Callable[[Call, Sequence[Any], dict[str, Any]], Any]


class Operator:
    """How one aten overload is recorded and lowered.

    Attributes:
        overload: the aten overload as torch's dispatcher delivers it.
        infer: what is run on meta tensors for shapes, strides, dtypes and torch's own error messages: the overload, or
            for a view's `_copy` form the view itself, because its result must carry the strides of the alias.
        dynamic_scalars: numbers among the arguments that may change from step to step (a learning rate) are inputs of
            the graph instead of constants.
        random: takes a random seed as one more input.
        host_inputs: names of arguments whose tensors may be on the CPU, and are moved, as torch does for indices.
        fallible: it may fail when it runs: its lowering uses `checks.require`, or calls a kernel that may raise.
        products: its lowering asks for the precision of float32 products (`precision.of`), which is part of its key.
        collective: it works with the same operator of other ranks (`processes/process_job.py`).
        calls: the interned calls of this operator.
    """

    __slots__ = (
        "calls",
        "collective",
        "counter",
        "dynamic_scalars",
        "fallible",
        "host_inputs",
        "infer",
        "lowering",
        "name",
        "overload",
        "products",
        "random",
    )

    def __init__(
        self,
        name: str,
        overload: OpOverload,
        lowering: Lowering,
        infer: Callable[..., Any] | None = None,
        dynamic_scalars: bool = False,
        random: bool = False,
        host_inputs: Sequence[str] = (),
        fallible: bool = False,
        products: bool = False,
        collective: bool = False,
    ):
        self.name = name
        self.counter = f"xla::{name.removeprefix('aten::').split('.')[0]}"
        self.overload = overload
        self.lowering = lowering
        self.infer = infer or overload
        self.dynamic_scalars = dynamic_scalars
        self.random = random
        self.host_inputs = host_inputs
        self.fallible = fallible
        self.products = products
        self.collective = collective
        self.calls: dict[tuple, Call] = {}
        _tables.append(self.calls)


#: The calls of each operator, in the table or not.
_tables: list[dict[tuple, Call]] = []


def interned() -> dict[tuple, Call]:
    """A table for interned calls of something else than operators."""
    calls: dict[tuple, Call] = {}
    _tables.append(calls)
    return calls


def forget_calls(used: set[Call]) -> None:
    """Forgets all interned calls but the used ones. A recorded one that is met again is another call then."""
    for calls in _tables:
        for meaning, call in list(calls.items()):
            if call not in used:
                calls.pop(meaning, None)


table: dict[OpOverload, Operator] = {}


def overload(name: str) -> OpOverload | None:
    """The overload that `aten::add.Tensor` names, or None if this torch has none of that name."""
    namespace, _, rest = name.partition("::")
    packet_name, _, overload_name = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    return getattr(packet, overload_name or "default", None)


def lookup(target: OpOverload) -> Operator | None:
    """The operator registered for an overload."""
    return table.get(target)


def _add(name: str, lowering: Lowering, infer: Callable[..., Any] | None = None, **flags: Any) -> None:
    target = overload(name)
    if target is None:  # an operator of another torch version
        return
    if target in table:
        raise ValueError(f"{name} has two lowerings")
    table[target] = Operator(name, target, lowering, infer, **flags)


def copy_form(name: str) -> str:
    """The name of a view operator's `_copy` form."""
    packet, _, overload_name = name.partition(".")
    return f"{packet}_copy" + (f".{overload_name}" if overload_name else "")


def op(
    *names: str,
    view: bool = False,
    dynamic_scalars: bool = False,
    random: bool = False,
    host_inputs: Sequence[str] = (),
    fallible: bool = False,
    products: bool = False,
    collective: bool = False,
    channels_last: bool = False,
    transposed: bool = False,
    widened: bool = False,
    permuted: bool = False,
    repeated: bool = False,
    parts: bool = False,
    infer: Callable[..., Any] | None = None,
) -> Callable[[Callable], Callable]:
    """Registers a lowering under one or more names (`aten::sum.dim_IntList`).

    Parameters that are not the schema's own: `out` receives the `TensorSpec` of the output (a tuple of them where there
    are several), `input_spec` that of the first tensor input, `seed` the random seed (int64 scalar).

    Args:
        view: also registers the `_copy` forms, and takes the strides of the alias.
        dynamic_scalars, random, host_inputs, fallible, products, collective: see `Operator`.
        infer: run on meta tensors instead of the operator, where torch's meta and CPU kernels disagree.
        channels_last, transposed, widened, permuted, repeated, parts: the function takes `layout.ChannelsLast`,
            `layout.Transposed`, `layout.Widened`, `layout.Permuted`, `layout.Repeated` and `layout.Part` values as they
            are; others get arrays in torch's order.
    """

    def register(function: Callable) -> Callable:
        parameters = inspect.signature(function).parameters
        wants_out = "out" in parameters
        wants_input = "input_spec" in parameters
        orders = {
            layout.ChannelsLast: channels_last,
            layout.Transposed: transposed,
            layout.Widened: widened,
            layout.Permuted: permuted,
            layout.Repeated: repeated,
            layout.Part: parts,
        }
        kept = tuple(order for order, is_kept in orders.items() if is_kept)

        def lowering(call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            if wants_out:
                kwargs = {**kwargs, "out": call.outputs[0] if call.container is None else call.outputs}
            if wants_input:
                kwargs = {**kwargs, "input_spec": call.inputs[0]}
            args, kwargs = layout.logical(list(args), kept), {k: layout.logical(x, kept) for k, x in kwargs.items()}
            return function(*args, **kwargs)

        functools.update_wrapper(lowering, function, (), ())  # whose it is (`disk_key.py`)
        flags: dict[str, Any] = {
            "dynamic_scalars": dynamic_scalars,
            "random": random,
            "host_inputs": host_inputs,
            "fallible": fallible,
            "products": products,
            "collective": collective,
        }
        for name in names:
            _add(name, lowering, infer, **flags)
            if view and overload(copy_form(name)) is not None:
                _add(copy_form(name), lowering, infer=overload(name), **flags)
        return function

    return register


def pointwise(
    *names: str, promotion: Promotion = Promotion.DEFAULT, dynamic_scalars: bool = False, fallible: bool = False
) -> Callable[[Callable], Callable]:
    """Registers an elementwise lowering. Its tensor arguments arrive in torch's computation dtype (float32 for the
    16-bit floats), and its result is cast to torch's result dtype. Python numbers arrive as they are.
    """

    def register(function: Callable) -> Callable:
        def lowering(call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            compute = dtypes.to_numpy(_computation_dtype(call, promotion, args))

            def cast(x: Any) -> Any:
                return convert(x, compute) if isinstance(x, jax.Array) else x

            (out,) = call.outputs
            assert out is not None
            dtype = dtypes.to_numpy(out.dtype)

            def compute_and_cast(*args: Any, **kwargs: Any) -> Any:
                return convert(function(*map(cast, args), **{key: cast(x) for key, x in kwargs.items()}), dtype)

            result = layout.elementwise(compute_and_cast, *args, **kwargs)
            return result if result.shape == out.shape else jnp.broadcast_to(layout.logical(result), out.shape)

        functools.update_wrapper(lowering, function, (), ())
        for name in names:
            _add(name, lowering, checked_dtypes(name), dynamic_scalars=dynamic_scalars, fallible=fallible)
        return function

    return register


def checked_dtypes(name: str) -> Callable[..., Any] | None:
    """For `infer`: an elementwise operator's CPU kernel on one element of each operand, and then the operator on meta
    tensors.

    Most of what torch says of dtypes and numbers that an operator does not take is said by the kernel. Where all
    operands are alike it has said all there is to know; many meta kernels are torch's references in Python, the first
    of which imports Dynamo: a second of a program's first result.
    """
    target = overload(name)
    if target is None:
        return None

    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.is_meta:
            return torch.ones((1,) * min(x.ndim, 1), dtype=x.dtype, device="cpu")
        return x

    def of_one_element(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return target(*map(one, args), **{name: one(x) for name, x in kwargs.items()})

    def infer(*args: Any, **kwargs: Any) -> Any:
        shape = _shape_of_all([*args, *kwargs.values()])
        if shape is None:
            result = target(*args, **kwargs)  # first: torch speaks of shapes that do not fit before it does of dtypes
            of_one_element(args, kwargs)
            return result
        element = of_one_element(args, kwargs)
        if not isinstance(element, torch.Tensor):
            return target(*args, **kwargs)
        return torch.empty(shape, dtype=element.dtype, device="meta")

    infer.asks_kernel = True  # type: ignore[attr-defined]
    return infer


def _shape_of_all(args: Sequence[Any]) -> tuple[int, ...] | None:
    """The shape of the tensors among the arguments, if they are meta tensors of one shape and row-major: then the
    result of an elementwise operator is as well. None if not.
    """
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    shape = tuple(tensors[0].shape) if tensors else None
    if shape is None:
        return None
    dense = contiguous_strides(shape)
    alike = all(x.is_meta and tuple(x.shape) == shape and x.stride() == dense for x in tensors)
    return shape if alike else None


def _computation_dtype(call: Call, promotion: Promotion, args: Sequence[Any]) -> torch.dtype:
    # of a tensor, its dtype counts and whether it has dimensions; their sizes may be symbolic
    tensors = [torch.empty((1,) * len(spec.shape), dtype=spec.dtype, device="meta") for spec in call.inputs]
    # a number takes part in promotion with its type only; one that is a graph input arrives as a 64-bit 0-d array
    numbers: list[Any] = [arg for arg in args if isinstance(arg, int | float | complex)]
    numbers += [1.5] * call.floats + [2] * (call.ints - call.random)
    compute, _ = elementwise_dtypes(*tensors, *numbers, type_promotion_kind=promotion)
    default: Any = call.default_dtype
    if default is None or any(spec.dtype.is_floating_point or spec.dtype.is_complex for spec in call.inputs):
        return compute
    # what no tensor decides is the default dtype, of when the operator was recorded
    if compute.is_complex:
        return get_computation_dtype(corresponding_complex_dtype(default))
    return get_computation_dtype(default) if compute.is_floating_point else compute
