"""Normalizations. They may be the first to see a gradient with ambiguous strides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import ANY, layer

if TYPE_CHECKING:
    from ..sketch import Sketch

_SPATIAL = {2: "1d", 3: "1d", 4: "2d", 5: "3d"}


@layer(2, 3, 4, 5)
def batch_norm(s: Sketch, x: torch.Tensor) -> None:
    options = s.one_of(["", "", ", affine=False", ", momentum=None", ", track_running_stats=False", ", eps=1e-3"])
    s.do(f"x = {s.module(f'nn.BatchNorm{_SPATIAL[x.dim()]}({x.shape[1]}{options})')}(x)")


@layer(3, 4)
def batch_norm_of_a_transposed(s: Sketch, x: torch.Tensor) -> None:
    """As LeViT and XCiT have it: the norm's input and its gradient are views by strides."""
    module = s.module(f"nn.BatchNorm1d({x.shape[-1]})")
    s.do(f"x = {module}(x.flatten(0, -2)).reshape(x.shape)" if s.odds(2) else "x = x.flatten(2).transpose(1, 2)")
    if "flatten(2)" in s.forward[-1]:
        width = x.flatten(2).shape[1]
        s.do(f"x = {s.module(f'nn.BatchNorm1d({width})')}(x.transpose(1, 2)).transpose(1, 2)")


@layer(3, 4, 5)
def instance_norm(s: Sketch, x: torch.Tensor) -> None:
    options = s.one_of(["", ", affine=True", ", affine=True, track_running_stats=True"])
    s.do(f"x = {s.module(f'nn.InstanceNorm{_SPATIAL[x.dim()]}({x.shape[1]}{options})')}(x)")


@layer(2, 3, 4, 5)
def group_norm(s: Sketch, x: torch.Tensor) -> None:
    options = s.one_of(["", "", ", affine=False"])
    s.do(f"x = {s.module(f'nn.GroupNorm({s.divisor(x.shape[1])}, {x.shape[1]}{options})')}(x)")


@layer(*ANY)
def layer_norm(s: Sketch, x: torch.Tensor) -> None:
    shape = tuple(x.shape[-s.int(1, min(3, x.dim())) :])
    options = s.one_of(["", "", ", elementwise_affine=False", ", bias=False"])
    s.do(f"x = {s.module(f'nn.LayerNorm({shape}{options})')}(x)")


@layer(*ANY)
def rms_norm(s: Sketch, x: torch.Tensor) -> None:
    shape = tuple(x.shape[-s.int(1, min(2, x.dim())) :])
    s.do(f"x = {s.module(f'nn.RMSNorm({shape})')}(x)")


@layer(4)
def channels_first_layer_norm(s: Sketch, x: torch.Tensor) -> None:
    """As ConvNeXt has it."""
    module = s.module(f"nn.LayerNorm({x.shape[1]})")
    s.do(f"x = {module}(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)")


@layer(*ANY)
def normalization(s: Sketch, x: torch.Tensor) -> None:
    dim = s.dim(x)
    s.do(
        s.one_of(
            [
                f"x = F.normalize(x, dim={dim})",
                f"x = F.normalize(x, p=1, dim={dim})",
                f"x = (x - x.mean({dim}, keepdim=True)) * (x.var({dim}, keepdim=True, correction=0) + 0.1).rsqrt()",
                f"x = x / (torch.linalg.vector_norm(x, dim={dim}, keepdim=True) + 0.1)",
                f"x = torch.renorm(x, 2, {dim}, 1.0)",
            ]
        )
    )


@layer(3, 4)
def local_response_norm(s: Sketch, x: torch.Tensor) -> None:
    s.do(f"x = {s.module(f'nn.LocalResponseNorm({s.int(1, 3)})')}(x)")


@layer(4, 5)
def weight_standardization(s: Sketch, x: torch.Tensor) -> None:
    """As timm has it: the weight goes through batch norm as one image of many channels."""
    rank, out = x.dim() - 2, s.int(1, 3)
    weight = s.parameter(out, x.shape[1], *(2,) * rank)
    name = s.name("w")
    s.do(
        f"{name} = F.batch_norm({weight}.reshape(1, {out}, -1), None, None, training=True, eps=1e-3)",
        f"x = F.conv{rank}d(x, {name}.reshape_as({weight}), padding=1)",
    )
