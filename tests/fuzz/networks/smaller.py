"""Smaller programs than one that fails: without layers, and with plainer data, losses and optimizers."""

from __future__ import annotations

from collections.abc import Iterator

from .language import Gene, Program
from .sketch import write

_PLAIN = {"loss": Gene("plain", 10), "optimizer": Gene("SGD", 0)}


def smaller(program: Program) -> Iterator[Program]:
    """Programs that are a little smaller, those that leave out most first. A layer's details are drawn again, to fit
    the tensor that it meets then.
    """
    recipe = program.recipe
    if recipe is None:
        return
    layers, seen = recipe.layers, {program.source}
    candidates = []
    if len(layers) > 3:
        middle = len(layers) // 2
        candidates += [recipe._replace(layers=layers[:middle]), recipe._replace(layers=layers[middle:])]
    candidates += [recipe._replace(layers=layers[:i] + layers[i + 1 :]) for i in reversed(range(len(layers)))]
    options = recipe.options
    candidates += [recipe._replace(options=options[:i] + options[i + 1 :]) for i in range(len(options))]
    candidates += [recipe._replace(**{name: gene}) for name, gene in _PLAIN.items()]
    for candidate in candidates:
        shorter = write(candidate)
        if shorter.source not in seen and len(shorter.source) <= len(program.source):
            seen.add(shorter.source)
            yield shorter


def traits(program: Program) -> list[str]:
    """What a program consists of: of those with the same traits that fail alike, one is reported."""
    return sorted({gene.name for gene in program.recipe.layers}) if program.recipe else []
