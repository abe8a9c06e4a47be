"""Pooling, resizing and padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import layer

if TYPE_CHECKING:
    from ..sketch import Sketch


@layer(3, 4, 5)
def pooling(s: Sketch, x: torch.Tensor) -> None:
    rank = x.dim() - 2
    kernel = s.int(1, 3)
    kind = s.one_of(["Max", "Max", "Avg", "Avg", "LP"])
    options = f", stride={s.int(1, 2)}" if s.odds(2) else ""
    if s.odds(3):
        options += ", ceil_mode=True"
    if kind != "LP" and s.odds(3):
        options += f", padding={kernel // 2}"
    if kind == "Avg" and s.odds(3):
        options += ", count_include_pad=False"
    if kind == "Avg" and rank > 1 and s.odds(4):
        options += ", divisor_override=3"
    if kind == "Max" and s.odds(4):
        options += ", dilation=2"
    first = "2, " if kind == "LP" else ""
    s.do(f"x = {s.module(f'nn.{kind}Pool{rank}d({first}{kernel}{options})')}(x{' + 2' if kind == 'LP' else ''})")


@layer(3, 4, 5)
def adaptive_pooling(s: Sketch, x: torch.Tensor) -> None:
    rank = x.dim() - 2
    kind = s.one_of(["avg", "max"])
    size = tuple(s.int(1, 4) for _ in range(rank)) if s.odds(2) else s.int(1, 3)
    s.do(f"x = F.adaptive_{kind}_pool{rank}d(x, {size})")


@layer(3, 4)
def unpooling(s: Sketch, x: torch.Tensor) -> None:
    rank = x.dim() - 2
    name = s.name("u")
    s.do(
        f"{name}, {name}i = F.max_pool{rank}d(x, 2, return_indices=True)",
        f"x = F.max_unpool{rank}d({name}, {name}i, 2, output_size=x.shape[2:])",
    )


@layer(3, 4, 5)
def global_pooling(s: Sketch, x: torch.Tensor) -> None:
    dims = tuple(range(2, x.dim()))
    s.do(
        s.one_of(
            [
                f"x = x.mean({dims})",
                f"x = x.amax({dims})",
                "x = x.flatten(2).max(-1).values",
                "x = x.flatten(2).median(-1).values",
                f"x = x.std({dims}, keepdim=True, correction=0) + x",
                "x = x.flatten(2).logsumexp(-1)",
                "x = x.flatten(2).sum(-1, keepdim=True)",
                f"x = F.adaptive_avg_pool{x.dim() - 2}d(x, 1).flatten(1)",
            ]
        )
    )


@layer(3, 4, 5)
def interpolation(s: Sketch, x: torch.Tensor) -> None:
    rank = x.dim() - 2
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[rank]
    modes = ["nearest", "nearest-exact", "area", linear, linear]
    mode = s.one_of(modes + (["bicubic", "bicubic"] if rank == 2 else []))
    if s.odds(2):
        options = f"size={tuple(s.int(1, 6) for _ in range(rank))}"
    else:
        options = f"scale_factor={s.one_of([0.5, 1.5, 2, 0.7])}"
        if s.odds(4) and mode not in ("area",):
            options += ", recompute_scale_factor=True"
    if "linear" in mode or "cubic" in mode:
        options += s.one_of(["", ", align_corners=True", ", align_corners=False"])
        if rank == 2 and s.odds(3):
            options += ", antialias=True"
    s.do(f"x = F.interpolate(x, {options}, mode='{mode}')")


@layer(4)
def shuffling(s: Sketch, x: torch.Tensor) -> None:
    s.do(
        s.one_of(
            [
                "x = F.pixel_shuffle(torch.cat([x] * 4, 1), 2)",
                "x = F.pixel_unshuffle(F.interpolate(x, scale_factor=2), 2)",
                f"x = F.channel_shuffle(x, {s.divisor(x.shape[1])})",
            ]
        )
    )


@layer(4)
def sampling(s: Sketch, x: torch.Tensor) -> None:
    """A spatial transformer."""
    n, channels, height, width = x.shape
    theta = f"({s.parameter(n, 2, 3)} * 0.3)"
    grid = f"F.affine_grid({theta}, [{n}, {channels}, {s.int(1, height)}, {width}], align_corners={s.odds(2)})"
    mode, padding = s.one_of(["bilinear", "nearest", "bicubic"]), s.one_of(["zeros", "border", "reflection"])
    s.do(f"x = F.grid_sample(x, {grid}, mode='{mode}', padding_mode='{padding}', align_corners={s.odds(2)})")


@layer(2, 3, 4, 5)
def padding(s: Sketch, x: torch.Tensor) -> None:
    mode = s.one_of(["constant", "constant", "reflect", "replicate", "circular"])
    count = s.int(1, x.dim()) if mode == "constant" else x.dim() - 2
    low = -1 if mode == "constant" else 0
    sizes = tuple(s.int(low, 2) for _ in range(2 * count))
    value = ", value=0.5" if mode == "constant" and s.odds(3) else ""
    s.do(f"x = F.pad(x, {sizes}, mode='{mode}'{value})")
