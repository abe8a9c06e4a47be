"""Activations, arithmetic with broadcasts, reductions, and what works in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import ANY, layer

if TYPE_CHECKING:
    from ..sketch import Sketch

_MODULES = [
    *("ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "SiLU", "Mish", "Hardswish", "Hardsigmoid", "Hardtanh"),
    *("GELU", "Sigmoid", "Tanh", "Softplus", "Softsign", "Tanhshrink", "LogSigmoid", "Softshrink", "Hardshrink"),
]
_IN_PLACE = {
    "ReLU",
    "ReLU6",
    "LeakyReLU",
    "ELU",
    "SELU",
    "CELU",
    "SiLU",
    "Mish",
    "Hardswish",
    "Hardsigmoid",
    "Hardtanh",
}
_FUNCTIONS = [
    *("x.sin()", "x.exp().clamp(max=20)", "x.square()", "x.abs()", "x.sigmoid()", "x.tanh()", "x.erf()", "x.atan()"),
    *(
        "x.abs().sqrt()",
        "(x.abs() + 0.1).log()",
        "(x.square() + 1).rsqrt()",
        "x.sign() * x",
        "F.gelu(x, approximate='tanh')",
    ),
    *("x.clamp(-1, 1)", "x.clamp_min(0)", "torch.maximum(x, -x)", "torch.where(x > 0, x, x * 0.1)", "x.log1p()"),
    *(
        "torch.hypot(x, x + 1)",
        "torch.atan2(x, x + 2)",
        "x.fmod(1.5)",
        "x.remainder(1.5)",
        "torch.lerp(x, x.tanh(), 0.3)",
    ),
    *("x.expm1()", "x.asinh()", "torch.special.expit(x)", "torch.logaddexp(x, -x)", "x.sinc()", "x * x.detach()"),
    *(
        "x ** 3 * 0.1",
        "2 ** x.clamp(max=4)",
        "x.abs() ** 1.5",
        "x.round() + x",
        "x.nan_to_num()",
        "x.lgamma().clamp(-5, 5)",
    ),
    *(
        "x.addcmul(x, x, value=0.1)",
        "x.addcdiv(x, x.abs() + 1)",
        "torch.copysign(x, -x)",
        "x.frac()",
        "x.digamma().clamp(-5, 5)",
    ),
]


@layer(*ANY)
def activation(s: Sketch, x: torch.Tensor) -> None:
    if s.odds(2):
        s.do(f"x = {s.one_of(_FUNCTIONS)}")
        return
    name = s.one_of(_MODULES)
    options = "inplace=True" if name in _IN_PLACE and s.odds(2) else ""
    s.do(f"x = {s.module(f'nn.{name}({options})')}(x)")


@layer(*ANY)
def activation_with_dimensions(s: Sketch, x: torch.Tensor) -> None:
    dim = s.dim(x)
    channels = x.shape[1] if x.dim() > 1 else 1
    options = [
        f"x = x.softmax({dim})",
        f"x = x.log_softmax({dim})",
        f"x = F.softmin(x, {dim})",
        f"x = x.cumsum({dim})",
        f"x = x.flip({dim}).cumsum({dim}).flip({dim})",
        f"x = x.logcumsumexp({dim})",
        f"x = x.tanh().cumprod({dim})",
        f"x = x.cummax({dim}).values",
        f"x = F.prelu(x, {s.parameter(channels)})",
        "x = F.rrelu(x, 0.2, 0.2)",
    ]
    if x.shape[dim] % 2 == 0:
        options += [f"x = F.glu(x, {dim})", f"a, b = x.chunk(2, {dim})\nx = a * F.silu(b)"]
    s.do(s.one_of(options))


@layer(*ANY)
def broadcast(s: Sketch, x: torch.Tensor) -> None:
    """Arithmetic with a parameter that is broadcast, or broadcasts."""
    shape = [size if not s.odds(2) else 1 for size in x.shape][s.int(0, x.dim() - 1) :]
    other = s.parameter(*shape)
    s.do(
        s.one_of(
            [
                f"x = x + {other}",
                f"x = x * {other}",
                f"x = {other} - x",
                f"x = x / ({other}.abs() + 0.5)",
                f"x = torch.where(x > {other}, x, {other})",
                f"x = torch.maximum(x, {other})",
                f"x = torch.minimum({other}, x)",
                f"x = torch.lerp(x, {other}.expand_as(x), 0.25)",
                f"x = torch.addcmul({other}, x, {other}, value=0.5)",
                f"x = x + {other}.expand_as(x).contiguous()",
                f"x = x.add({other}, alpha=0.5)",
                f"x = torch.sub({other}, x, alpha=2)",
                f"x = x.clamp({other}.abs() * -2 - 0.1, {other}.abs() * 2 + 0.1)",
            ]
        )
    )


@layer(*ANY)
def outer_broadcast(s: Sketch, x: torch.Tensor) -> None:
    dim = s.int(0, x.dim())
    s.do(f"x = x.unsqueeze({dim}) {s.one_of(['+', '*', '-'])} {s.parameter(s.int(1, 2), *(1,) * (x.dim() - dim))}")


@layer(*ANY)
def buffer_arithmetic(s: Sketch, x: torch.Tensor) -> None:
    """A buffer takes part, as positions do."""
    size = x.shape[-1]
    other = s.buffer(s.one_of([f"torch.arange({size}.0)", f"torch.ones(1, {size})", f"torch.linspace(0, 1, {size})"]))
    s.do(f"x = x {s.one_of(['+', '*'])} {other}")


@layer(2, 3, 4, 5)
def reduction(s: Sketch, x: torch.Tensor) -> None:
    dim = s.dim(x)
    keep = s.one_of(["", ", keepdim=True"])
    s.do(
        s.one_of(
            [
                f"x = x.sum({dim}{keep})",
                f"x = x.mean({dim}{keep})",
                f"x = x.max({dim}{keep}).values",
                f"x = x.min({dim}{keep})[0]",
                f"x = x.prod({dim}{keep})",
                f"x = x.norm(dim={dim}{keep})",
                f"x = x.amax({dim}{keep}) - x.amin({dim}{keep})",
                f"x = x.var({dim}{keep}, correction=0)",
                f"x = x - x.mean({dim}, keepdim=True)",
                f"x = x.sort({dim}, descending={s.odds(2)}).values",
                f"x = x.topk({s.int(1, x.shape[dim])}, {dim}).values",
                f"x = x.kthvalue(1, {dim}{keep}).values",
                f"x = x.aminmax(dim={dim}{keep}).max",
                "x = x.msort()",
                f"x = x.diff(dim={dim})",
                f"x = torch.trapezoid(x, dim={dim})",
            ]
        )
    )


@layer(*ANY)
def in_place(s: Sketch, x: torch.Tensor) -> None:
    """Writes, to what a layer has made or to a copy."""
    if s.odds(2):
        s.do("x = x * 1")
    dim = s.dim(x)
    last = x.shape[dim] - 1
    s.do(
        s.one_of(
            [
                "x.mul_(0.5)",
                "x += 1",
                f"x.add_({s.parameter(x.shape[-1])})",
                "x.tanh_()",
                "x.clamp_(-1, 1)",
                "x[0] = 0",
                "x[..., -1] *= 2",
                "x[..., :1].add_(1)",
                f"x.select({dim}, {last}).zero_()",
                f"x.narrow({dim}, 0, 1).mul_(3)",
                "x.transpose(0, -1).select(0, 0).copy_(x.transpose(0, -1).select(0, -1).clone())",
                "x.masked_fill_(x > 1, 0.5)",
                "x[x > 0] = 0.5",
                f"x.index_fill_({dim}, torch.tensor([{last}], device=x.device), 1.0)",
                "x.flatten().sub_(0.1)" if x.is_contiguous() else "x.sub_(0.1)",
                f"x.addcmul_({s.parameter(x.shape[-1])}, x.detach())",
                f"x.unsqueeze_({dim})",
                "x.t_()" if x.dim() == 2 else "x.transpose_(0, -1)",
                "torch.add(x, 1, out=x.detach())" if not s.odds(2) else "x.relu_()",
                "x.exponential_ if False else x.neg_()",
            ]
        )
    )


@layer(*ANY)
def save(s: Sketch, x: torch.Tensor) -> None:
    """Begins a residual."""
    name = s.name("h")
    s.saved[name] = x
    s.do(f"{name} = x")


@layer(*ANY)
def residual(s: Sketch, x: torch.Tensor) -> None:
    """Ends one, in one of the ways that fit the two shapes; without a beginning it has a block of its own."""
    fitting = [
        name
        for name, other in s.saved.items()
        if other.shape == x.shape or (other.dim() == x.dim() and other.shape[:1] == x.shape[:1])
    ]
    if not fitting:
        module = s.module(f"nn.Linear({x.shape[-1]}, {x.shape[-1]})")
        s.do(s.one_of([f"x = x + {module}(x)", f"x = x + {module}(x).relu() * 0.5", f"x = {module}(x).add_(x)"]))
        return
    name = s.one_of(fitting)
    other = s.saved[name]
    if other.shape == x.shape:
        s.do(
            s.one_of(
                [
                    f"x = x + {name}",
                    f"x = x * {name}.sigmoid()",
                    f"x += {name}",
                    f"x = torch.cat([x, {name}], {s.dim(x)})",
                    f"x = torch.stack([x, {name}], {s.int(0, x.dim())})",
                    f"x = torch.where({name} > 0, x, {name})",
                ]
            )
        )
    else:
        different = [dim for dim in range(x.dim()) if other.shape[dim] != x.shape[dim]]
        s.do(f"x = torch.cat([{name}, x], {different[0]})" if len(different) == 1 else f"x = x + {name}.mean()")


@layer(*ANY)
def dropout(s: Sketch, x: torch.Tensor) -> None:
    """Of probability 0: random numbers differ between devices."""
    s.do(f"x = {s.module(s.one_of(['nn.Dropout(0.0)', 'nn.AlphaDropout(0.0)']))}(x)")
