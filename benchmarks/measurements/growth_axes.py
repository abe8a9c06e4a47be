"""Axes along which work grows, and the work of each size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention, softmax

from .decoder_only import Config, DecoderOnlyModel

#: Elements of the tensor that is written to. It has room for the most writes, so that its own size does not grow.
WRITTEN = 16_384


class Work(NamedTuple):
    """A function and its calls, on the CPU.

    Attributes:
        function: a module or a function of tensors.
        calls: the arguments of each call. A sync follows each on the lazy device.
    """

    function: Callable[..., torch.Tensor]
    calls: Sequence[tuple[torch.Tensor, ...]]


class Axis(NamedTuple):
    """A size that grows.

    Attributes:
        title: what grows, and in what.
        sizes: in increasing order.
        quick: small ones, for tests.
        make: makes the work of a size.
        run_exponent: the exponent that the run time has by nature.
    """

    title: str
    sizes: Sequence[int]
    quick: Sequence[int]
    make: Callable[[int], Work]
    run_exponent: float = 1.0


def _depth(layers: int) -> Work:
    model: Any = DecoderOnlyModel(Config(128, layers, 4, 2, 256, 100)).eval()
    return Work(model, [(torch.randint(0, 100, (1, 32)),)])


def _sequence(tokens: int) -> Work:
    query, key, value = (torch.randn(1, 8, tokens, 64) for _ in range(3))
    # a function of its own: Dynamo needs Python code
    return Work(lambda *tensors: scaled_dot_product_attention(*tensors), [(query, key, value)])


def _batch(rows: int) -> Work:
    model: Any = DecoderOnlyModel(Config(256, 2, 8, 4, 1024, 1000)).eval()
    return Work(model, [(torch.randint(0, 1000, (rows, 64)),)])


def _writes(count: int) -> Work:
    def write(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        for i in range(count):
            y[i : i + 2] += 1
        return y

    return Work(write, [(torch.zeros(WRITTEN),)])


def _shapes(count: int) -> Work:
    def function(x: torch.Tensor) -> torch.Tensor:
        return softmax(layer_norm(gelu(x @ x.mT), (x.shape[0],)), -1)

    # small and large ones alternate, so that the mean size does not grow with the count
    return Work(function, [(torch.randn(64 + 37 * number % 64, 64),) for number in range(count)])


AXES = {
    "depth": Axis("decoder layers, forward pass over 32 tokens", (6, 12, 24, 48), (1, 2, 3), _depth),
    "sequence": Axis(
        "tokens of attention, 8 heads of 64 features",
        (128, 256, 512, 1024, 2048, 4096, 8192),
        (16, 32, 64),
        _sequence,
        run_exponent=2.0,
    ),
    "batch": Axis(
        "sequences of 64 tokens in a decoder of 2 layers, forward pass", (1, 2, 4, 8, 16, 32, 64), (1, 2, 3), _batch
    ),
    "writes": Axis("writes through views before one sync", (100, 300, 1000, 3000, 10_000), (5, 10, 20), _writes),
    "shapes": Axis("distinct shapes of one function", (1, 2, 4, 8, 16, 32, 64), (1, 2, 3), _shapes),
}
