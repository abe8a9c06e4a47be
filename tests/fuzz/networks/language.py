"""What a program of the network fuzzer is: the source of a model, its data, its loss and its optimizer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

_numbers = itertools.count()


class Gene(NamedTuple):
    """One drawn choice. The seed draws its details again, to fit the tensor that it then meets."""

    name: str
    seed: int


class Recipe(NamedTuple):
    """The choices that make a program; leaving some out makes a smaller program.

    Attributes:
        data: the input's kind.
        layers: what the input goes through.
        loss: the kind of loss.
        optimizer: the class of optimizer.
        options: further features of the training, such as clipping.
    """

    data: Gene
    layers: tuple[Gene, ...]
    loss: Gene
    optimizer: Gene
    options: tuple[Gene, ...] = ()


class Program(NamedTuple):
    """The Python source of a training.

    Attributes:
        source: defines `Net`, `batch(number)`, `loss_of(y, target)`, `optimizer_of(model, device)`,
            `scheduler_of(optimizer)`, `backward(model, x, target)` and `step(model, optimizer, x, target)`.
        recipe: what the source was written from; None for a source from elsewhere.
    """

    source: str
    recipe: Recipe | None = None

    def __str__(self) -> str:
        return self.source.strip()

    def load(self) -> SimpleNamespace:
        """The names that the source defines.

        Each load has a file name of its own: Dynamo makes sizes symbolic that have changed since it last compiled a
        function of the same place.
        """
        scope: dict[str, Any] = {"__name__": "program"}
        exec(compile(self.source, f"<network {next(_numbers)}>", "exec"), scope)
        return SimpleNamespace(**scope)


class Unfit(Exception):
    """A layer does not fit the tensor that it meets."""


Layer = Callable[..., None]  # (sketch, x): writes the layer's source into the sketch
LAYERS: dict[str, tuple[Layer, tuple[int, ...]]] = {}


def layer(*ranks: int) -> Callable[[Layer], Layer]:
    """Registers a layer by its function's name.

    Args:
        ranks: how many dimensions the layer's input may have.
    """

    def register(function: Layer) -> Layer:
        LAYERS[function.__name__] = function, ranks
        return function

    return register


ANY = (1, 2, 3, 4, 5)


def names_for(x: torch.Tensor) -> list[str]:
    """The layers that take a tensor of this rank."""
    return [name for name, (_, ranks) in LAYERS.items() if x.dim() in ranks]
