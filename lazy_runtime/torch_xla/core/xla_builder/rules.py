"""XLA's operations by the names of `xla::XlaBuilder`, over `jax.lax`.

The semantics are those of https://openxla.org/xla/operation_semantics. A binary operation broadcasts as the builder's
do: a scalar to the other's sizes, and dimensions of size 1 between arrays of one rank. It converts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ....lowering import precision
from ....tensor import host_arrays
from .ordering import sort
from .scattering import gather, scatter
from .shapes import to_aval
from .windows import RULES as _WINDOWS

Rule = Callable[..., Any]


def _binary(function: Callable[[Any, Any], Any]) -> Rule:
    def rule(x: Any, y: Any) -> Any:
        if x.shape != y.shape and (x.ndim == y.ndim or 0 in (x.ndim, y.ndim)):
            shape = jnp.broadcast_shapes(x.shape, y.shape)
            x, y = jnp.broadcast_to(x, shape), jnp.broadcast_to(y, shape)
        return function(x, y)

    return rule


def _shift_right(x: Any, y: Any) -> Any:
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    return lax.shift_right_arithmetic(x, y) if signed else lax.shift_right_logical(x, y)


def _dtype(name: str) -> Any:
    return to_aval({"type": name, "sizes": ()}).dtype


def _dot(x: Any, y: Any) -> Any:
    return lax.dot(x, y, precision=precision.of(x.dtype))


def _reshape(
    x: Any, *, sizes: Sequence[int], dimensions: Sequence[int] | None = None, inferred_dimension: int | None = None
) -> Any:
    if dimensions is not None:
        x = lax.transpose(x, tuple(dimensions))
    return lax.reshape(x, tuple(sizes))


def _broadcast_in_dim(x: Any, *, sizes: Sequence[int], dimensions: Sequence[int]) -> Any:
    return lax.broadcast_in_dim(x, tuple(sizes), tuple(dimensions))


def _constant(*, value: Any) -> Any:
    return jnp.asarray(host_arrays.to_numpy(value.detach().cpu().contiguous()))


def _iota(*, shape: Any, iota_dimension: int) -> Any:
    aval = to_aval(shape)
    return lax.broadcasted_iota(aval.dtype, aval.shape, iota_dimension)


def _slice_in_dim(x: Any, *, start_index: int, limit_index: int, dimno: int, stride: int = 1) -> Any:
    return lax.slice_in_dim(x, start_index, limit_index, stride, dimno)


def _dynamic_slice(x: Any, *starts: Any, slice_sizes: Sequence[int], given: int = 1) -> Any:
    return lax.dynamic_slice(x, starts, tuple(slice_sizes))


def _dynamic_update_slice(x: Any, update: Any, *starts: Any, given: int = 2) -> Any:
    return lax.dynamic_update_slice(x, update, starts)


def _map(
    *arrays: Any, computation: Callable[..., Any], dimensions: Sequence[int], given: int | None = None, **_: Any
) -> Any:
    given = len(arrays) if given is None else given
    if list(dimensions) != list(range(arrays[0].ndim)):
        raise ValueError(f"Map: expected the dimensions 0 to {arrays[0].ndim - 1}, in order, got {list(dimensions)}")
    static = arrays[given:]
    function: Any = lambda *scalars: computation(*scalars, *static)  # noqa: E731
    for _dimension in dimensions:
        function = jax.vmap(function)
    return function(*arrays[:given])


def _conditional(predicate: Any, true: Any, false: Any, *, true_computation: Any, false_computation: Any) -> Any:
    return lax.cond(predicate, lambda: true_computation(true), lambda: false_computation(false))


def _while(state: Any, *, condition_computation: Any, body_computation: Any) -> Any:
    return lax.while_loop(condition_computation, body_computation, state)


def _triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = True,
    lower: bool = False,
    unit_diagonal: bool = False,
    transpose_a: bool = False,
) -> Any:
    return lax.linalg.triangular_solve(
        a, b, left_side=left_side, lower=lower, unit_diagonal=unit_diagonal, transpose_a=transpose_a
    )


def _set_dimension_size(*operands: Any, **attributes: Any) -> Any:
    raise NotImplementedError(
        "SetDimensionSize: StableHLO as jax makes it has no bounded sizes; mask what is past the size, or build a "
        "computation for each one"
    )


_UNARY: dict[str, Rule] = {
    "Abs": lax.abs,
    "Acos": lax.acos,
    "Asin": lax.asin,
    "Atan": lax.atan,
    "Ceil": lax.ceil,
    "Clz": lax.clz,
    "Conj": lax.conj,
    "Cos": lax.cos,
    "Cosh": lax.cosh,
    "Erf": lax.erf,
    "Erfc": lax.erfc,
    "ErfInv": lax.erf_inv,
    "Exp": lax.exp,
    "Expm1": lax.expm1,
    "Floor": lax.floor,
    "Imag": lax.imag,
    "Log": lax.log,
    "Log1p": lax.log1p,
    "Neg": lax.neg,
    "Not": lax.bitwise_not,
    "Real": lax.real,
    "Rsqrt": lax.rsqrt,
    "Sin": lax.sin,
    "Sinh": lax.sinh,
    "Sqrt": lax.sqrt,
    "Square": lax.square,
    "Tan": lax.tan,
    "Tanh": lax.tanh,
}

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lax.add,
    "And": lax.bitwise_and,
    "Atan2": lax.atan2,
    "Div": lax.div,
    "Eq": lax.eq,
    "Ge": lax.ge,
    "Gt": lax.gt,
    "Le": lax.le,
    "Lt": lax.lt,
    "Max": lax.max,
    "Min": lax.min,
    "Mul": lax.mul,
    "Ne": lax.ne,
    "Or": lax.bitwise_or,
    "Pow": lax.pow,
    "Rem": lax.rem,
    "ShiftLeft": lax.shift_left,
    "ShiftRight": _shift_right,
    "Sub": lax.sub,
    "Xor": lax.bitwise_xor,
}

#: operation → function of the operands' arrays and its attributes
RULES: dict[str, Rule] = {
    **_UNARY,
    **{name: _binary(function) for name, function in _BINARY.items()},
    **_WINDOWS,
    "BitcastConvert": lambda x, *, to_type: lax.bitcast_convert_type(x, _dtype(to_type)),
    "Broadcast": lambda x, *, sizes: lax.broadcast(x, tuple(sizes)),
    "BroadcastInDim": _broadcast_in_dim,
    "Call": lambda *arrays, computation: computation(*arrays),
    "Clamp": lambda x, low, high: lax.clamp(low, x, high),
    "ConcatInDim": lambda *arrays, dimension: lax.concatenate(arrays, dimension),
    "Conditional": _conditional,
    "Constant": _constant,
    "Convert": lambda x, *, to_type: lax.convert_element_type(x, _dtype(to_type)),
    "Dot": _dot,
    "DynamicReshape": _reshape,
    "DynamicSlice": _dynamic_slice,
    "DynamicUpdateSlice": _dynamic_update_slice,
    "Gather": gather,
    "GetDimensionSize": lambda x, *, dimension: jnp.int32(x.shape[dimension]),
    "GetTupleElement": lambda x, *, index: x[index],
    "Iota": _iota,
    "Map": _map,
    "Pad": lambda x, value, *, config: lax.pad(x, value, [tuple(each) for each in config]),
    "Reshape": _reshape,
    "Rev": lambda x, *, dimensions: lax.rev(x, tuple(dimensions)),
    "Scatter": scatter,
    "Select": lambda predicate, x, y: lax.select(predicate, x, y),
    "SetDimensionSize": _set_dimension_size,
    "Slice": lambda x, *, start_indices, limit_indices, strides=None: lax.slice(
        x, start_indices, limit_indices, strides
    ),
    "SliceInDim": _slice_in_dim,
    "Sort": sort,
    "Transpose": lambda x, *, permutation: lax.transpose(x, tuple(permutation)),
    "TriangularSolve": _triangular_solve,
    "Tuple": lambda *elements: elements,
    "While": _while,
}
