"""Writes to a part of an argument, as `cache.index_copy_(2, place, key)` of a language model for each token.

AOTAutograd makes of it a whole new cache, and a copy of that into the argument. XLA cannot write to tensors in torch's
own memory; of these, torch writes the part alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .outputs import Source

aten = torch.ops.aten

#: The part has at most this share of the argument's elements; else torch copies the whole faster.
MOST = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class PartialWrite:
    """What `index_copy_` does to an argument after the run.

    Attributes:
        number: of the argument.
        dim: the dimension that the index is of.
        index: where the index comes from.
        source: where what is written comes from.
    """

    number: int
    dim: int
    index: Source
    source: Source

    @property
    def read(self) -> tuple[Source, Source]:
        """What the write reads: the index, and the part."""
        return self.index, self.source


def written_part(copy: torch.fx.Node) -> tuple[int, torch.fx.Node, torch.fx.Node] | None:
    """The dimension, the index and the part, where a `copy_` into an argument writes a part of it anew.

    Args:
        copy: a node of `aten.copy_` whose target is a placeholder.
    """
    argument, whole = copy.args[:2]
    if copy.users or not isinstance(whole, torch.fx.Node) or whole.target is not aten.index_copy.default:
        return None
    base, dim, index, part = whole.args[:4]
    if base is not argument or not isinstance(index, torch.fx.Node) or not isinstance(part, torch.fx.Node):
        return None
    sizes = [_numel(node) for node in (argument, part)]
    if None in sizes or sizes[1] > MOST * sizes[0]:  # type: ignore
        return None
    return dim, index, part  # type: ignore[return-value]


def _numel(node: Any) -> int | None:
    """How many elements a node has; none where that is not known, or symbolic."""
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor) or not all(type(size) is int for size in fake.shape):
        return None
    return fake.numel()
