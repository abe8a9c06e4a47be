"""Products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import ANY, layer

if TYPE_CHECKING:
    from ..sketch import Sketch


@layer(*ANY)
def linear(s: Sketch, x: torch.Tensor) -> None:
    module = f"nn.Linear({x.shape[-1]}, {s.int(1, 6)}{s.one_of(['', '', ', bias=False'])})"
    if s.odds(6):
        name = s.one_of(["weight_norm", "spectral_norm", "orthogonal"])
        module = f"nn.utils.parametrizations.{name}({module})"
    s.do(f"x = {s.module(module)}(x)")


@layer(3, 4)
def linear_over_another_dimension(s: Sketch, x: torch.Tensor) -> None:
    module = s.module(f"nn.Linear({x.shape[1]}, {s.int(1, 5)})")
    s.do(f"x = {module}(x.transpose(1, -1)).transpose(1, -1)")


@layer(2, 3)
def tied_linear(s: Sketch, x: torch.Tensor) -> None:
    """Two layers of one weight, the second one transposed."""
    width = s.int(1, 5)
    module = s.module(f"nn.Linear({x.shape[-1]}, {width})")
    s.do(f"x = F.linear({s.one_of(['torch.tanh', 'F.gelu', 'F.relu'])}({module}(x)), {module}.weight.t())")


@layer(2, 3)
def shared_module(s: Sketch, x: torch.Tensor) -> None:
    """One module twice."""
    module = s.module(f"nn.Linear({x.shape[-1]}, {x.shape[-1]})")
    s.do(f"x = {module}({module}(x).tanh())")


@layer(2, 3)
def bilinear(s: Sketch, x: torch.Tensor) -> None:
    module = s.module(f"nn.Bilinear({x.shape[-1]}, {x.shape[-1]}, {s.int(1, 3)})")
    s.do(f"x = {module}(x, {s.one_of(['x', 'x.tanh()', 'x.flip(0)'])})")


@layer(3)
def batched_product(s: Sketch, x: torch.Tensor) -> None:
    """Products of batches, with operands that are transposed, expanded or contiguous."""
    n, length, width = x.shape
    kind = s.int(0, 4)
    if kind == 0:
        s.do("x = torch.bmm(x, x.transpose(1, 2))")
    elif kind == 1:
        s.do("x = torch.bmm(x.transpose(1, 2), x) * 0.1")
    elif kind == 2:
        weight = f"{s.parameter(width, s.int(1, 4))}.expand({n}, -1, -1)"
        s.do(f"x = torch.bmm(x, {weight})")
    elif kind == 3:
        other = s.int(1, 4)
        added = s.one_of(
            [
                s.parameter(n, length, other),
                f"{s.parameter(n, other, length)}.transpose(1, 2)",
                f"{s.parameter(1, 1, other)}.expand({n}, {length}, {other})",
                s.parameter(other),
            ]
        )
        options = s.one_of(["", ", beta=0.5", ", alpha=2", ", beta=0"])
        s.do(f"x = torch.baddbmm({added}, x, {s.parameter(n, width, other)}{options})")
    else:
        s.do(f"x = torch.einsum('nlw,wk->nkl', x, {s.parameter(width, s.int(1, 4))})")


@layer(2)
def product(s: Sketch, x: torch.Tensor) -> None:
    n, width = x.shape
    other = s.int(1, 4)
    weight = s.one_of([s.parameter(width, other), f"{s.parameter(other, width)}.t()"])
    s.do(
        s.one_of(
            [
                f"x = x @ {weight}",
                f"x = torch.addmm({s.parameter(other)}, x, {weight}, alpha=0.5)",
                f"x = torch.addmm({s.parameter(other, n)}.t(), x, {weight})",
                f"x = x @ {weight} + torch.mv(x, {s.parameter(width)})[:, None]",
                f"x = torch.addmv({s.parameter(n)}, x, {s.parameter(width)})[:, None] * x",
                f"x = x + torch.outer({s.parameter(n)}, {s.parameter(width)})",
                f"x = torch.addr(x, {s.parameter(n)}, {s.parameter(width)})",
                f"x = torch.chain_matmul(x, {s.parameter(width, 2)}, {s.parameter(2, other)})",
                f"x = torch.kron(x, {s.parameter(1, 2)})",
            ]
        )
    )


@layer(4)
def product_of_images(s: Sketch, x: torch.Tensor) -> None:
    _, channels, height, width = x.shape
    s.do(
        s.one_of(
            [
                f"x = x @ {s.parameter(width, s.int(1, 4))}",
                f"x = {s.parameter(s.int(1, 4), height)} @ x",
                f"x = torch.matmul(x.transpose(2, 3), {s.parameter(channels, height, 2)})",
                f"x = torch.einsum('nchw,co->nohw', x, {s.parameter(channels, s.int(1, 3))})",
                f"x = torch.tensordot(x, {s.parameter(channels, s.int(1, 3))}, dims=([1], [0])).movedim(-1, 1)",
                "x = torch.einsum('nchw,ndhw->ncd', x, x) * 0.1",
            ]
        )
    )
