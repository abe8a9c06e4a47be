"""What convolutions with kept filters in kernels of ours have in common (`winograd.py`, `direct_convolution.py`).

What follows a convolution costs nothing more there: a bias, a sum, and bounds, which an activation like relu is. A NaN
stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...lowering import aten_bridge
from ...lowering.layout import ChannelsLast, physical
from ..kernels import Packing
from ..linalg.packed import ending, infer_convolution
from ..registry import arguments

_library = torch.library.Library("lazy_runtime", "FRAGMENT")


def define(name: str, shape: Callable[[Sequence[int]], Sequence[int]]) -> Packing:
    """Defines the operators of a kernel, `lazy_runtime::NAME_filters` and `lazy_runtime::NAME_convolution`.

    Args:
        shape: size of the filters in torch's order → in the kernel's.

    Returns:
        How the kernel wants kept filters: `NAME_filters` brings them into its order, and `NAME_convolution` takes
        these, and else what `packed_convolution` takes.
    """
    _library.define(f"{name}_filters(Tensor filters) -> Tensor")
    _library.define(
        f"{name}_convolution(Tensor image, Tensor filters, Tensor? bias, int[] size, int[] stride, int[] padding, "
        "int[] dilation, int groups, Tensor? other=None, str? then=None, float[] numbers=[]) -> Tensor"
    )
    _library.impl(f"{name}_filters", lambda filters: filters.new_empty(shape(filters.shape)), "Meta")
    _library.impl(f"{name}_convolution", infer_convolution, "Meta")
    filters, convolution = (getattr(torch.ops.lazy_runtime, f"{name}_{what}") for what in ("filters", "convolution"))
    return Packing(filters.default, convolution.default, lambda filters, _: shape(filters.shape))


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
