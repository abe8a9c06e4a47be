"""Discrete Fourier transforms, on `jax.numpy.fft`. Torch's own code above them pads, casts and takes real parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch

from ...compat.tracing import exec_fft, sort_dims
from ..registry import op

# Torch's meta kernels give the strides of cuFFT where they do not know the device; these below are those of the CPU
# kernels: with MKL the output is as its plan leaves it, else (pocketfft) contiguous.


def _laid_out(x: torch.Tensor, sizes: Sequence[int], dims: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    made = x.new_empty(sizes, dtype=dtype)
    return exec_fft(made, x, sizes, dims, forward=True) if torch.backends.mkl.is_available() else made


def _c2c_meta(x: torch.Tensor, dim: list[int], normalization: int, forward: bool) -> torch.Tensor:
    return _laid_out(x, x.shape, sort_dims(x, dim), x.dtype) if dim else x.clone()


def _r2c_meta(x: torch.Tensor, dim: list[int], normalization: int, onesided: bool) -> torch.Tensor:
    sizes = list(x.shape)
    if onesided:
        sizes[dim[-1]] = sizes[dim[-1]] // 2 + 1
    return _laid_out(x, sizes, sort_dims(x, dim, exclude_last=True), x.dtype.to_complex())


def _c2r_meta(x: torch.Tensor, dim: list[int], normalization: int, last_dim_size: int) -> torch.Tensor:
    between = _c2c_meta(x, dim[:-1], normalization, False) if len(dim) > 1 else x
    sizes = list(x.shape)
    sizes[dim[-1]] = last_dim_size
    return _laid_out(between, sizes, dim[-1:], x.dtype.to_real())


@op("aten::_fft_c2c", infer=_c2c_meta)
def fft_c2c(x: Any, dim: list[int], normalization: int, forward: bool) -> Any:
    return _scaled(_complex_transform(x, dim, forward), normalization, [x.shape[d] for d in dim])


@op("aten::_fft_r2c", infer=_r2c_meta)
def fft_r2c(x: Any, dim: list[int], normalization: int, onesided: bool) -> Any:
    sizes = [x.shape[d] for d in dim]
    if not onesided:
        return _scaled(_complex_transform(jnp.asarray(x, _complex_of(x)), dim, True), normalization, sizes)
    if x.size == 0:
        half = [size // 2 + 1 if place == dim[-1] % x.ndim else size for place, size in enumerate(x.shape)]
        return jnp.zeros(half, _complex_of(x))
    return _scaled(_complex_transform(jnp.fft.rfft(x, axis=dim[-1]), dim[:-1], True), normalization, sizes)


@op("aten::_fft_c2r", infer=_c2r_meta)
def fft_c2r(x: Any, dim: list[int], normalization: int, last_dim_size: int) -> Any:
    sizes = [*(x.shape[d] for d in dim[:-1]), last_dim_size]
    if x.size == 0:
        shape = [last_dim_size if place == dim[-1] % x.ndim else size for place, size in enumerate(x.shape)]
        return jnp.zeros(shape, x.real.dtype)
    # one dimension at a time as on the CPU: what is no Hermitian input gives what torch gives
    x = _complex_transform(x, dim[:-1], False)
    return _scaled(jnp.fft.irfft(x, last_dim_size, axis=dim[-1], norm="forward"), normalization, sizes)


def _complex_of(x: Any) -> Any:
    return jnp.result_type(x, jnp.complex64)


def _complex_transform(x: Any, dim: Sequence[int], forward: bool) -> Any:
    """Not scaled in either direction."""
    if not dim or x.size == 0:
        return x
    return jnp.fft.fftn(x, axes=dim) if forward else jnp.fft.ifftn(x, axes=dim, norm="forward")


def _scaled(x: Any, normalization: int, sizes: Sequence[int]) -> Any:
    """Applies ATen's `fft_norm_mode`: 0 none, 1 by the root of the number of points, 2 by that number."""
    points = math.prod(sizes)
    if normalization == 0 or points == 0:
        return x
    return x * (1 / math.sqrt(points) if normalization == 1 else 1 / points)
