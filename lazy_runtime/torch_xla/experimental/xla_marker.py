"""Marks on tensors: which are the inputs and outputs of a part of a program, and what that is called.

A mark is the identity. The pending graph and its reports show it (`xla::mark_tensor`); StableHLO does not have it yet.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "BoundaryMetadata",
    "BoundaryMetadataSerializer",
    "deserialize_composite_attr",
    "mark_tensor",
    "mark_tensor_xla",
    "serialize_composite_attr",
]


@dataclass
class BoundaryMetadata:
    """What a mark says.

    Attributes:
        name: of the pattern.
        pos: the tensor's number among the pattern's inputs, or outputs.
        id: of this use of the pattern.
        is_input: whether it is an input.
        attr: of the pattern; outputs have it.
    """

    name: str
    pos: int
    id: str
    is_input: bool = True
    attr: dict[str, Any] | None = None


class BoundaryMetadataSerializer(json.JSONEncoder):
    """Writes marks: `json.dumps(metadata, cls=BoundaryMetadataSerializer)`."""

    def default(self, obj: Any) -> Any:  # type: ignore[override]
        """A dataclass as its fields."""
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            return dataclasses.asdict(obj)
        return super().default(obj)


def serialize_composite_attr(attr: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...] | None:
    """A pattern's attributes as `mark_tensor` takes them.

    Raises:
        ValueError: a name is no string, or a value no string, number, bool, or list of numbers or bools of one type.
    """
    if attr is None:
        return None
    if not isinstance(attr, Mapping):
        raise ValueError(f"Composite attr must be a Python dictionary, got {attr!r}")
    for name, value in attr.items():
        if not isinstance(name, str):
            raise ValueError(f"Composite attr name must be a Python str, got {name!r}")
        is_list = isinstance(value, list | tuple)
        kinds = {type(each) for each in value} if is_list else {type(value)}
        if len(kinds) != 1 or not kinds <= ({int, float, bool} if is_list else {str, int, float, bool}):
            raise ValueError(
                f"Composite attr value of {name!r} must be a str, float, int, bool or a list of one type: {value!r}"
            )
    return tuple(attr.items())


def deserialize_composite_attr(attr: Sequence[tuple[str, Any]] | None) -> dict[str, Any] | None:
    """Undoes `serialize_composite_attr`."""
    return None if attr is None else dict(attr)


_library = torch.library.Library("xla", "FRAGMENT")
_library.define("mark_tensor(Tensor x, str name, int pos, str id, bool is_input, Any? attr=None) -> Tensor")


def mark_tensor(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: Sequence[tuple[str, Any]] | None = None
) -> torch.Tensor:
    """`torch.ops.xla.mark_tensor`: the tensor, marked as an input or output of a pattern; elsewhere than on xla, as it
    is.

    Args:
        name, pos, id, is_input: see `BoundaryMetadata`.
        attr: from `serialize_composite_attr`.
    """
    return torch.ops.xla.mark_tensor(x, name, pos, id, is_input, attr)


def mark_tensor_xla(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: Sequence[tuple[str, Any]] | None = None
) -> torch.Tensor:
    """The same for a tensor on xla.

    Raises:
        ValueError: the attributes are none.
    """
    from ...functions import jax_function

    metadata = BoundaryMetadata(name, pos, id, is_input, deserialize_composite_attr(attr))
    serialize_composite_attr(metadata.attr)
    text = json.dumps(metadata, cls=BoundaryMetadataSerializer)

    def marked(array: Any) -> list[Any]:
        import jax

        with jax.named_scope(f"{name}.{id}.{'input' if is_input else 'output'}{pos}"):
            return list(jax.lax.optimization_barrier((array,)))

    return jax_function.call(marked, [x], ("mark_tensor", text), "mark_tensor")[0]


_library.impl("mark_tensor", mark_tensor_xla, "XLA")
_library.impl("mark_tensor", lambda x, *args, **kwargs: x.clone(), "CPU")
_library.impl("mark_tensor", lambda x, *args, **kwargs: torch.empty_like(x), "Meta")
torch.library.register_autograd("xla::mark_tensor", lambda ctx, grad: (grad, *[None] * 5), lib=_library)
