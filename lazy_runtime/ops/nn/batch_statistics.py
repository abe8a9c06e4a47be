"""What batch normalization adds up over all but the channels, on the CPU in a kernel of ours (native/batch_norm.cpp).

It reads an image once where XLA reads it three times and writes it once, and it is more precise: sums of blocks are put
together in float64.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from ...lowering import aten_bridge
from .. import kernels
from ..indexing.reduction import opmath
from ..kernels import Kernel, Refused, Table, Verdict

#: Numbers of an image from which on a call out of XLA's program pays.
LEAST = 1 << 14


class BatchNormProblem(NamedTuple):
    """The sums of a batch norm.

    Attributes:
        image: sizes, the channels last.
        dtype: name of the image's dtype.
        platform: where they are computed.
    """

    image: tuple[int, ...]
    dtype: str
    platform: str

    def __str__(self) -> str:
        return f"image {kernels.sizes(self.image)} (channels last) of {self.dtype} on {self.platform}"

    @classmethod
    def of(cls, x: Any, platform: str) -> BatchNormProblem:
        """The problem of an array with its channels last."""
        return cls(tuple(x.shape), str(x.dtype), platform)


def accepts(problem: BatchNormProblem) -> Verdict:
    """Whether the kernel takes this image, and is worth the call."""
    size = math.prod(problem.image)
    return (
        (problem.dtype == "float32" or Refused(f"it is for float32, not {problem.dtype}"))
        and (size >= LEAST or Refused(f"{size:,} numbers of an image are fewer than {LEAST:,}"))
        and available(problem.platform)
    )


def available(platform: str) -> Verdict:
    """Whether the kernel is there."""
    return kernels.on_cpu(platform) and kernels.works(_is_built, "batch_norm")


@functools.cache
def _is_built() -> bool:
    return aten_bridge.kernel_works("batch_statistics", lambda kernel: bool(kernel(torch.ones(2, 3))[0].sum() == 3))


def moments(x: Any, platform: str) -> tuple[Any, Any]:
    """Mean and variance (of all the numbers, not of a sample) of each channel, in the dtype that sums are added up in.

    Args:
        x: an array with its channels last.
    """
    kernel = MOMENTS.choose(BatchNormProblem.of(x, platform))
    assert kernel.lower is not None
    return kernel.lower(x)


def gradients(image: Any, grad: Any, x: Any, mean: Any, invstd: Any, normalized: Any, platform: str) -> tuple[Any, Any]:
    """The gradients of the weight and of the bias.

    Args:
        image: an array with its channels last.
        grad, x: the result's gradient and the image, in the dtype that sums are added up in.
        mean, invstd: of each channel.
        normalized: `x` by these.
    """
    kernel = GRADIENTS.choose(BatchNormProblem.of(image, platform))
    assert kernel.lower is not None
    return kernel.lower(grad, x, mean, invstd, normalized)


# ---- in the kernel


def _moments(x: Any) -> tuple[Any, Any]:
    return _call("batch_statistics", [_rows(x)], x)


def _gradients(grad: Any, x: Any, mean: Any, invstd: Any, normalized: Any) -> tuple[Any, Any]:
    # the second are the sums of the gradients' products with what differs from the mean
    grad_bias, away = _call("batch_gradients", [_rows(grad), _rows(x), mean], x)
    return away * invstd, grad_bias


def _rows(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


def _call(name: str, operands: list[Any], x: Any) -> tuple[Any, Any]:
    like = jax.ShapeDtypeStruct(x.shape[-1:], x.dtype)
    first, second = aten_bridge.call(f"lazy_runtime_kernels::{name}", operands, [like, like])
    return first, second


# ---- in XLA


def over_channels(x: Any) -> tuple[int, ...]:
    """The dimensions of an array but its channels, which are last."""
    return tuple(range(x.ndim - 1))


def _moments_in_xla(x: Any) -> tuple[Any, Any]:
    x = opmath(x)
    mean = jnp.mean(x, over_channels(x))
    return mean, jnp.mean(jnp.square(x - mean), over_channels(x))


def _gradients_in_xla(grad: Any, x: Any, mean: Any, invstd: Any, normalized: Any) -> tuple[Any, Any]:
    grad_bias = jnp.sum(grad, over_channels(x))
    return jnp.sum(grad * normalized, over_channels(x)), grad_bias


def _accepts_all(problem: BatchNormProblem) -> Verdict:
    return True


# ---- the tables


def _thresholds() -> dict[str, Any]:
    return {"least numbers of an image": LEAST}


MOMENTS = Table(
    "batch norm",
    [Kernel("native", accepts, _moments, available, _thresholds), Kernel("XLA", _accepts_all, _moments_in_xla)],
)
GRADIENTS = Table(
    "batch norm gradient",
    [Kernel("native", accepts, _gradients, available, _thresholds), Kernel("XLA", _accepts_all, _gradients_in_xla)],
)
