"""Views, copies in another layout, and what takes tensors apart and puts them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import ANY, layer

if TYPE_CHECKING:
    from ..sketch import Sketch


@layer(2, 3, 4, 5)
def transposition(s: Sketch, x: torch.Tensor) -> None:
    order = s.rng.sample(range(x.dim()), x.dim())
    s.do(
        s.one_of(
            [
                f"x = x.transpose({s.dim(x)}, {s.dim(x)})",
                f"x = x.permute({tuple(order)})",
                f"x = x.movedim({s.dim(x)}, {s.dim(x)})",
                "x = x.mT",
                f"x = x.permute({tuple(order)}).contiguous().permute({tuple(order.index(i) for i in range(x.dim()))})",
            ]
        )
    )


@layer(2, 3, 4, 5)
def flattening(s: Sketch, x: torch.Tensor) -> None:
    low = s.int(0, x.dim() - 2)
    high = s.int(low + 1, x.dim() - 1)
    shape = (*x.shape[:low], -1, *x.shape[high + 1 :])
    s.do(s.one_of([f"x = x.flatten({low}, {high})", f"x = x.reshape{shape}", f"x = x.contiguous().view{shape}"]))


@layer(1, 2, 3, 4)
def unflattening(s: Sketch, x: torch.Tensor) -> None:
    dim = s.dim(x)
    part = s.divisor(x.shape[dim])
    s.do(f"x = x.unflatten({dim}, ({part}, {x.shape[dim] // part}))")


@layer(*ANY)
def dimensions_of_one(s: Sketch, x: torch.Tensor) -> None:
    ones = [dim for dim, size in enumerate(x.shape) if size == 1]
    if ones and x.dim() > 1 and s.odds(2):
        s.do(f"x = x.squeeze({s.one_of(ones)})")
    else:
        s.do(f"x = x.unsqueeze({s.int(0, x.dim())})")


@layer(*ANY)
def expansion(s: Sketch, x: torch.Tensor) -> None:
    sizes = [s.int(1, 2) if size == 1 else -1 for size in x.shape]
    if s.odds(2):
        s.do(f"x = x.expand({sizes})")
    else:
        s.do(f"x = x.expand({[s.int(1, 2), *sizes]})")


@layer(*ANY)
def repetition(s: Sketch, x: torch.Tensor) -> None:
    dim = s.dim(x)
    sizes = [1] * x.dim()
    sizes[dim] = 2
    s.do(
        s.one_of(
            [
                f"x = x.repeat({sizes})",
                f"x = x.repeat_interleave(2, {dim})",
                "x = torch.tile(x, (2,))",
                "x = torch.cat([x, x], -1)",
            ]
        )
    )


@layer(*ANY)
def layout(s: Sketch, x: torch.Tensor) -> None:
    """The same values in other places."""
    options = ["x = x.contiguous()", "x = x.clone()", "x = x.clone(memory_format=torch.contiguous_format)"]
    if x.dim() == 4:
        options += ["x = x.to(memory_format=torch.channels_last)"] * 3
        options += ["x = x.contiguous(memory_format=torch.channels_last)"]
    if x.dim() > 1:
        options += ["x = x.transpose(0, -1).contiguous().transpose(0, -1)"] * 2
        options += ["x = x.flip(0).mT.contiguous().mT"]
    s.do(s.one_of(options))


@layer(*ANY)
def windows(s: Sketch, x: torch.Tensor) -> None:
    dim = s.dim(x)
    size = s.int(1, x.shape[dim])
    s.do(f"x = x.unfold({dim}, {size}, {s.int(1, 2)})")


@layer(2, 3, 4)
def strides_by_hand(s: Sketch, x: torch.Tensor) -> None:
    """`as_strided` of what is contiguous: transposed, overlapping or a part."""
    count = x.numel()
    rows = s.divisor(count)
    columns = count // rows
    choice = s.int(0, 2)
    if choice == 0:
        shape, stride = (columns, rows), (1, columns)
    elif choice == 1 and columns > 1:
        shape, stride = (rows, columns - 1, 2), (columns, 1, 1)
    else:
        shape, stride = (rows, max(1, columns // 2)), (columns, min(2, columns))
    s.do(f"x = x.contiguous().as_strided({shape}, {stride})")


@layer(*ANY)
def parts(s: Sketch, x: torch.Tensor) -> None:
    """Chunks and splits, put together otherwise."""
    dim = s.dim(x)
    size = x.shape[dim]
    name = s.name("c")
    made = s.one_of([f"x.chunk({s.int(1, 3)}, {dim})", f"x.split({s.int(1, 2)}, {dim})", f"x.unbind({dim})"])
    s.do(f"{name} = {made}")
    joined = "stack" if "unbind" in made else "cat"
    s.do(
        s.one_of(
            [
                f"x = {name}[-1]",
                f"x = torch.{joined}({name}[::-1], {dim})",
                f"x = torch.{joined}([{name}[0], *(z.tanh() for z in {name}[1:])], {dim})",
                f"x = {name}[0] * {name}[0 if {size} == 1 else -2 if len({name}) > 2 else 0]",
            ]
        )
    )


@layer(*ANY)
def order(s: Sketch, x: torch.Tensor) -> None:
    dim = s.dim(x)
    s.do(s.one_of([f"x = x.flip({dim})", f"x = x.roll({s.int(-2, 3)}, {dim})", "x = x.roll(1)", "x = x.flip(0, -1)"]))


@layer(2, 3, 4)
def diagonals(s: Sketch, x: torch.Tensor) -> None:
    s.do(
        s.one_of(
            [
                f"x = x.diagonal({s.int(-1, 1)}, {s.dim(x)}, {s.dim(x)})",
                f"x = x.tril({s.int(-1, 1)})",
                f"x = x.triu({s.int(-1, 1)})",
                "x = torch.diag_embed(x[..., 0])",
                "x = x.rot90(1, (0, -1))",
                "x = x.narrow(-1, 0, 1).diagonal(0, -2, -1).unsqueeze(-1) + x",
            ]
        )
    )


@layer(*ANY)
def spectrum(s: Sketch, x: torch.Tensor) -> None:
    """A Fourier transform, with a filter or seen as pairs of real numbers."""
    count = x.shape[-1]
    s.do(
        s.one_of(
            [
                f"x = torch.fft.irfft(torch.fft.rfft(x) * {s.parameter(count // 2 + 1)}, n={count})",
                "x = torch.view_as_real(torch.fft.rfft(x, norm='ortho')).flatten(-2)",
                "x = torch.fft.fft(x, norm='ortho').real",
                f"x = (torch.view_as_complex(torch.stack([x, x.flip(-1)], -1)) * {s.parameter(count)}).imag",
                "x = torch.fft.fftshift(x, -1)",
            ]
        )
    )


@layer(3)
def rotary(s: Sketch, x: torch.Tensor) -> None:
    """Rotary positions."""
    _, length, width = x.shape
    angle = s.buffer(f"torch.arange({length}.0)[:, None] * torch.ones({(width + 1) // 2})")
    name = s.name("f")
    s.do(
        f"{name} = torch.cat([{angle}, {angle}], -1)[:, :{width}]",
        f"x = x * {name}.cos() + torch.cat([-x[..., {width // 2}:], x[..., :{width // 2}]], -1) * {name}.sin()",
    )
