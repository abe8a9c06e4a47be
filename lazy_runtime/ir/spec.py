"""`TensorSpec`: what a tensor looks like from outside (device, dtype, sizes, strides), without its data.

Specs are interned: two equal ones are the same object, so that a spec costs one identity hash as part of a cache key.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import TYPE_CHECKING

import jax
import torch

from . import dtypes

if TYPE_CHECKING:
    import jax

    from ..platform.xla_devices import Device


class TensorSpec:
    """Device, dtype, sizes, strides (in elements) and storage offset of a tensor.

    The strides are what the user sees; a device buffer is always dense and row-major over `shape`.
    """

    __slots__ = ("__weakref__", "device", "dtype", "offset", "shape", "stride", "torch_device")

    device: Device
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    torch_device: torch.device

    @staticmethod
    def of(
        device: Device,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        stride: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> TensorSpec:
        """The one spec with these properties; `stride=None` means contiguous."""
        if stride is None:
            stride = contiguous_strides(shape)
        key = (device, dtype, shape, stride, offset)
        spec = _interned.get(key)
        if spec is not None:
            return spec
        with _lock:
            spec = _interned.get(key)
            if spec is None:
                spec = TensorSpec()
                spec.device, spec.dtype, spec.shape, spec.stride, spec.offset = key
                spec.torch_device = device.torch_device
                _interned[key] = spec
        return spec

    @staticmethod
    def like(device: Device, tensor: torch.Tensor) -> TensorSpec:
        """The spec of `tensor` (usually a meta tensor), placed on `device`."""
        offset = int(tensor.storage_offset())
        return TensorSpec.of(device, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), offset)

    def struct(self) -> jax.ShapeDtypeStruct:
        """Its array's shape and dtype, for jax; while a program is lowered, the dtype that it stores.

        Raises:
            TypeError: XLA has no such dtype.
        """
        return jax.ShapeDtypeStruct(self.shape, dtypes.to_numpy(self.dtype))

    def meta(self) -> torch.Tensor:
        """A tensor on torch's meta device with these sizes and strides."""
        if self.offset == 0:
            return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        storage = torch.empty(self.offset + storage_size(self.shape, self.stride), dtype=self.dtype, device="meta")
        return storage.as_strided(self.shape, self.stride, self.offset)

    def expanded(self) -> torch.Tensor:
        """A CPU tensor to provoke the errors of a CPU kernel with: a small one with these strides, else one element,
        expanded to these sizes.
        """
        held = self.offset + storage_size(self.shape, self.stride)
        if held <= _SMALL:
            return torch.zeros(held, dtype=self.dtype, device="cpu").as_strided(self.shape, self.stride, self.offset)
        return torch.zeros((), dtype=self.dtype, device="cpu").expand(self.shape)

    def aval(self, channels_last: bool = False) -> jax.ShapeDtypeStruct:
        """Shape and dtype of the buffer as jax wants them for ahead-of-time compilation, placed on the spec's device.

        Args:
            channels_last: the buffer holds dimension 1 last.
        """
        import jax

        shape = (self.shape[0], *self.shape[2:], self.shape[1]) if channels_last else self.shape
        dtype = dtypes.stored(self.dtype) if self.device.narrows else dtypes.to_numpy(self.dtype)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.device.sharding)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return 0 in self.shape or all(
            size == 1 or stride == dense
            for size, stride, dense in zip(self.shape, self.stride, contiguous_strides(self.shape), strict=True)
        )

    def __repr__(self) -> str:
        text = f"{str(self.dtype).removeprefix('torch.')}[{','.join(map(str, self.shape))}]"
        if not self.is_contiguous:
            text += f" strides ({','.join(map(str, self.stride))})"
        return f"{text} on {self.torch_device}"


_SMALL = 4096  # elements
_interned: weakref.WeakValueDictionary[tuple, TensorSpec] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # a finalizer may come here from anywhere


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, as torch computes them (sizes of 0 count as 1)."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def storage_size(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last one that the strided tensor touches, inclusive."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
