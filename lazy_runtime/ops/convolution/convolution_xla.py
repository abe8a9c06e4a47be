"""Convolutions and their gradients in XLA. Images and results have their channels last.

XLA takes every convolution. One of 1×1 is a matrix product, and one of each channel by itself a sum of shifted images.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...lowering import precision
from ...lowering.layout import Transposed, logical
from ..indexing.reduction import opmath
from ..kernels import Kernel, Refused, Verdict
from ..linalg import matmul_kernels
from .convolution_problem import ConvolutionProblem, Geometry, is_gradient_of


def add_bias(y: Any, bias: Any) -> Any:
    """A result with its channels last, and the bias, if there is one."""
    return y if bias is None else y + bias


def lower(x: Any, weight: Any, problem: ConvolutionProblem) -> Any:
    """A convolution by the first of XLA's rows that accepts it."""
    kernel = next(row for row in ROWS if row.accepts(problem))
    assert kernel.lower is not None
    return kernel.lower(x, weight, None, (), problem)


def accepts(problem: ConvolutionProblem) -> Verdict:
    """Every convolution that is not transposed."""
    return not problem.geometry.transposed or Refused("it is transposed")


def _lower(x: Any, weight: Any, bias: Any, shape: Any, problem: ConvolutionProblem) -> Any:
    geometry = problem.geometry
    y = _general(x, logical(weight), geometry.stride, [(p, p) for p in geometry.padding], geometry)
    return add_bias(y, bias)


def _general(x, weight, stride, padding, geometry: Geometry, **options: Any):
    n = weight.ndim - 2
    data = (0, n + 1, *range(1, n + 1))
    return jax.lax.conv_general_dilated(
        x,
        jnp.transpose(weight, (*range(2, n + 2), 1, 0)),
        stride,
        padding,
        rhs_dilation=geometry.dilation,
        dimension_numbers=jax.lax.ConvDimensionNumbers(data, (n + 1, n, *range(n)), data),
        feature_group_count=geometry.groups,
        precision=precision.of(x.dtype),
        **options,
    )


# ---- of 1×1


def accepts_matmul(problem: ConvolutionProblem) -> Verdict:
    """Whether it is a matrix product over the channels, whose kernel the table of products chooses."""
    return problem.is_matmul or Refused("it is no matrix product over the channels")


def _matmul(x: Any, weight: Any, bias: Any, shape: Any, problem: ConvolutionProblem) -> Any:
    weight = logical(weight)
    pixels = _pixels(x, problem.geometry)
    y = matmul_kernels.linear_product(pixels, weight.reshape(weight.shape[:2]), problem.platform)
    return add_bias(y, bias)


def _matmul_gradients(grad: Any, x: Any, weight: Any, problem: ConvolutionProblem, wanted: tuple[bool, bool]) -> Any:
    """The gradients of the image and the filters, None where they are not wanted."""
    geometry, platform = problem.geometry, problem.platform
    pixels, scatter = jax.vjp(lambda x: _pixels(x, geometry), x)
    rows, filters = grad.reshape(-1, grad.shape[-1]), weight.reshape(weight.shape[:2])
    grad_x = grad_weight = None
    if wanted[0]:
        (grad_x,) = scatter(matmul_kernels.matmul(rows, filters, platform).reshape(pixels.shape))
    if wanted[1]:
        taken = pixels.reshape(-1, pixels.shape[-1])
        grad_weight = matmul_kernels.matmul(Transposed(rows), taken, platform).reshape(weight.shape)
    return grad_x, grad_weight


def _pixels(x, geometry: Geometry):
    """Those that a 1×1 convolution takes: padded, and every so many of them."""
    if any(geometry.padding):
        x = jnp.pad(x, [(0, 0), *((p, p) for p in geometry.padding), (0, 0)])
    if any(s != 1 for s in geometry.stride):
        x = x[(slice(None), *(slice(None, None, s) for s in geometry.stride))]
    return x


# ---- of each channel by itself


def accepts_depthwise(problem: ConvolutionProblem) -> Verdict:
    """Whether each channel is convolved by itself, with one filter."""
    return problem.is_depthwise or Refused("it does not convolve each channel by itself")


def accepts_depthwise_gradient(problem: ConvolutionProblem) -> Verdict:
    """Whether sums over shifted images are the faster gradient of the filters, which they are not on the CPU."""
    return (
        is_gradient_of(problem, "filters")
        and (problem.platform != "cpu" or Refused("XLA's own gradient is the faster one on the CPU"))
        and accepts_depthwise(problem)
    )


