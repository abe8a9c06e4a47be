"""Marks on the inputs and outputs of one use of a pattern."""

from __future__ import annotations

import uuid
from typing import Any

import torch

from . import xla_marker

__all__ = ["StableHLOCompositeBuilder"]


class StableHLOCompositeBuilder:
    """Marks the tensors that a part of a program begins and ends with. Each method is called once.

    Args:
        name: of the pattern.
        attr: of it; see `xla_marker.serialize_composite_attr`.
    """

    def __init__(self, name: str, attr: dict[str, Any] | None = None):
        self.name, self.attr, self.id = name, attr, uuid.uuid4().hex

    def mark_inputs(self, *tensors: torch.Tensor) -> Any:
        """The tensors, marked as inputs: the part computes with these. One tensor, or a tuple of several.

        Raises:
            ValueError: one is no tensor.
        """
        return self._mark(tensors, True)

    def mark_outputs(self, *tensors: torch.Tensor) -> Any:
        """The tensors, marked as outputs: what follows computes with these. One tensor, or a tuple of several.

        Raises:
            ValueError: one is no tensor, or the attributes are none.
        """
        return self._mark(tensors, False)

    def _mark(self, tensors: tuple[torch.Tensor, ...], is_input: bool) -> Any:
        attr = None if is_input else xla_marker.serialize_composite_attr(self.attr)
        found = []
        for position, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"StableHLOCompositeBuilder: expected tensors, got {tensor!r}")
            found.append(xla_marker.mark_tensor(tensor, self.name, position, self.id, is_input, attr))
        return found[0] if len(found) == 1 else tuple(found)
