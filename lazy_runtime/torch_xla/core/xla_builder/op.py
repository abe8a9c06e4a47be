"""Operations as Python's operators and methods, as PyTorch/XLA's builder writes them.

What a method does, and what its arguments mean, is XLA's operation of its name
(https://openxla.org/xla/operation_semantics). Each raises what jax says of the operands' shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import expressions
from .convolutions import Convolutions
from .expressions import Builder, Computation, Expression
from .shapes import Shape, from_torch_type, of_aval, to_aval, to_torch_type


def _method(kind: str, documentation: str = "") -> Any:
    """A method without attributes, whose further operands are its arguments."""

    def method(self: Op, *operands: Op) -> Op:
        return mkop(kind, [self.op, *[each.op for each in operands]])

    method.__doc__ = documentation or f"XLA's `{kind}`."
    return method


class Op(Convolutions):
    """An operation of a builder.

    Args:
        op: the expression that it is.
    """

    def __init__(self, op: Expression):
        self.op = op

    def shape(self) -> Shape:
        """Element type and sizes of its result."""
        return Shape(of_aval(self.op.aval))

    def builder(self) -> Builder:
        """The builder that it belongs to."""
        return self.op.builder

    def build(self, name: str) -> Computation:
        """The computation of the builder's parameters that gives this."""
        return Computation.of(name, self.op)

    __hash__ = object.__hash__
    __add__ = _method("Add")
    __sub__ = _method("Sub")
    __mul__ = _method("Mul")
    __matmul__ = _method("Dot")
    __truediv__ = _method("Div")
    __pow__ = _method("Pow")
    __mod__ = _method("Rem")
    __neg__ = _method("Neg")
    __invert__ = _method("Not")
    __not__ = _method("Not")
    __and__ = _method("And")
    __or__ = _method("Or")
    __xor__ = _method("Xor")
    __eq__ = _method("Eq")
    __ne__ = _method("Ne")
    __le__ = _method("Le")
    __lt__ = _method("Lt")
    __ge__ = _method("Ge")
    __gt__ = _method("Gt")
    __lshift__ = _method("ShiftLeft")
    __rshift__ = _method("ShiftRight")

    acos = _method("Acos")
    asin = _method("Asin")
    atan = _method("Atan")
    ceil = _method("Ceil")
    clz = _method("Clz")
    conj = _method("Conj")
    cos = _method("Cos")
    cosh = _method("Cosh")
    erf = _method("Erf")
    erfc = _method("Erfc")
    erfinf = _method("ErfInv")
    exp = _method("Exp")
    expm1 = _method("Expm1")
    floor = _method("Floor")
    imag = _method("Imag")
    log = _method("Log")
    log1p = _method("Log1p")
    real = _method("Real")
    rsqrt = _method("Rsqrt")
    sin = _method("Sin")
    sinh = _method("Sinh")
    sqrt = _method("Sqrt")
    tan = _method("Tan")
    tanh = _method("Tanh")
    atan2 = _method("Atan2")
    max = _method("Max")
    min = _method("Min")
    select = _method("Select", "`x` where this is true, and `y` elsewhere.")
    clamp = _method("Clamp", "This, but nowhere less than the first or greater than the second operand.")

    def _make(self, kind: str, operands: Sequence[Op] = (), **attributes: Any) -> Op:
        return mkop(kind, [self.op, *[each.op for each in operands]], **attributes)

    def reshape(
        self, sizes: Sequence[int], dimensions: Sequence[int] | None = None, inferred_dimension: int | None = None
    ) -> Op:
        """The elements in other sizes.

        Args:
            dimensions: the order in which they are read; by default row-major.
            inferred_dimension: accepted for PyTorch/XLA's sake; no size is unknown here.
        """
        return self._make("Reshape", sizes=sizes, dimensions=dimensions, inferred_dimension=inferred_dimension)

    def dynamic_reshape(self, sizes: Sequence[int]) -> Op:
        """`reshape`: no size is only a bound here."""
        return self._make("DynamicReshape", sizes=sizes)

    def broadcast(self, sizes: Sequence[int]) -> Op:
        """Copies along new dimensions in front."""
        return self._make("Broadcast", sizes=sizes)

    def broadcast_in_dim(self, sizes: Sequence[int], dimensions: Sequence[int]) -> Op:
        """Copies along all dimensions of the result but those that this one's are."""
        return self._make("BroadcastInDim", sizes=sizes, dimensions=dimensions)

    def slice(
        self, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
    ) -> Op:
        """A part, each dimension from its start to before its limit."""
        return self._make("Slice", start_indices=start_indices, limit_indices=limit_indices, strides=strides)

    def slice_in_dim(self, start_index: int, limit_index: int, dimno: int, stride: int = 1) -> Op:
        """A part along one dimension."""
        return self._make("SliceInDim", start_index=start_index, limit_index=limit_index, dimno=dimno, stride=stride)

    def dynamic_slice(self, start_indices: Sequence[Op], slice_sizes: Sequence[int]) -> Op:
        """A part of these sizes that begins at computed places, moved inside where it would not fit."""
        return self._make("DynamicSlice", start_indices=[each.op for each in start_indices], slice_sizes=slice_sizes)

    def dynamic_update_slice(self, update: Op, start_indices: Sequence[Op]) -> Op:
        """This with a part at computed places replaced."""
        return self._make("DynamicUpdateSlice", [update], start_indices=[each.op for each in start_indices])

    def gather(
        self,
        start_indices: Op,
        offset_dims: Sequence[int],
        collapsed_slice_dims: Sequence[int],
        start_index_map: Sequence[int],
        index_vector_dim: int,
        indices_are_sorted: bool | None = None,
        slice_sizes: Sequence[int] | None = None,
    ) -> Op:
        """Slices at computed places.

        Args:
            slice_sizes: by default 1 along dimensions that are collapsed, and all of the others.
        """
        return self._make(
            "Gather",
            [start_indices],
            offset_dims=offset_dims,
            collapsed_slice_dims=collapsed_slice_dims,
            start_index_map=start_index_map,
            index_vector_dim=index_vector_dim,
            indices_are_sorted=indices_are_sorted,
            slice_sizes=slice_sizes,
        )

    def scatter(
        self,
        scatter_indices: Op,
        updates: Op,
        computation: Any,
        update_window_dims: Sequence[int],
        inserted_window_dims: Sequence[int],
        scatter_dims_to_operand_dims: Sequence[int],
        index_vector_dim: int,
        indices_are_sorted: bool | None = None,
        unique_indices: bool | None = None,
    ) -> Op:
        """This with updates combined into it at computed places.

        Args:
            computation: of what is there and the update: their sum, product, least, greatest, or the update.

        Raises:
            NotImplementedError: it is none of these.
        """
        return self._make(
            "Scatter",
            [scatter_indices, updates],
            computation=self._of_scalars("Scatter", computation),
            update_window_dims=update_window_dims,
            inserted_window_dims=inserted_window_dims,
            scatter_dims_to_operand_dims=scatter_dims_to_operand_dims,
            index_vector_dim=index_vector_dim,
            indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices,
        )

    def cast(self, to_type: str) -> Op:
        """The values in another element type."""
        return self._make("Convert", to_type=to_type)

    def bitcast(self, to_type: str) -> Op:
        """The bits as another element type."""
        return self._make("BitcastConvert", to_type=to_type)

    def pad(self, value: Op, config: Sequence[tuple[int, int, int]]) -> Op:
        """This with a value around it and in between: low, high and interior of each dimension."""
        return self._make("Pad", [value], config=config)

    def transpose(self, permutation: Sequence[int]) -> Op:
        """The dimensions in another order."""
        return self._make("Transpose", permutation=permutation)

    def rev(self, dimensions: Sequence[int]) -> Op:
        """The elements along these dimensions in reverse."""
        return self._make("Rev", dimensions=dimensions)

    def triangualr_solve(
        self,
        b: Op,
        left_side: bool | None = None,
        lower: bool | None = None,
        unit_diagonal: bool | None = None,
        transpose_a: bool | None = None,
    ) -> Op:
        """Solves `self @ x = b` of a triangular matrix; `x @ self = b` without `left_side`. PyTorch/XLA spells it
        so.
        """
        return self._make(
            "TriangularSolve",
            [b],
            left_side=left_side,
            lower=lower,
            unit_diagonal=unit_diagonal,
            transpose_a=transpose_a,
        )

    def get_tuple_element(self, index: int) -> Op:
        """An element of a tuple."""
        return self._make("GetTupleElement", index=index)

    def get_dimension_size(self, dimension: int) -> Op:
        """The size of a dimension, an s32 scalar."""
        return self._make("GetDimensionSize", dimension=dimension)

    def set_dimension_size(self, size: Op, dimension: int) -> Op:
        """Makes a size a bound, of which `size` is used.

        Raises:
            NotImplementedError: always: jax's StableHLO has no bounded sizes.
        """
        return self._make("SetDimensionSize", [size], dimension=dimension)

    def conditional(self, true_operand: Op, false_operand: Op, true_computation: Any, false_computation: Any) -> Op:
        """One of two computations, each of an operand of its own, by a boolean scalar."""
        return self._make(
            "Conditional",
            [true_operand, false_operand],
            true_computation=Op.make_computation("CondTrue", true_computation, (true_operand,)),
            false_computation=Op.make_computation("CondFalse", false_computation, (false_operand,)),
        )

    def mkconditional(self, ops: Sequence[Op], true_fn: Any, false_fn: Any, **kwargs: Any) -> Op:
        """`conditional` of functions of the same operands."""
        operands = Op.tuple(ops)
        return self.conditional(operands, operands, true_fn, false_fn)

    def while_loop(self, condition_computation: Any, body_computation: Any) -> Op:
        """The body on its own result for as long as the condition of that is true, this being the first."""
        return self._make(
            "While",
            condition_computation=Op.make_computation("Condition", condition_computation, (self,)),
            body_computation=Op.make_computation("Body", body_computation, (self,)),
        )

    @classmethod
    def mkwhile(cls, ops: Sequence[Op], condition_fn: Any, body_fn: Any, **kwargs: Any) -> Op:
        """`while_loop` of functions of several operands."""
        return Op.tuple(ops).while_loop(condition_fn, body_fn)

    def scalar_like(self, value: Any) -> Op:
        """A number in every place of an array like this."""
        shape = self.shape()
        return Op.scalar(self.builder(), value, shape.dtype).broadcast(shape.sizes)

    def zeros_like(self) -> Op:
        return self.scalar_like(0)

    def ones_like(self) -> Op:
        return self.scalar_like(1)

    @classmethod
    def tuple(cls, ops: Sequence[Op], builder: Builder | None = None) -> Op:
        """Several as one."""
        return mkop("Tuple", [each.op for each in ops], builder=builder)

    @classmethod
    def concat_in_dim(cls, ops: Sequence[Op], dimension: int, builder: Builder | None = None) -> Op:
        """Arrays side by side along a dimension."""
        return mkop("ConcatInDim", [each.op for each in ops], builder=builder, dimension=dimension)

    @classmethod
    def call(cls, computation: Any, ops: Sequence[Op], builder: Builder | None = None) -> Op:
        """A computation, or a function that builds one, of these operands."""
        made = Op.make_computation("Call", computation, ops)
        return mkop("Call", [each.op for each in ops], builder=builder, computation=made)

    @classmethod
    def constant(cls, builder: Builder, value: torch.Tensor) -> Op:
        """The values of a tensor."""
        return mkleaf("Constant", builder, value=value)

    @classmethod
    def scalar(cls, builder: Builder, value: Any, dtype: str | None = None) -> Op:
        """A number, of the element type f32 if none is given."""
        return mkleaf("Constant", builder, value=torch.tensor(value, dtype=to_torch_type(dtype), device="cpu"))

    @classmethod
    def zero(cls, builder: Builder, dtype: str | None = None) -> Op:
        return cls.scalar(builder, 0, dtype)

    @classmethod
    def one(cls, builder: Builder, dtype: str | None = None) -> Op:
        return cls.scalar(builder, 1, dtype)

    @classmethod
    def iota(cls, builder: Builder, shape: Shape, iota_dimension: int) -> Op:
        """An array whose elements count up from 0 along a dimension."""
        return mkleaf("Iota", builder, shape=shape.shape, iota_dimension=iota_dimension)

    @classmethod
    def sort(
        cls, ops: Sequence[Op], comparator: Any, dimension: int | None = None, is_stable: bool | None = None
    ) -> Op:
        """Arrays sorted together along a dimension, by default the last.

        Args:
            comparator: whether one element is before another, of two scalars of each array. The sort is stable.
        """
        scalars = [each.shape().as_scalar() for each in ops for _ in range(2)]
        made = Op.make_computation("Comparator", comparator, scalars)
        return mkop("Sort", [each.op for each in ops], comparator=made, dimension=dimension, is_stable=is_stable)

    @classmethod
    def map(
        cls,
        ops: Sequence[Op],
        computation: Any,
        dimensions: Sequence[int],
        static_operands: Sequence[Op] = (),
        builder: Builder | None = None,
    ) -> Op:
        """A computation of scalars, of each element of the arrays."""
        static = [each.op for each in static_operands]
        scalars = [each.shape().as_scalar() for each in ops] + [each.shape() for each in static_operands]
        made = Op.make_computation("Map", computation, scalars)
        return mkop(
            "Map",
            [each.op for each in ops],
            builder=builder,
            computation=made,
            dimensions=dimensions,
            static_operands=static or None,
        )

    @classmethod
    def to_torch_type(cls, dtype: str | None) -> torch.dtype:
        """The torch dtype of an element type's name; float32 without one."""
        return to_torch_type(dtype)

    @classmethod
    def from_torch_type(cls, dtype: torch.dtype) -> str:
        """The name of the element type of a torch dtype."""
        return from_torch_type(dtype)

    @classmethod
    def wrap_function(cls, fn: Callable[..., Any]) -> Callable[..., Op]:
        """`fn` of the elements where it is given one tuple, with a tuple where it gives several."""

        def wrapper(*args: Op, **kwargs: Any) -> Op:
            given: Sequence[Op] = args
            if len(args) == 1 and args[0].shape().is_tuple():
                given = [args[0].get_tuple_element(index) for index in range(args[0].shape().tuple_size())]
            result = fn(*given, **kwargs)
            return Op.tuple(result) if isinstance(result, list | tuple) else result

        return wrapper

    @classmethod
    def make_computation(cls, name: str, computation: Any, args_or_shapes: Sequence[Any], **kwargs: Any) -> Computation:
        """What a function builds for operands of these shapes; a computation is given back as it is.

        Args:
            computation: a function of operations, or a computation.
            args_or_shapes: operations or shapes.
            kwargs: of the function.
        """
        if isinstance(computation, Computation) or not callable(computation):
            return computation
        shapes = [each if isinstance(each, Shape) else each.shape() for each in args_or_shapes]
        return create_computation(name, Op.wrap_function(computation), shapes, **kwargs)

    def _of_scalars(self, name: str, computation: Any) -> Computation:
        scalar = self.shape().as_scalar()
        return Op.make_computation(name, computation, (scalar, scalar))


