"""Writes the source of a recipe's program, layer by layer, and runs it on the CPU while it grows."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from . import layers as _layers  # noqa: F401, registers the layers
from .language import LAYERS, Gene, Program, Recipe, Unfit, names_for
from .optimizers import OPTIMIZERS, OPTIONS, SCHEDULERS
from .problems import DATA, LOSSES

LARGEST = 1500  # elements of a tensor between two layers
HIGHEST = 1e3  # magnitude of a tensor between two layers
DEEPEST = 9  # layers of a network

HEADER = """
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
"""


class Sketch:
    """A network in the making.

    Attributes:
        rng: draws the details of the layer that is being written.
        saved: tensors of earlier layers by their variable, for residuals.
        modules: the classes of the modules made so far, by their attribute.
    """

    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.saved: dict[str, torch.Tensor] = {}
        self.modules: dict[str, str] = {}
        self.init: list[str] = []
        self.forward: list[str] = []
        self._made = 0

    # ---- draws

    def odds(self, n: int) -> bool:
        """True once in `n` times."""
        return self.rng.randrange(n) == 0

    def int(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def one_of(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(list(options))

    def dim(self, x: torch.Tensor) -> int:
        """A dimension, counted from either end."""
        return self.int(-x.dim(), x.dim() - 1)

    def divisor(self, number: int) -> int:
        return self.one_of([n for n in range(1, number + 1) if number % n == 0])

    # ---- writes

    def name(self, letter: str) -> str:
        self._made += 1
        return f"{letter}{self._made}"

    def module(self, expression: str) -> str:
        """A submodule; gives the expression that names it."""
        name = self.name("m")
        self.init.append(f"self.{name} = {expression}")
        self.modules[name] = expression
        return f"self.{name}"

    def parameter(self, *shape: int) -> str:
        name = self.name("p")
        self.init.append(f"self.{name} = nn.Parameter(torch.randn({shape}))")
        return f"self.{name}"

    def buffer(self, value: str) -> str:
        name = self.name("b")
        self.init.append(f'self.register_buffer("{name}", {value})')
        return f"self.{name}"

    def do(self, *statements: str) -> None:
        self.forward.extend(statements)

    def prune(self) -> None:
        """Leaves out parameters that a layer has made for an alternative that it did not choose."""
        forward = "\n".join(self.forward)
        made = lambda line: re.findall(r"^self\.(\w+) = |register_buffer\(\"(\w+)\"", line)[0]  # noqa: E731
        self.init = [line for line in self.init if re.search(rf"self\.{''.join(made(line))}\b", forward)]

    # ---- trials

    def copy(self) -> Sketch:
        other = Sketch()
        other.modules, other.init, other.forward = dict(self.modules), [*self.init], [*self.forward]
        other.saved, other._made = dict(self.saved), self._made
        return other

    def trial(self, x: torch.Tensor) -> torch.Tensor:
        """The network's result on the CPU.

        Raises:
            Unfit: if the network raises, forward or backward, or its result is too large or not finite.
        """
        torch.manual_seed(0)
        module = torch.nn.Module()
        scope = {"self": module, "x": x, "torch": torch, "nn": torch.nn, "F": torch.nn.functional}
        try:
            exec("\n".join(self.init), scope)
            module.double()
            exec("\n".join(self.forward), scope)
            y: Any = scope["x"]
            if not isinstance(y, torch.Tensor) or y.dtype is not torch.float64:
                raise Unfit("no float64 tensor")
            seen = y.detach().clone(), {name: scope[name] for name in self.saved}
            if y.requires_grad:
                y.square().sum().backward()
        except Unfit:
            raise
        except Exception as error:
            raise Unfit(f"{type(error).__name__}: {error}") from error
        y = seen[0]
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        if (
            not 0 < y.numel() <= LARGEST
            or not 1 <= y.dim() <= 5
            or not all(z.isfinite().all() for z in (y, *gradients))
        ):
            raise Unfit("result")
        if float(y.abs().max()) > HIGHEST or any(float(g.abs().max()) > 1e6 for g in gradients):
            raise Unfit("magnitude")
        self.saved = seen[1]
        return y


def grown(recipe: Recipe, draw: random.Random | None = None) -> tuple[Recipe, Sketch, torch.Tensor, str]:
    """The recipe with the layers that fit, the sketch of them, their result and the source of the input.

    Args:
        draw: draws more layers; None for the recipe's own only.
    """
    sketch = Sketch()
    sketch.rng.seed(recipe.data.seed)
    source, x = DATA[recipe.data.name](sketch)
    y = sketch.trial(x.clone()) if sketch.forward else x
    kept: list[Gene] = []

    def grow(gene: Gene) -> None:
        nonlocal sketch, y
        function, ranks = LAYERS[gene.name]
        if y.dim() not in ranks:
            return
        larger = sketch.copy()
        larger.rng.seed(gene.seed)
        try:
            function(larger, y)
            larger.prune()
            y = larger.trial(x.clone())
        except Unfit:
            return
        except Exception as error:
            raise RuntimeError(f"layer {gene.name} cannot be drawn: {error}") from error
        sketch = larger
        kept.append(gene)

    for gene in recipe.layers:
        grow(gene)
    if draw is not None:
        count = draw.randint(2, DEEPEST)
        for _ in range(4 * count):
            if len(kept) < count:
                grow(Gene(draw.choice(names_for(y)), draw.randrange(10**6)))
    return recipe._replace(layers=tuple(kept)), sketch, y, source


def write(recipe: Recipe, draw: random.Random | None = None) -> Program:
    """The program of a recipe.

    Args:
        draw: draws layers and options; None for the recipe's own only.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe, sketch, y, source = grown(recipe, draw)
    if not any("nn.Parameter" in line or "nn." in line for line in sketch.init):
        sketch.init.append("self.scale = nn.Parameter(torch.ones(1))")
        sketch.do("x = x * self.scale")
    rng = random.Random(recipe.loss.seed)
    target, loss = LOSSES[recipe.loss.name](rng, y)
    options = {gene.name: OPTIONS[gene.name](random.Random(gene.seed)) for gene in recipe.options}
    scheduler = next((gene for gene in recipe.options if gene.name == "schedule"), None)
    training = "self.eval()" if "eval" in options else ""
    lines = [
        HEADER.strip(),
        "",
        "",
        "class Net(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *(f"        {line}" for line in (*sketch.init, training) if line),
        "",
        "    def forward(self, x):",
        *(f"        {line}" for line in "\n".join(sketch.forward).splitlines()),
        "        return x",
        "",
        "",
        "def batch(number):",
        "    torch.manual_seed(1 + number)",
        *(f"    {line}" for line in source.splitlines()),
        f"    return x, {target}",
        "",
        "",
        "def loss_of(y, target):",
        *(f"    {line}" for line in loss.splitlines()),
        "",
        "",
        "def optimizer_of(model, device):",
        *(
            f"    {line}"
            for line in OPTIMIZERS[recipe.optimizer.name](random.Random(recipe.optimizer.seed)).splitlines()
        ),
        "",
        "",
        "def scheduler_of(optimizer):",
        f"    return {SCHEDULERS(random.Random(scheduler.seed)) if scheduler else None}",
        "",
        "",
        "def backward(model, x, target):",
        "    loss = loss_of(model(x), target)",
        "    loss.backward()",
        *(f"    {line}" for line in options.get("accumulate", "").splitlines()),
        "    return loss",
        "",
        "",
        "def step(model, optimizer, x, target):",
        f"    {options.get('zero', 'optimizer.zero_grad()')}",
        "    loss = backward(model, x, target)",
        *(f"    {line}" for line in options.get("clip", "").splitlines()),
        "    optimizer.step()",
        "    return loss",
    ]
    return Program("\n".join(lines) + "\n", recipe)


def generate(seed: int, count: int) -> list[Program]:
    """So many programs, the same ones for the same seed."""
    found = []
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        gene = lambda table: Gene(rng.choice(list(table)), rng.randrange(10**6))  # noqa: B023, E731
        options = tuple(Gene(name, rng.randrange(10**6)) for name in OPTIONS if rng.randrange(5) == 0)
        recipe = Recipe(gene(DATA), (), gene(LOSSES), gene(OPTIMIZERS), options)
        found.append(write(recipe, rng))
    return found
