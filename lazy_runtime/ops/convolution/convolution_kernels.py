"""The kernels of convolutions and of their gradients, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..kernels import Table
from . import convolution_aten, convolution_xla, depthwise_gradient, direct_convolution, packed_convolution, winograd
from .convolution_problem import ConvolutionProblem

CONVOLUTION = Table(
    "convolution",
    [
        winograd.KERNEL,
        direct_convolution.POINTWISE,
        direct_convolution.DEPTHWISE,
        packed_convolution.KERNEL,
        convolution_aten.KEPT_CHANNELS_LAST,
        convolution_aten.UNCOPIED,
        convolution_aten.KERNEL,
        *convolution_xla.ROWS,
    ],
)

GRADIENT = Table(
    "convolution gradient",
    [
        winograd.IMAGE_GRADIENT,
        depthwise_gradient.KERNEL,
        winograd.FILTERS_GRADIENT,
        convolution_aten.GRADIENT,
        *convolution_xla.GRADIENT_ROWS,
    ],
)


def gradients(grad: Any, x: Any, weight: Any, problem: ConvolutionProblem, wanted: Sequence[bool]) -> tuple[Any, Any]:
    """The gradients of the image and of the filters, None where they are not wanted. A kernel of both computes them
    together.

    Args:
        grad, x: with their channels last.
        weight: in torch's order.
    """
    chosen = [
        GRADIENT.choose(problem._replace(gradient=which)) if is_wanted else None
        for which, is_wanted in zip(("image", "filters"), wanted, strict=True)
    ]
    found: list[Any] = [None, None]
    for kernel in GRADIENT.rows:
        of = [each is kernel for each in chosen]
        if any(of):
            assert kernel.lower is not None
            made = kernel.lower(grad, x, weight, problem, (of[0], of[1]))
            found = [new if is_its else old for new, old, is_its in zip(made, found, of, strict=True)]
    return found[0], found[1]