def create_builder(name: str) -> Builder:
    """A builder without operations."""
    return Builder(name)


def mkop(name: str, ops: Sequence[Expression], **kwargs: Any) -> Op:
    """An operation by XLA's name.

    Args:
        ops: the operands, as `Op.op`.
        kwargs: its attributes; `builder` where there are no operands.
    """
    builder = kwargs.get("builder")
    if builder is None:
        if not ops:
            raise ValueError(f"{name}: there is no operand to take the builder of; give one by `builder=`")
        builder = ops[0].builder
    return Op(expressions.create(builder, name, ops, kwargs))


def mkleaf(name: str, builder: Builder, **kwargs: Any) -> Op:
    """An operation without operands."""
    return Op(expressions.create(builder, name, (), kwargs))


def mkparam(builder: Builder, param_no: int, shape: Shape) -> Op:
    """The parameter of this number, from 0 on."""
    return Op(expressions.parameter(builder, param_no, to_aval(shape)))


def create_computation(name: str, fn: Callable[..., Op], shapes: Sequence[Shape], **kwargs: Any) -> Computation:
    """The computation that a function builds.

    Args:
        name: for people, and of its HLO module.
        fn: of one operation for each shape; returns the result, and several as `Op.tuple`.
        shapes: of the parameters.
        kwargs: of `fn`.
    """
    builder = create_builder(name)
    parameters = [mkparam(builder, number, shape) for number, shape in enumerate(shapes)]
    return fn(*parameters, **kwargs).build(name)
