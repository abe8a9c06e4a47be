"""What the choice of a kernel for a convolution, or for its gradients, depends on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...lowering.layout import ChannelsLast
from ..kernels import Refused, Verdict, sizes


class Geometry(NamedTuple):
    """The static arguments of `aten::convolution`, one number per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @classmethod
    def of(
        cls,
        dimensions: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Geometry:
        """The same from aten's arguments, which may have one number for all spatial dimensions."""

        def spread(value: Sequence[int]) -> tuple[int, ...]:
            value = tuple(value)
            return value * dimensions if len(value) == 1 else value

        return cls(spread(stride), spread(padding), spread(dilation), transposed, spread(output_padding), groups)


class ConvolutionProblem(NamedTuple):
    """A convolution, or one of its gradients.

    Attributes:
        image, filters: sizes, in torch's order. A size that varies from call to call is -1.
        geometry: the static arguments.
        dtype: name of the image's dtype, which it is computed in.
        platform: where it is computed.
        filters_dtype: name of the filters' dtype.
        result_dtype: name of the result's dtype. It differs where the operands were cast first.
        gradient: of what it is the gradient, "image" or "filters"; empty for the convolution itself.
        has_channels_last_filters: the filters lie channels last in memory.
        kept_on: type of the device that keeps the filters from call to call; empty if none does.
        is_narrowed: the device stores fewer bits than torch says.
    """

    image: tuple[int, ...]
    filters: tuple[int, ...]
    geometry: Geometry
    dtype: str
    platform: str
    filters_dtype: str
    result_dtype: str
    gradient: str = ""
    has_channels_last_filters: bool = False
    kept_on: str = ""
    is_narrowed: bool = False

    @classmethod
    def of(cls, image: Any, filters: Any, geometry: Geometry, platform: str, result_dtype: Any) -> ConvolutionProblem:
        """The problem of operands in a lowering.

        Args:
            image: an array with its channels last.
            filters: an array or `ChannelsLast`.
            result_dtype: numpy's or torch's.
        """
        return cls(
            ChannelsLast(image).shape,
            tuple(filters.shape),
            geometry,
            name_of(image.dtype),
            platform,
            name_of(filters.dtype),
            name_of(result_dtype),
            has_channels_last_filters=isinstance(filters, ChannelsLast),
        )

    def __str__(self) -> str:
        stride, padding, dilation, transposed, _, groups = self.geometry
        parts = [
            f"images {sizes(self.image)}, filters {sizes(self.filters)} of {self.dtype}",
            f"stride {sizes(stride)}" if {*stride} != {1} else "",
            f"padding {sizes(padding)}" if any(padding) else "",
            f"dilation {sizes(dilation)}" if {*dilation} != {1} else "",
            f"{groups} groups" if groups > 1 else "",
            "transposed" * transposed,
            self.gradient and f"of the {self.gradient}",
        ]
        return ", ".join(filter(None, parts)) + f" on {self.platform}"

    @property
    def is_static(self) -> bool:
        """No size of the images varies from call to call."""
        return min(self.image, default=0) >= 0

    @property
    def is_empty(self) -> bool:
        """Images or filters have no element."""
        return 0 in self.image or 0 in self.filters

    @property
    def result(self) -> tuple[int, ...]:
        """Sizes of the result, of a convolution that is not transposed."""
        stride, padding, dilation, *_ = self.geometry
        along = zip(self.image[2:], self.filters[2:], stride, padding, dilation, strict=True)
        space = [
            max(0, (size + 2 * padded - step * (side - 1) - 1) // every + 1)
            for size, side, every, padded, step in along
        ]
        return (self.image[0], self.filters[0], *space)

    @property
    def multiplications(self) -> int:
        """How many numbers a convolution that is not transposed multiplies."""
        return math.prod(self.result) * math.prod(self.filters[1:])

    @property
    def is_depthwise(self) -> bool:
        """Each channel is convolved by itself, with one filter."""
        geometry = self.geometry
        return not geometry.transposed and 1 < geometry.groups == self.image[1] == self.filters[0]

    @property
    def is_matmul(self) -> bool:
        """It is a matrix product over the channels. One of some of the pixels is none on a GPU: XLA (jaxlib 0.11.2)
        takes their selection into its Triton kernel for the product there, and ends the process over it.
        """
        geometry = self.geometry
        is_whole = self.platform == "cpu" or (set(geometry.stride) == {1} and not any(geometry.padding))
        return is_whole and geometry.groups == 1 and not geometry.transposed and set(self.filters[2:]) <= {1}


def name_of(dtype: Any) -> str:
    """A dtype's name, torch's or numpy's."""
    return str(dtype).removeprefix("torch.")


def is_2d(problem: ConvolutionProblem) -> Verdict:
    """Whether it is an ordinary convolution of images of two dimensions."""
    return (len(problem.image) == len(problem.filters) == 4 or Refused("the images have no two dimensions")) and (
        not problem.geometry.transposed or Refused("it is transposed")
    )


def is_gradient_of(problem: ConvolutionProblem, which: str) -> Verdict:
    """Whether it is the gradient of the "image" or of the "filters"."""
    return problem.gradient == which or Refused(f"it is for the gradient of the {which}")


def is_float32(problem: ConvolutionProblem) -> Verdict:
    """Whether images and filters are of float32."""
    return problem.dtype == problem.filters_dtype == "float32" or Refused(
        f"it is for float32, not for images of {problem.dtype} and filters of {problem.filters_dtype}"
    )


def is_kept(problem: ConvolutionProblem) -> Verdict:
    """Whether inference keeps the filters from call to call."""
    return bool(problem.kept_on) or Refused("the filters are not kept from call to call")


def can_pack(problem: ConvolutionProblem) -> Verdict:
    """Whether filters that are kept can be kept in another order, for images of one size."""
    return (
        is_kept(problem)
        and is_2d(problem)
        and (problem.is_static or Refused("the images' sizes vary from call to call"))
        and (0 not in problem.filters or Refused("the filters are empty"))
        and (problem.dtype == problem.filters_dtype or Refused("images and filters differ in dtype"))
        and (not problem.is_narrowed or Refused("the device stores fewer bits than the dtype has"))
    )


def is_large(problem: ConvolutionProblem, least: int) -> Verdict:
    """Whether a convolution has enough multiplications for a call out of XLA's program."""
    found = problem.multiplications
    return found >= least or Refused(f"{found:,} multiplications are fewer than {least:,}")
