"""Values inside of a lowering whose memory is in another order than torch's dimensions.

Torch's images are (batch, channels, height, width); on the CPU convolutions, pooling and normalisation run on (batch,
height, width, channels). Left to XLA, a transpose stands around each of them, so the lowerings keep the physical order
themselves: an operator that knows about it takes and gives `ChannelsLast`, an elementwise one follows its operands, and
for every other operator the registry turns it back into torch's order first.

A transposed matrix (`Transposed`) is for kernels of torch's, which take it as it lies; all else sees it turned. One of
quantised weights that is converted before it is multiplied (`Widened`) is for the kernel that converts in registers. So
are the heads of torch's attention (`HeadsLast`), which never leave its lowering. A packed weight (`Packed`) means
something to oneDNN's kernels only.

Small weights share a buffer, and each is a `Part` of it: a kernel of torch's begins to read there. For all else XLA
cuts it out, which is a copy.

A permutation is not carried out (`Permuted`) until somebody needs torch's order: what a vision transformer permutes and
takes apart for its attention lies as that wants it before, and XLA would move all of it once for each part. What is
taken of it is known too (`Taken`): torch's kernels read it where it lies (`Strided`), and nothing is moved at all. Nor
are heads repeated (`Repeated`) that queries share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from ..ir.spec import contiguous_strides


class Reordered:
    """An array whose memory, `physical`, has its dimensions in another order; shape is the logical one."""

    __slots__ = ("physical",)

    def __init__(self, physical: Any):
        self.physical = physical

    def like(self, physical: Any) -> Any:
        """Another array in this order."""
        return type(self)(physical)

    @property
    def dtype(self) -> Any:
        return self.physical.dtype

    @property
    def ndim(self) -> int:
        return self.physical.ndim

    @property
    def size(self) -> int:
        return self.physical.size


class ChannelsLast(Reordered):
    """An array whose dimension 1 lies last in `physical`."""

    __slots__ = ()

    @classmethod
    def described(cls, shape: Sequence[int], dtype: Any) -> ChannelsLast:
        """What an array of this shape, in torch's order, looks like."""
        batch, channels, *space = shape
        return cls(jax.ShapeDtypeStruct((batch, *space, channels), dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        batch, *space, channels = self.physical.shape
        return (batch, channels, *space)


class Transposed(Reordered):
    """An array whose last two dimensions have changed places in `physical`."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, columns, rows = self.physical.shape
        return (*batch, rows, columns)


class Widened(Reordered):
    """A matrix of integers that has been transposed and converted to a floating-point dtype, before either was done.

    Attributes:
        dtype: of the numbers that it stands for.
    """

    __slots__ = ("_dtype",)

    def __init__(self, physical: Any, dtype: Any):
        super().__init__(physical)
        self._dtype = dtype

    def like(self, physical: Any) -> Widened:
        return Widened(physical, self._dtype)

    @property
    def dtype(self) -> Any:
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return Transposed(self.physical).shape

    @property
    def converted(self) -> Transposed:
        """The same with its numbers converted."""
        return Transposed(self.physical.astype(self._dtype))


class HeadsLast(Reordered):
    """An array of (batch, heads, rows, ...) whose rows come before its heads in `physical`."""

    __slots__ = ()

    @classmethod
    def of(cls, x: Any) -> HeadsLast:
        """The same from an array in torch's order, or from a permuted one."""
        return cls(logical(permute(x, (0, 2, 1, *range(3, x.ndim)))))

    @property
    def shape(self) -> tuple[int, ...]:
        batch, rows, heads, *rest = self.physical.shape
        return (batch, heads, rows, *rest)

    @property
    def permuted(self) -> Permuted:
        """The same as a value that may leave the lowering."""
        return Permuted(self.physical, (0, 2, 1, *range(3, self.ndim)))


class Permuted(Reordered):
    """An array that has been permuted, before anything was moved.

    Attributes:
        dims: where each of its dimensions lies in `physical`; not the identity.
        taken: where `physical` was taken from, if that is known.
    """

    __slots__ = ("dims", "taken")

    def __init__(self, physical: Any, dims: tuple[int, ...], taken: Taken | None = None):
        super().__init__(physical)
        self.dims = dims
        self.taken = taken

    def like(self, physical: Any) -> Permuted:
        return Permuted(physical, self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.physical.shape[dim] for dim in self.dims)

    @property
    def strided(self) -> Strided | None:
        """The same where it lies in what it was taken from; None if that is not known."""
        if self.taken is None:
            return None
        whole, gone, place = self.taken
        strides = list(contiguous_strides(whole.shape))
        start = place * strides.pop(gone)
        return Strided(whole, start, self.shape, tuple(strides[dim] for dim in self.dims))


class Repeated(Reordered):
    """Keys or values whose heads have been repeated for the queries that share them, before anything was copied.

    Attributes:
        physical: (batch, heads, rows, features), each head once.
        times: how often each head stands there, one after another.
        is_split: the shape is (batch, heads, times, rows, features), not (batch, heads * times, rows, features).
    """

    __slots__ = ("is_split", "times")

    def __init__(self, physical: Any, times: int, is_split: bool = False):
        super().__init__(physical)
        self.times = times
        self.is_split = is_split

    def like(self, physical: Any) -> Repeated:
        return Repeated(physical, self.times, self.is_split)

    @classmethod
    def of(cls, x: Any, shape: Sequence[int]) -> Repeated | None:
        """An array that is expanded to a shape; None if that is another repetition."""
        before, after = tuple(x.shape), tuple(shape)
        if len(before) != 5 or before[2] != 1 or after[:2] + after[3:] != before[:2] + before[3:]:
            return None
        return cls(x.reshape(*before[:2], *before[3:]), after[2], is_split=True)

    @property
    def shape(self) -> tuple[int, ...]:
        batch, heads, *rest = self.physical.shape
        return (batch, heads, self.times, *rest) if self.is_split else (batch, heads * self.times, *rest)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def viewed(self, shape: Sequence[int]) -> Any:
        """The same in another shape; an array in torch's order where that is neither of its two."""
        for is_split in (True, False):
            found = Repeated(self.physical, self.times, is_split)
            if found.shape == tuple(shape):
                return found
        return logical(self).reshape(shape)


class Taken(NamedTuple):
    """What is at one index of one dimension of an array."""

    whole: Any
    dim: int
    place: int


class Strided(NamedTuple):
    """An array that lies somewhere in another one, for torch's kernels alone.

    Attributes:
        physical: the other one.
        start: where its first element lies there.
        shape: in torch's order.
        strides: in elements.
    """

    physical: Any
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        return self.physical.dtype

    @property
    def text(self) -> str:
        """As native/buffers.h reads it."""
        place = _memory_text(str(self.dtype), self.shape, self.start * self.dtype.itemsize)
        return f"{place};{','.join(map(str, self.strides))}"


def permute(x: Any, dims: Sequence[int]) -> Any:
    """`x`, an array, `ChannelsLast` or `Permuted`, with its dimensions in another order; an array where they lie so."""
    if isinstance(x, ChannelsLast):
        inner = tuple(axis(dim, x.ndim) for dim in range(x.ndim))
    else:
        inner = x.dims if isinstance(x, Permuted) else tuple(range(x.ndim))
    order = tuple(inner[dim] for dim in dims)
    array = x.physical if isinstance(x, Reordered) else x
    taken = x.taken if isinstance(x, Permuted) else None
    return array if order == tuple(range(x.ndim)) else Permuted(array, order, taken)


class Part:
    """An array that lies somewhere in a flat one.

    Attributes:
        physical: the flat array.
        start: the number of the first of its elements.
        shape: of the part, in torch's order.
    """

    __slots__ = ("physical", "shape", "start")

    def __init__(self, physical: Any, start: int, shape: Sequence[int]):
        self.physical = physical
        self.start = start
        self.shape = tuple(shape)

    @property
    def dtype(self) -> Any:
        return self.physical.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def text(self) -> str:
        """As native/buffers.h reads it."""
        return _memory_text(str(self.dtype), self.shape, self.start * self.dtype.itemsize)


def _memory_text(dtype: str, shape: Sequence[int], offset: int) -> str:
    return f"{dtype};{','.join(map(str, shape))};{offset}"


class Opaque(NamedTuple):
    """A weight in torch's order, for oneDNN's kernels alone: torch's own operators, given images with their channels
    last, copy it into that order for no use, since oneDNN brings it into another.

    Attributes:
        physical: the weight.
    """

    physical: Any


class Packed(NamedTuple):
    """A weight in an order of oneDNN's own, for its kernels alone.

    Attributes:
        physical: the bytes, which say themselves how they lie.
        dtype, shape: of the weight.
        offset: where it begins, in bytes.
    """

    physical: Any
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, packed: Any, dtype: torch.dtype, shape: Sequence[int]) -> Packed:
        """A weight from its bytes, an array or a `Part`."""
        if isinstance(packed, Part):
            return cls(packed.physical, dtype, tuple(shape), packed.start)
        return cls(packed, dtype, tuple(shape))

    @property
    def text(self) -> str:
        """As native/buffers.h reads it."""
        return _memory_text(str(self.dtype).removeprefix("torch."), self.shape, self.offset)


def logical(x: Any, keep: type | tuple[type, ...] = ()) -> Any:
    """`x` in torch's order; lists are converted item by item, and what is no array is left alone.

    Args:
        keep: what is left as it is too: `ChannelsLast`, `Transposed`, `Widened`, `Permuted`, `Repeated` or `Part`.
    """
    if isinstance(x, keep):
        return x
    if isinstance(x, ChannelsLast):
        return jnp.moveaxis(x.physical, -1, 1)
    if isinstance(x, Widened):
        return x.converted.physical.mT
    if isinstance(x, Transposed):
        return x.physical.mT
    if isinstance(x, Permuted):
        return jnp.transpose(x.physical, x.dims)
    if isinstance(x, Repeated):
        batch, heads, *rest = x.physical.shape
        return jnp.broadcast_to(x.physical[:, :, None], (batch, heads, x.times, *rest)).reshape(x.shape)
    if isinstance(x, Part):
        return jax.lax.slice(x.physical, (x.start,), (x.start + x.size,)).reshape(x.shape)
    if isinstance(x, list):
        return [logical(item, keep) for item in x]
    return x


def physical(x: Any) -> jax.Array:
    """The array behind `x` with its channels last."""
    return x.physical if isinstance(x, ChannelsLast) else jnp.moveaxis(logical(x), 1, -1)


def axis(dim: int, ndim: int) -> int:
    """Where logical dimension `dim` lies in the physical array."""
    dim %= ndim
    return ndim - 1 if dim == 1 else max(dim - 1, 0)


def elementwise(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls an elementwise function on the physical arrays if one of its operands is channels last."""
    args = tuple(logical(x, ChannelsLast) for x in args)
    kwargs = {name: logical(x, ChannelsLast) for name, x in kwargs.items()}
    operands = [*args, *kwargs.values()]
    first = next((x for x in operands if isinstance(x, ChannelsLast)), None)
    if first is None:
        return function(*args, **kwargs)
    rank = first.ndim

    def align(x: Any) -> Any:
        if isinstance(x, ChannelsLast):
            return x.physical
        if isinstance(x, jax.Array) and x.ndim:
            return jnp.moveaxis(x.reshape((1,) * (rank - x.ndim) + x.shape), 1, -1)
        return x

    if any(x.ndim != rank if isinstance(x, ChannelsLast) else x.ndim > rank for x in operands if hasattr(x, "ndim")):
        return function(*map(logical, args), **{name: logical(x) for name, x in kwargs.items()})
    return ChannelsLast(function(*map(align, args), **{name: align(x) for name, x in kwargs.items()}))
