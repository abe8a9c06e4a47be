"""Indexing: slices, tensors of indices, masks, gathers and scatters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import ANY, layer

if TYPE_CHECKING:
    from ..sketch import Sketch


def _indices(s: Sketch, size: int, count: int | None = None, negative: bool = False) -> str:
    """Positions, some of them twice, as a constant or as a buffer."""
    count = count or s.int(1, 4)
    places = [s.int(-size if negative else 0, size - 1) for _ in range(count)]
    if s.odds(2):
        return s.buffer(f"torch.tensor({places})")
    return f"torch.tensor({places}, device=x.device)"


@layer(*ANY)
def basic_index(s: Sketch, x: torch.Tensor) -> None:
    items = []
    for size in x.shape:
        kind = s.int(0, 4)
        if kind == 0 and x.dim() > 1:
            items.append(str(s.int(-size, size - 1)))
        elif kind == 1:
            items.append("::2")
        elif kind == 2:
            items.append(s.one_of([f"{s.int(0, size - 1)}:", f":{s.int(1, size)}", ":-1" if size > 1 else ":"]))
        elif kind == 3:
            items.append("...")
            break
        else:
            items.append(":")
    if s.odds(3):
        items.insert(s.int(0, len(items)), "None")
    s.do(f"x = x[{', '.join(items)}]")


@layer(*ANY)
def index(s: Sketch, x: torch.Tensor) -> None:
    dim = s.int(0, x.dim() - 1)
    before = ":, " * dim
    options = [
        f"x = x[{before}{_indices(s, x.shape[dim], negative=True)}]",
        f"x = x.index_select({dim}, {_indices(s, x.shape[dim])})",
        f"x = x.take({_indices(s, x.numel(), negative=True)})",
    ]
    if x.dim() > 1:
        count = s.int(1, 3)
        first = _indices(s, x.shape[0], count, negative=True)
        last = _indices(s, x.shape[-1], count)
        options += [
            f"x = x[{first}, ..., {last}]",
            f"x = x[{first}][..., {last}]",
            f"x = x[{first}[:, None], {_indices(s, x.shape[1])}]",
        ]
    s.do(s.one_of(options))


@layer(*ANY)
def gather(s: Sketch, x: torch.Tensor) -> None:
    dim = s.dim(x)
    s.do(
        s.one_of(
            [
                f"x = x.gather({dim}, x.argsort({dim}))",
                f"x = torch.take_along_dim(x, x.argmax({dim}, keepdim=True), {dim})",
                f"x = x + x.gather({dim}, torch.zeros_like(x, dtype=torch.long))",
                f"x = torch.gather(x, {dim}, x.argsort({dim}, descending=True).narrow({dim}, 0, 1))",
            ]
        )
    )


@layer(*ANY)
def scatter(s: Sketch, x: torch.Tensor) -> None:
    dim = s.dim(x)
    size = x.shape[dim]
    other = s.parameter(*x.shape)
    places = f"torch.zeros_like(x, dtype=torch.long).add_({s.int(0, size - 1)})"
    narrow = f"{other}.narrow({dim}, 0, 1)"
    s.do(
        s.one_of(
            [
                f"x = x.scatter({dim}, {places}.narrow({dim}, 0, 1), {narrow})",
                f"x = x.scatter({dim}, {places}, 0.5)",
                f"x = x.scatter_add({dim}, {places}, {other})",
                f"x = x.scatter_reduce({dim}, {places}, {other}, '{s.one_of(['sum', 'mean', 'amax', 'prod'])}')",
                f"x = x.index_add({dim}, {_indices(s, size, size)}, {other})",
                f"x = x.index_copy({dim}, torch.tensor([{s.int(0, size - 1)}], device=x.device), {narrow})",
                f"x = x.index_reduce({dim}, {_indices(s, size, size)}, {other}, 'mean')",
                f"x = x.select_scatter({other}.select({dim}, 0), {dim}, {size - 1})",
                f"x = x.slice_scatter({narrow}, {dim}, 0, 1)",
                f"x = x.index_put(({_indices(s, x.shape[0], 2)},), {other}[0], accumulate=True)",
            ]
        )
    )


@layer(*ANY)
def masking(s: Sketch, x: torch.Tensor) -> None:
    other = s.parameter(x.shape[-1])
    s.do(
        s.one_of(
            [
                f"x = torch.where(x > 0, x, {other})",
                "x = x.masked_fill(x < 0, 0.25)",
                f"x = x.masked_scatter(x > 0, {s.parameter(*x.shape)})",
                f"x = torch.where(torch.arange({x.shape[-1]}, device=x.device) % 2 == 0, x, 0)",
                "x = x * (x > x.mean())",
                "x = x + x[x > 0].sum()",
                "x = x * torch.zeros_like(x).masked_fill_(x.detach() > 0, 1)",
                "x = torch.where(x.isnan(), 0, x)",
            ]
        )
    )


@layer(*ANY)
def embedding_of_what_is_large(s: Sketch, x: torch.Tensor) -> None:
    """Indices that depend on values, into a table."""
    dim, width = s.dim(x), s.int(1, 4)
    table = s.parameter(x.shape[dim], width)
    places = f"x.argmax({dim})"
    s.do(
        s.one_of(
            [
                f"x = x.mean() * F.embedding({places}, {table})",
                f"x = F.one_hot({places}, {x.shape[dim]}).to(x.dtype) @ {table} + x.amax()",
                f"x = {table}[{places}] * x.sum()",
                "x = torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype, device=x.device)) * x",
            ]
        )
    )
