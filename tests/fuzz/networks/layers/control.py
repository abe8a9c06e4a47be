"""Python around the layers: branches on data, buffers that change, checkpoints, functions and hooks of autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import ANY, layer

if TYPE_CHECKING:
    from ..sketch import Sketch


@layer(*ANY)
def running_buffer(s: Sketch, x: torch.Tensor) -> None:
    """A buffer that the forward pass updates in place, or replaces."""
    if s.odds(2):
        # torch 2.13 drops what a compiled function writes to a float64 of no dimensions on the CPU, so they are rare
        buffer = s.buffer("torch.zeros(())" if s.odds(6) else "torch.zeros(1)")
        update = "x.detach().mean()"
    else:
        buffer = s.buffer(f"torch.zeros({x.shape[-1]})")
        update = "x.detach().flatten(0, -2).mean(0)" if x.dim() > 1 else "x.detach()"
    s.do(
        s.one_of(
            [
                f"{buffer}.mul_(0.9).add_({update}, alpha=0.1)",
                f"{buffer}.lerp_({update}, 0.1)",
                f"{buffer}.copy_({update})",
                f"{buffer} = 0.9 * {buffer} + 0.1 * {update}",
                f"{buffer} += {update}",
            ]
        ),
        s.one_of([f"x = x - {buffer}", f"x = x * ({buffer} + 1)", f"x = x + {buffer}.clone()"]),
    )


@layer(*ANY)
def counter(s: Sketch, x: torch.Tensor) -> None:
    buffer = s.buffer("torch.zeros((), dtype=torch.long)")
    s.do(f"{buffer} += 1", f"x = x * (1 + 0.1 * {buffer})")


@layer(*ANY)
def branch(s: Sketch, x: torch.Tensor) -> None:
    """A branch on data, rare: it splits a compiled function."""
    if not s.odds(4):
        s.do("x = x * 2 if self.training else x * 3")
        return
    module = s.module(f"nn.Linear({x.shape[-1]}, {x.shape[-1]})")
    # the mean of what a layer norm gives is 0 but for what is rounded
    s.do("if x.mean() > 0.1:", f"    x = {module}(x)", "else:", "    x = x.tanh()")


@layer(*ANY)
def checkpoint(s: Sketch, x: torch.Tensor) -> None:
    activation, width = s.one_of(["Tanh", "GELU", "ReLU"]), s.int(1, 4)
    module = s.module(f"nn.Sequential(nn.Linear({x.shape[-1]}, 3), nn.{activation}(), nn.Linear(3, {width}))")
    reentrant = s.odds(4) and x.requires_grad
    s.do(f"x = torch.utils.checkpoint.checkpoint({module}, x, use_reentrant={reentrant})")


@layer(*ANY)
def parts_without_gradients(s: Sketch, x: torch.Tensor) -> None:
    name = s.name("n")
    s.do(
        "with torch.no_grad():",
        f"    {name} = {s.one_of(['x.abs().amax()', 'x.softmax(-1)', 'x.mean(-1, keepdim=True)', 'x.norm()'])}",
        f"x = x / ({name} + 1)",
    )


@layer(*ANY)
def frozen(s: Sketch, x: torch.Tensor) -> None:
    """A layer whose parameters want no gradient."""
    module = s.module(f"nn.Linear({x.shape[-1]}, {s.int(1, 4)}).requires_grad_(False)")
    s.do(f"x = {module}(x)")


@layer(*ANY)
def branches(s: Sketch, x: torch.Tensor) -> None:
    """A mixture of experts: several layers of one input, weighted."""
    size, count = x.shape[-1], s.int(2, 3)
    experts = s.module(f"nn.ModuleList([nn.Linear({size}, {size}) for _ in range({count})])")
    gate = s.module(f"nn.Linear({size}, {count})")
    name = s.name("g")
    s.do(f"{name} = {gate}(x).softmax(-1)")
    if s.odds(2):
        s.do(f"x = sum({name}[..., i : i + 1] * expert(x) for i, expert in enumerate({experts}))")
    else:
        s.do(f"x = (torch.stack([expert(x) for expert in {experts}], -1) * {name}.unsqueeze(-2)).sum(-1)")


@layer(*ANY)
def whole_tensor(s: Sketch, x: torch.Tensor) -> None:
    """Statistics of all elements at once."""
    s.do(
        s.one_of(
            [
                "x = x / (x.norm() + 1)",
                "x = x - x.max()",
                "x = (x - x.mean()) / (x.std(correction=0) + 0.1)",
                "x = x * x.sum().tanh()",
                "x = x + x.logsumexp(tuple(range(x.dim())))",
                "x = x - x.median()",
                "x = x * len(x) / x.numel()",
            ]
        )
    )