def _depthwise(x: Any, weight: Any, bias: Any, shape: Any, problem: ConvolutionProblem) -> Any:
    """One filter per channel: a sum of shifted, scaled images, which XLA fuses into one loop. Its own grouped
    convolution is up to fifty times slower on the CPU.
    """
    dtype = x.dtype
    weight = opmath(logical(weight))
    total = None
    for offset, shifted in _shifted(opmath(x), weight, problem.geometry):
        term = shifted * weight[(slice(None), 0, *offset)]
        total = term if total is None else total + term
    assert total is not None
    return add_bias(total.astype(dtype), bias)


def _depthwise_gradient(grad: Any, x: Any, weight: Any, problem: ConvolutionProblem, wanted: tuple[bool, bool]) -> Any:
    """The gradient of the filters, all of whose elements are sums that one pass over the images makes."""
    grad = opmath(grad)
    terms = tuple(shifted * grad for _, shifted in _shifted(opmath(x), weight, problem.geometry))
    zeros = (jnp.zeros((), grad.dtype),) * len(terms)
    sums = jax.lax.reduce(terms, zeros, lambda a, b: tuple(map(jnp.add, a, b)), tuple(range(grad.ndim - 1)))
    return None, jnp.stack(sums, 1).reshape(weight.shape)


def _shifted(x, weight, geometry: Geometry):
    """(position in a filter, the pixels that it meets) for each of its elements."""
    n = weight.ndim - 2
    stride, dilation = geometry.stride, geometry.dilation
    x = jnp.pad(x, [(0, 0), *((p, p) for p in geometry.padding), (0, 0)])
    extent = [x.shape[1 + d] - dilation[d] * (weight.shape[2 + d] - 1) for d in range(n)]
    for offset in np.ndindex(*weight.shape[2:]):
        window = tuple(slice(offset[d] * dilation[d], offset[d] * dilation[d] + extent[d], stride[d]) for d in range(n))
        yield offset, x[(slice(None), *window)]


# ---- transposed


def accepts_transposed(problem: ConvolutionProblem) -> Verdict:
    """Whether the convolution is transposed."""
    return problem.geometry.transposed or Refused("it is not transposed")


def _transposed(x: Any, weight: Any, bias: Any, shape: Any, problem: ConvolutionProblem) -> Any:
    """The transposed convolution is the ordinary one of the stride-dilated input with the flipped filter."""
    geometry, weight = problem.geometry, logical(weight)
    n, groups = weight.ndim - 2, geometry.groups
    kernel = jnp.flip(weight, tuple(range(2, n + 2)))
    # (in, out / groups, ...) → (out, in / groups, ...)
    kernel = kernel.reshape(groups, weight.shape[0] // groups, weight.shape[1], *weight.shape[2:])
    kernel = jnp.swapaxes(kernel, 1, 2).reshape(groups * weight.shape[1], weight.shape[0] // groups, *weight.shape[2:])
    pads = []
    for d in range(n):
        reach = geometry.dilation[d] * (weight.shape[2 + d] - 1)
        pads.append((reach - geometry.padding[d], reach - geometry.padding[d] + geometry.output_padding[d]))
    return add_bias(_general(x, kernel, (1,) * n, pads, geometry, lhs_dilation=geometry.stride), bias)


# ---- gradients by jax's transposes


def accepts_image_gradient(problem: ConvolutionProblem) -> Verdict:
    """Whether it is the gradient of the image."""
    return is_gradient_of(problem, "image")


def accepts_filters_gradient(problem: ConvolutionProblem) -> Verdict:
    """Whether it is the gradient of the filters."""
    return is_gradient_of(problem, "filters")


def _image_gradient(grad: Any, x: Any, weight: Any, problem: ConvolutionProblem, wanted: tuple[bool, bool]) -> Any:
    (grad_x,) = jax.vjp(lambda x: lower(x, weight, problem), x)[1](grad)
    return grad_x, None


def _filters_gradient(grad: Any, x: Any, weight: Any, problem: ConvolutionProblem, wanted: tuple[bool, bool]) -> Any:
    (grad_weight,) = jax.vjp(lambda weight: lower(x, weight, problem), weight)[1](grad)
    return None, grad_weight


ROWS = (
    Kernel("matrix product", accepts_matmul, _matmul),
    Kernel("XLA, sum of shifted images", accepts_depthwise, _depthwise),
    Kernel("XLA, transposed", accepts_transposed, _transposed),
    Kernel("XLA", accepts, _lower),
)

GRADIENT_ROWS = (
    Kernel("matrix product", accepts_matmul, _matmul_gradients),
    Kernel("XLA, image", accepts_image_gradient, _image_gradient),
    Kernel("XLA, sums of shifted images", accepts_depthwise_gradient, _depthwise_gradient),
    Kernel("XLA, filters", accepts_filters_gradient, _filters_gradient),
)
