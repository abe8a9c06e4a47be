"""`scan_layers`: layers of one structure as one loop over their stacked parameters, compiled once for all."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from functorch.compile import default_partition
from torch import nn

from .scan import scan

__all__ = ["scan_layers"]

#: Of pure layers, the function that `scan` calls, so that it is traced once: by the ids of the partition function and
#: of the first layer, for as long as that lives.
_ONE_LAYER_CACHE: dict[tuple[int, int], Callable[..., Any]] = {}


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: Any,
    partition_fn: Callable[..., Any] = default_partition,
    is_layer_pure: bool = False,
) -> Any:
    """What the layers give, each applied to what the one before gave: a loop of the program over the layers.

    Args:
        layers: modules of one structure, with parameters and buffers of the same names, shapes and dtypes. Their
            forward is the first one's; what they write to buffers is refused.
        input_data: a tensor, or a tree of tensors that every layer takes and gives in the same shapes. A tuple is the
            arguments of a layer.
        partition_fn: see `scan`.
        is_layer_pure: the layer's forward depends on its parameters, buffers and input alone, so that it need not be
            traced again for the same shapes.

    Returns:
        the last layer's output; the input itself if there is no layer.

    Raises:
        ValueError: the layers differ in the names, shapes or dtypes of their parameters or buffers.
    """
    modules = list(layers)
    if not modules:
        return input_data
    states = [_state(module) for module in modules]
    for number, state in enumerate(states[1:], 1):
        _require_same(states[0], state, number)
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    carry, _ = scan(
        _one_layer(modules[0], partition_fn, is_layer_pure), input_data, stacked, partition_fn, is_layer_pure
    )
    return carry


def _one_layer(layer: nn.Module, partition_fn: Callable[..., Any], is_pure: bool) -> Callable[..., Any]:
    key = id(partition_fn), id(layer)
    if is_pure and key in _ONE_LAYER_CACHE:
        return _ONE_LAYER_CACHE[key]
    reference = weakref.ref(layer)

    def apply(carry: Any, state: dict[str, torch.Tensor]) -> tuple[Any, None]:
        module: Any = reference()  # it lives: `scan_layers` has it
        return torch.func.functional_call(module, state, carry), None

    if is_pure:
        _ONE_LAYER_CACHE[key] = apply
        weakref.finalize(layer, _ONE_LAYER_CACHE.pop, key, None)  # another object may get its id
    return apply


def _state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _require_same(first: dict[str, torch.Tensor], other: dict[str, torch.Tensor], number: int) -> None:
    strange = sorted(first.keys() ^ other.keys())
    if strange:
        raise ValueError(f"scan_layers: mismatched keys, {strange[0]!r} is in one of layer 0 and layer {number} alone")
    for name, tensor in first.items():
        looks = [(list(each.shape), each.dtype) for each in (tensor, other[name])]
        if looks[0] != looks[1]:
            raise ValueError(
                f"scan_layers: Shape mismatch of {name!r}: {looks[0][0]} of {looks[0][1]} in layer 0, {looks[1][0]} of "
                f"{looks[1][1]} in layer {number}"
            )
