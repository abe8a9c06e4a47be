"""Element types and shapes, by the names of PyTorch/XLA's builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Type:
    """XLA's element types by name."""

    F32 = "f32"
    F64 = "f64"
    BF16 = "bf16"
    F16 = "f16"
    U8 = "u8"
    S8 = "s8"
    U16 = "u16"
    S16 = "s16"
    U32 = "u32"
    S32 = "s32"
    U64 = "u64"
    S64 = "s64"
    C64 = "c64"
    C128 = "c128"
    PRED = "pred"


_XLA_PT_TYPE_MAP = {
    Type.F32: torch.float32,
    Type.F64: torch.float64,
    Type.BF16: torch.bfloat16,
    Type.F16: torch.float16,
    Type.U8: torch.uint8,
    Type.S8: torch.int8,
    Type.U16: torch.uint16,
    Type.S16: torch.int16,
    Type.U32: torch.uint32,
    Type.S32: torch.int32,
    Type.U64: torch.uint64,
    Type.S64: torch.int64,
    Type.C64: torch.complex64,
    Type.C128: torch.complex128,
    Type.PRED: torch.bool,
}

_PT_XLA_TYPE_MAP = {dtype: name for name, dtype in _XLA_PT_TYPE_MAP.items()}


def to_torch_type(name: str | None) -> torch.dtype:
    """The torch dtype of an element type's name; float32 without one.

    Raises:
        TypeError: there is no such type.
    """
    if not name:
        return torch.float32
    try:
        return _XLA_PT_TYPE_MAP[name]
    except KeyError:
        raise TypeError(f"{name!r} is no element type: there are {', '.join(_XLA_PT_TYPE_MAP)}") from None


def from_torch_type(dtype: torch.dtype) -> str:
    """The name of the element type of a torch dtype.

    Raises:
        TypeError: it has none.
    """
    try:
        return _PT_XLA_TYPE_MAP[dtype]
    except KeyError:
        raise TypeError(f"{dtype} has no element type in the builder: cast the tensor to another dtype first") from None


class Shape:
    """Element type and sizes of an array, or the shapes of a tuple's elements.

    Args:
        shape: a dictionary with `type` and `sizes`, or a tuple of shapes.
    """

    def __init__(self, shape: Any):
        self._shape = shape

    @classmethod
    def create(cls, dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[bool] | None = None) -> Shape:
        """The shape of an array.

        Args:
            dtype: one of `Type`.
            sizes: of its dimensions.
            dynamic_dimensions: for each dimension, whether its size is only a bound.

        Raises:
            NotImplementedError: a dimension is dynamic.
        """
        if dynamic_dimensions is not None and any(dynamic_dimensions):
            raise NotImplementedError(
                "dynamic_dimensions: StableHLO as jax makes it has no bounded sizes; build a computation for each "
                "size, or pad to the bound"
            )
        return cls({"type": str(dtype), "sizes": tuple(int(size) for size in sizes)})

    @property
    def shape(self) -> Any:
        """What the shape was made from."""
        return self._shape

    def is_tuple(self) -> bool:
        return isinstance(self._shape, list | tuple)

    def tuple_size(self) -> int:
        """How many elements a tuple has."""
        return len(self._elements())

    def tuple_shape(self, index: int) -> Any:
        """The shape of one element of a tuple, as the dictionary or tuple that `Shape` takes."""
        return self._elements()[index]

    def is_dynamic(self) -> bool:
        """Whether a size is only a bound: never."""
        self._array()
        return False

    def as_scalar(self) -> Shape:
        """The shape of one element."""
        return Shape.create(self.dtype, ())

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self._array()["sizes"]

    @property
    def dynamic_dimensions(self) -> None:
        """Which sizes are bounds: None, for none."""
        self._array()

    @property
    def dtype(self) -> str:
        """The name of the element type."""
        return self._array()["type"]

    def _array(self) -> Any:
        if self.is_tuple():
            raise TypeError("a tuple has no element type and sizes: take the shape of one of its elements")
        return self._shape

    def _elements(self) -> Sequence[Any]:
        if not self.is_tuple():
            raise TypeError(f"{self._shape} is the shape of an array, and has no elements")
        return self._shape

    def __repr__(self) -> str:
        return f"Shape({self._shape})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self._shape == other._shape

    def __hash__(self) -> int:
        return hash(repr(self._shape))


def mkshape(dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[bool] | None = None) -> Shape:
    """See `Shape.create`."""
    return Shape.create(dtype, sizes, dynamic_dimensions)


def tensor_shape(tensor: Any, device: str = "") -> Any:
    """The shape of a tensor; of a list or tuple of tensors, a list of theirs.

    Args:
        device: accepted for PyTorch/XLA's sake.
    """
    if isinstance(tensor, list | tuple):
        return [tensor_shape(each) for each in tensor]
    return Shape.create(from_torch_type(tensor.dtype), tuple(tensor.shape))


def of_aval(aval: Any) -> Any:
    """What `Shape` takes, of jax's shapes and dtypes."""
    from ....ir import dtypes

    if isinstance(aval, list | tuple):
        return tuple(of_aval(each) for each in aval)
    return {"type": from_torch_type(dtypes.to_torch(aval.dtype)), "sizes": tuple(aval.shape)}


def to_aval(shape: Any) -> Any:
    """The shapes and dtypes for jax, of a `Shape` or what one is made from."""
    import jax

    from ....ir import dtypes

    shape = shape.shape if isinstance(shape, Shape) else shape
    if isinstance(shape, list | tuple):
        return tuple(to_aval(each) for each in shape)
    return jax.ShapeDtypeStruct(tuple(shape["sizes"]), dtypes.to_numpy(to_torch_type(shape["type"])))
