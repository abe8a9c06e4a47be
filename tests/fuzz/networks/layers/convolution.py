"""Convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import layer

if TYPE_CHECKING:
    from ..sketch import Sketch


def _per_dimension(s: Sketch, rank: int, low: int, high: int) -> str:
    """One number for all spatial dimensions, or one for each."""
    if s.odds(3):
        return str(tuple(s.int(low, high) for _ in range(rank)))
    return str(s.int(low, high))


def _wrapped(s: Sketch, module: str) -> str:
    if s.odds(6):
        return s.one_of(
            [f"nn.utils.parametrizations.weight_norm({module})", f"nn.utils.parametrizations.spectral_norm({module})"]
        )
    return module


@layer(3, 4, 5)
def convolution(s: Sketch, x: torch.Tensor) -> None:
    rank = x.dim() - 2
    groups = s.divisor(x.shape[1]) if s.odds(3) else 1
    out = groups * s.int(1, 3)
    options = f", stride={_per_dimension(s, rank, 1, 2)}" if s.odds(2) else ""
    if s.odds(5) and not options:
        options += ", padding='same'"
    elif not s.odds(3):
        options += f", padding={_per_dimension(s, rank, 0, 2)}"
    if s.odds(4):
        options += f", dilation={_per_dimension(s, rank, 1, 2)}"
    if s.odds(4):
        options += f", padding_mode='{s.one_of(['reflect', 'replicate', 'circular'])}'"
    if groups > 1:
        options += f", groups={groups}"
    if s.odds(3):
        options += ", bias=False"
    kernel = _per_dimension(s, rank, 1, 3)
    s.do(f"x = {s.module(_wrapped(s, f'nn.Conv{rank}d({x.shape[1]}, {out}, {kernel}{options})'))}(x)")


@layer(3, 4)
def depthwise(s: Sketch, x: torch.Tensor) -> None:
    """A depthwise and a pointwise convolution."""
    rank, channels = x.dim() - 2, x.shape[1]
    deep = s.module(f"nn.Conv{rank}d({channels}, {channels}, 3, padding=1, groups={channels})")
    point = s.module(f"nn.Conv{rank}d({channels}, {s.int(1, 4)}, 1)")
    between = s.one_of(["", ".relu_()", ".sigmoid()"])
    s.do(f"x = {point}({deep}(x){between})")


@layer(3, 4, 5)
def transposed_convolution(s: Sketch, x: torch.Tensor) -> None:
    rank = x.dim() - 2
    groups = s.divisor(x.shape[1]) if s.odds(3) else 1
    options = f", groups={groups}" if groups > 1 else ""
    if s.odds(2):
        options += f", stride={_per_dimension(s, rank, 1, 2)}"
        if s.odds(2):
            options += ", output_padding=1"
    if s.odds(2):
        options += f", padding={_per_dimension(s, rank, 0, 1)}"
    if s.odds(5):
        options += ", dilation=2"
    if s.odds(3):
        options += ", bias=False"
    kernel = _per_dimension(s, rank, 1, 3)
    module = f"nn.ConvTranspose{rank}d({x.shape[1]}, {groups * s.int(1, 2)}, {kernel}{options})"
    s.do(f"x = {s.module(module)}(x)")


@layer(3, 4)
def convolution_by_a_view(s: Sketch, x: torch.Tensor) -> None:
    """The weight is a view of a parameter, transposed or expanded."""
    rank, channels = x.dim() - 2, x.shape[1]
    out, kernel = s.int(1, 3), s.int(1, 2)
    if s.odds(2):
        weight = f"{s.parameter(channels, out, *(kernel,) * rank)}.transpose(0, 1)"
    else:
        weight = f"{s.parameter(1, channels, *(kernel,) * rank)}.expand({out}, {', '.join(['-1'] * (rank + 1))})"
    s.do(f"x = F.conv{rank}d(x, {weight}, padding={s.int(0, 1)})")


@layer(3, 4)
def convolution_of_one_image(s: Sketch, x: torch.Tensor) -> None:
    """An unbatched convolution of the first image, broadcast over the others."""
    rank, channels = x.dim() - 2, x.shape[1]
    s.do(f"x = x + {s.module(f'nn.Conv{rank}d({channels}, {channels}, 3, padding=1)')}(x[0])")


@layer(4)
def convolution_by_unfold(s: Sketch, x: torch.Tensor) -> None:
    kernel, stride = s.int(1, 2), s.int(1, 2)
    patches = f"F.unfold(x, {kernel}, stride={stride})"
    if s.odds(2):
        s.do(f"x = {patches}")
    else:
        size = tuple(x.shape[2:])
        s.do(f"x = F.fold({patches}, {size}, {kernel}, stride={stride})")


@layer(4)
def patches(s: Sketch, x: torch.Tensor) -> None:
    """A vision transformer's stem: what follows sees an image as a sequence, by strides."""
    size, width = s.int(1, 2), s.int(1, 6)
    stem = s.module(f"nn.Conv2d({x.shape[1]}, {width}, {size}, stride={size})")
    s.do(f"x = {stem}(x).flatten(2).transpose(1, 2)")
