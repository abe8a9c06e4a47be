"""Convolutions and their gradients in torch's oneDNN kernels on the CPU, with filters that are not packed."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...common import config
from ...lowering import aten_bridge
from ...lowering.layout import ChannelsLast, Opaque, physical
from .. import kernels
from ..kernels import Kernel, Packing, Refused, Verdict
from ..linalg import packed
from ..registry import op
from .convolution_problem import ConvolutionProblem, is_kept
from .convolution_xla import add_bias

#: Pixels from which on a 1×1 convolution of float32 is oneDNN's on AMD's processors. Of fewer, the matrix product is
#: the faster one there too, whoever computes it.
LEAST_PIXELS = 512

#: Elements of filters from which on it is seen that `aten::convolution` copies them: up to half of the time of a layer
#: with few pixels and many channels.
LEAST_COPIED = 1 << 18

#: Bytes of kept filters up to which they are left as they are: to turn them costs less than an argument.
MOST_UNTURNED = 64 << 10


def accepts(problem: ConvolutionProblem) -> Verdict:
    """Whether torch's kernel computes the convolution, or its gradient, faster than XLA."""
    return (
        kernels.on_cpu(problem.platform)
        and (not problem.is_empty or Refused("images or filters are empty"))
        and _takes_dtype(problem)
    )


def _takes_dtype(problem: ConvolutionProblem) -> Verdict:
    dtype = problem.dtype
    if dtype == "float64":  # torch unrolls the image, XLA does better unless the convolution is grouped
        return problem.geometry.groups > 1 or Refused("oneDNN has no float64")
    if not problem.is_matmul:
        return dtype in ("float32", "bfloat16", "float16") or Refused(f"oneDNN has no {dtype}")
    if dtype == "float32":
        pixels = _pixels_taken(problem)
        return (
            config.matmul_library() == "onednn" or Refused("a 1x1 convolution is a matrix product, but on AMD's")
        ) and (pixels >= LEAST_PIXELS or Refused(f"{pixels} pixels of a 1x1 convolution are fewer than {LEAST_PIXELS}"))
    # of bfloat16 torch's products are the faster ones
    return dtype == "bfloat16" or Refused(f"a 1x1 convolution of {dtype} is a matrix product")


def _pixels_taken(problem: ConvolutionProblem) -> int:
    """How many pixels a 1×1 convolution gives."""
    stride, padding, *_ = problem.geometry
    along = zip(problem.image[2:], padding, stride, strict=True)
    return problem.image[0] * math.prod((size + 2 * padded - 1) // every + 1 for size, padded, every in along)


def _convolve(x: Any, weight: Any, bias: Any, shape: tuple[int, ...], problem: ConvolutionProblem) -> Any:
    like = ChannelsLast.described(shape, x.dtype)
    (made,) = aten_bridge.call("aten::convolution", [ChannelsLast(x), weight, None, *problem.geometry], [like])
    return add_bias(made.physical, bias)


def _gradients(grad: Any, x: Any, weight: Any, problem: ConvolutionProblem, wanted: tuple[bool, bool]) -> Any:
    """The gradients of the image and of the filters, None where they are not wanted."""
    mask = [*wanted, False]
    images, results = [ChannelsLast(grad), ChannelsLast(x)], [ChannelsLast(x), weight, None]
    grad_x, grad_weight, _ = aten_bridge.call(
        "aten::convolution_backward",
        [*images, weight, None, *problem.geometry, mask],
        [like if is_wanted else None for like, is_wanted in zip(results, mask, strict=True)],
    )
    return None if grad_x is None else grad_x.physical, grad_weight


def _thresholds() -> dict[str, Any]:
    return {"least pixels of a 1x1 convolution of float32": LEAST_PIXELS}


KERNEL = Kernel("ATen", accepts, _convolve, kernels.on_cpu, _thresholds)
GRADIENT = Kernel("ATen", accepts, _gradients, kernels.on_cpu, _thresholds)


# ---- filters that are read as they lie


def accepts_uncopied(problem: ConvolutionProblem) -> Verdict:
    """Whether torch's convolution of channels-last images would bring the filters into that order first, in vain."""
    return accepts(problem) and _is_copied(problem) and packed.accepts(problem.platform, problem.result_dtype)


def _is_copied(problem: ConvolutionProblem) -> Verdict:
    filters, geometry = problem.filters, problem.geometry
    return (
        (not problem.has_channels_last_filters or Refused("the filters lie channels last already"))
        and (len(filters) == 4 or Refused("the images have no two dimensions"))
        and (max(filters[2:]) > 1 or Refused("filters of 1x1 have one order alone"))
        and (math.prod(filters) >= LEAST_COPIED or Refused(f"the filters have fewer than {LEAST_COPIED:,} numbers"))
        and ((geometry.groups == 1 and not geometry.transposed) or Refused("it is grouped or transposed"))
    )


def _convolve_uncopied(x: Any, weight: Any, bias: Any, shape: tuple[int, ...], problem: ConvolutionProblem) -> Any:
    like = ChannelsLast.described(shape, x.dtype)
    where = [problem.geometry.padding, problem.geometry.stride, problem.geometry.dilation, 1]
    arguments = [ChannelsLast(x), Opaque(weight), None, *where, "none", [], None]
    (made,) = aten_bridge.call("mkldnn::_convolution_pointwise", arguments, [like])
    return add_bias(made.physical, bias)


UNCOPIED = Kernel(
    "oneDNN, filters as they lie",
    accepts_uncopied,
    _convolve_uncopied,
    packed.available_at_all,
    lambda: {"least numbers of filters": LEAST_COPIED},
)


# ---- filters that are kept channels last


_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define("channels_last(Tensor weight) -> Tensor")
_library.impl("channels_last", lambda weight: torch.empty_like(weight), "Meta")


@op("lazy_runtime::channels_last", channels_last=True)
def channels_last(weight):
    """The same weight, channels last in memory."""
    return ChannelsLast(physical(weight))


def accepts_channels_last(problem: ConvolutionProblem) -> Verdict:
    """Whether kept filters are better kept channels last: the kernels bring any other order into theirs at each call,
    which takes a third of the time of a layer with few pixels and many channels.
    """
    size = math.prod(problem.filters) * (2 if problem.filters_dtype == "bfloat16" else 4)
    return (
        is_kept(problem)
        and (problem.kept_on == "xla" or Refused("a tensor on the CPU has the strides that it is said to have"))
        and (problem.filters_dtype in ("float32", "bfloat16") or Refused(f"it is not for {problem.filters_dtype}"))
        and (size > MOST_UNTURNED or Refused(f"the filters have up to {MOST_UNTURNED:,} bytes"))
        and (not problem.geometry.transposed or Refused("it is transposed"))
        and (len(problem.filters) == 4 or Refused("the images have no two dimensions"))
        and (max(problem.filters[2:]) > 1 or Refused("filters of 1x1 have one order alone"))
        and kernels.on_cpu(problem.platform)
    )


KEPT_CHANNELS_LAST = Kernel(
    "ATen, filters kept channels last",
    accepts_channels_last,
    available=kernels.on_cpu,
    thresholds=lambda: {"most bytes of filters left as they are": MOST_UNTURNED},
    packing=Packing(torch.ops.lazy_runtime.channels_last.default, None, lambda weight, _: [*weight.shape]),
)
