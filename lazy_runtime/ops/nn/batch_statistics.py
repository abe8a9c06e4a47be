"""What batch normalization adds up over all but the channels, on the CPU in a kernel of ours (native/batch_norm.cpp).

It reads an image once where XLA reads it three times and writes it once, and it is more precise: sums of blocks are put
together in float64.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...lowering import aten_bridge

#: Numbers of an image from which on a call out of XLA's program pays.
LEAST = 1 << 14


def pays(x: Any, platform: str) -> bool:
    """Whether the kernel takes this image, an array with its channels last, and is worth the call."""
    return platform == "cpu" and x.dtype == jnp.float32 and x.size >= LEAST and _is_built() and aten_bridge.available()


@functools.cache
def _is_built() -> bool:
    return aten_bridge.kernel_works("batch_statistics", lambda kernel: bool(kernel(torch.ones(2, 3))[0].sum() == 3))


def moments(x: Any) -> tuple[Any, Any]:
    """Mean and variance (of all the numbers, not of a sample) of each channel."""
    return _call("batch_statistics", [_rows(x)], x)


def gradients(grad: Any, x: Any, mean: Any) -> tuple[Any, Any]:
    """For each channel the sum of the gradients, and that of their products with what differs from the mean."""
    return _call("batch_gradients", [_rows(grad), _rows(x), mean], x)


def _rows(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


def _call(name: str, operands: list[Any], x: Any) -> tuple[Any, Any]:
    like = jax.ShapeDtypeStruct(x.shape[-1:], x.dtype)
    first, second = aten_bridge.call(f"lazy_runtime_kernels::{name}", operands, [like, like])
    return first, second
