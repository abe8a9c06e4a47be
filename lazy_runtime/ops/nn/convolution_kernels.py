"""What convolutions with kept weights in kernels of ours have in common (`winograd.py`, `direct.py`).

What follows a convolution costs nothing more there: a bias, a sum, and bounds, which an activation like relu is. A NaN
stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ...lowering import aten_bridge
from ...lowering.layout import ChannelsLast, physical
from ..linalg.packed import ending, infer_convolution
from ..registry import arguments

_library = torch.library.Library("lazy_runtime", "FRAGMENT")


class Kernel(NamedTuple):
    """A kernel, as two operators.

    Attributes:
        filters: brings filters into the order that it reads them in.
        convolution: takes these, and else what `packed_convolution` takes.
        pays: (size of the filters, size of the images, stride, padding, dilation, groups; dtype, platform) → whether it
            computes such a convolution, and faster than oneDNN's kernels.
        shape: size of the filters in torch's order → in the kernel's.
        smallest: multiplications that a convolution must have for a call out of XLA's program to pay.
    """

    filters: Any
    convolution: Any
    pays: Callable[..., bool]
    shape: Callable[[Sequence[int]], list[int]]
    smallest: int


KERNELS: list[Kernel] = []


def define(
    name: str, pays: Callable[..., bool], shape: Callable[[Sequence[int]], list[int]], smallest: int = 0
) -> None:
    """Adds a kernel, whose operators are `lazy_runtime::NAME_filters` and `lazy_runtime::NAME_convolution`.

    Args:
        smallest: as in `Kernel`; by default the kernel competes with torch's, which are called too.
    """
    _library.define(f"{name}_filters(Tensor filters) -> Tensor")
    _library.define(
        f"{name}_convolution(Tensor image, Tensor filters, Tensor? bias, int[] size, int[] stride, int[] padding, "
        "int[] dilation, int groups, Tensor? other=None, str? then=None, float[] numbers=[]) -> Tensor"
    )
    _library.impl(f"{name}_filters", lambda filters: filters.new_empty(shape(filters.shape)), "Meta")
    _library.impl(f"{name}_convolution", infer_convolution, "Meta")
    filters, convolution = (getattr(torch.ops.lazy_runtime, f"{name}_{what}") for what in ("filters", "convolution"))
    KERNELS.append(Kernel(filters.default, convolution.default, pays, shape, smallest))


def call(
    name: str,
    image: Any,
    filters: Any,
    bias: Any,
    geometry: Sequence[Any],
    shape: Sequence[int],
    other: Any = None,
    then: str | None = None,
    numbers: Sequence[float] = (),
) -> ChannelsLast:
    """A convolution in a kernel of ours, plus `other`, and `then` an activation of `packed.IN_PLACE`.

    Args:
        geometry: what the kernel takes after the bias.
        shape: of the result, in torch's order.
    """
    like = ChannelsLast.described(shape, image.dtype)
    summed = None if other is None else ChannelsLast(physical(other))
    bounds = _bounds(then, numbers)
    following = ending(then, numbers) if bounds is None else []
    operands = [ChannelsLast(physical(image)), filters, bias, *geometry, summed, *(bounds or (None, None))]
    (made,) = aten_bridge.call(f"lazy_runtime_kernels::{name}", operands, [like], following)
    return made


def _bounds(then: str | None, numbers: Sequence[float]) -> tuple[float | None, float | None] | None:
    """The lowest and the highest value that an activation lets through, if it is one that bounds."""
    if then == "relu":
        return 0.0, None
    if then == "hardtanh":
        low, high = arguments(torch.ops.aten.hardtanh.default, (None, *numbers), {})[1:]
        return float(low), float(high)
    return None
