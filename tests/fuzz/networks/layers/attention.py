"""Attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..language import layer

if TYPE_CHECKING:
    from ..sketch import Sketch

CAUSAL = "torch.ones({0}, {0}, dtype=torch.bool, device=x.device).triu(1)"
MASKED = ['float("-inf")', "-1e9"]


@layer(3)
def multihead_attention(s: Sketch, x: torch.Tensor) -> None:
    n, length, width = x.shape
    batch_first = s.odds(2)
    if not batch_first:
        n, length = length, n
    options = s.one_of(["", "", ", bias=False", ", add_bias_kv=True", ", add_zero_attn=True"])
    module = s.module(f"nn.MultiheadAttention({width}, {s.divisor(width)}{options}, batch_first={batch_first})")
    call = s.one_of(["", ", need_weights=False", ", average_attn_weights=False"])
    if s.odds(3):
        call += f", attn_mask={CAUSAL.format(length)}"
        if s.odds(2):
            call += ", is_causal=True"
    elif s.odds(4):
        call += f", key_padding_mask=torch.arange({length}, device=x.device).expand({n}, -1) > {length // 2}"
    query, key = s.one_of([("x", "x"), ("x", "x"), ("x", "x.tanh()"), ("x.flip(0)", "x")])
    s.do(f"x = {module}({query}, {key}, {key}{call})[0]")


@layer(3)
def scaled_dot_product_attention(s: Sketch, x: torch.Tensor) -> None:
    """Heads are views of one projection, as most models have them."""
    n, length, width = x.shape
    heads, size = s.int(1, 2), s.int(1, 3)
    projection = s.module(f"nn.Linear({width}, {3 * heads * size})")
    name = s.name("q")
    kind = s.int(0, 2)
    if kind == 0:
        split = f"{projection}(x).reshape({n}, {length}, 3, {heads}, {size}).permute(2, 0, 3, 1, 4).unbind(0)"
    elif kind == 1:
        split = f"(z.unflatten(-1, ({heads}, {size})).transpose(1, 2) for z in {projection}(x).chunk(3, dim=-1))"
    else:
        split = f"{projection}(x).view({n}, {length}, {heads}, 3 * {size}).transpose(1, 2).split({size}, -1)"
    options = s.one_of(
        [
            "",
            "",
            ", is_causal=True",
            ", scale=0.5",
            f", attn_mask={CAUSAL.format(length)}.logical_not()",
            f", attn_mask={s.parameter(length, length)}",
            f", attn_mask={s.parameter(1, heads, 1, length)}.expand({n}, -1, {length}, -1)",
        ]
    )
    s.do(
        f"{name}, {name}k, {name}v = {split}",
        f"x = F.scaled_dot_product_attention({name}, {name}k, {name}v{options})",
        s.one_of(["x = x.transpose(1, 2).flatten(2)", f"x = x.transpose(1, 2).reshape({n}, {length}, -1)"])
        if not s.odds(4)
        else "x = x.contiguous()",
    )


@layer(3)
def attention_by_hand(s: Sketch, x: torch.Tensor) -> None:
    _, length, width = x.shape
    query, key = s.module(f"nn.Linear({width}, 3)"), s.module(f"nn.Linear({width}, 3, bias=False)")
    name = s.name("a")
    s.do(f"{name} = {query}(x) @ {key}(x).transpose(-2, -1) * {s.one_of([0.5, 1])}")
    if s.odds(2):
        s.do(f"{name} = {name}.masked_fill({CAUSAL.format(length)}, {s.one_of(MASKED)})")
    s.do(f"x = F.dropout({name}.softmax(-1), 0.0) @ x")


@layer(3)
def transformer_layer(s: Sketch, x: torch.Tensor) -> None:
    width = x.shape[-1]
    options = f", norm_first={s.odds(2)}, activation='{s.one_of(['relu', 'gelu'])}', batch_first={s.odds(2)}"
    make = f"{width}, {s.divisor(width)}, dim_feedforward={s.int(1, 5)}, dropout=0.0{options}"
    if s.odds(3):
        s.do(f"x = {s.module(f'nn.TransformerDecoderLayer({make})')}(x, x.tanh())")
    else:
        s.do(f"x = {s.module(f'nn.TransformerEncoderLayer({make})')}(x)")


@layer(4)
def squeeze_and_excitation(s: Sketch, x: torch.Tensor) -> None:
    channels, inner = x.shape[1], s.int(1, 3)
    first, second = s.module(f"nn.Conv2d({channels}, {inner}, 1)"), s.module(f"nn.Conv2d({inner}, {channels}, 1)")
    mean = s.one_of(["F.adaptive_avg_pool2d(x, 1)", "x.mean((2, 3), keepdim=True)", "x.amax((2, 3), keepdim=True)"])
    s.do(f"x = x * {second}({first}({mean}).relu()).sigmoid()")
