"""Collectives by the names of the C++ module.

There, a token that one collective gives and the next takes keeps them in order. Here they are in the order in which
they are recorded, so a token is an object without a meaning that goes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..core import collectives
from ..core import xla_model as xm

__all__ = [
    "_get_all_reduce_token",
    "_set_all_reduce_token",
    "_xla_all_gather",
    "_xla_all_gather_coalesced",
    "_xla_all_gather_coalesced_out",
    "_xla_all_gather_out",
    "_xla_all_reduce",
    "_xla_all_reduce_inplace",
    "_xla_all_to_all",
    "_xla_collective_permute",
    "_xla_recv",
    "_xla_reduce_scatter",
    "_xla_reduce_scatter_coalesced",
    "_xla_reduce_scatter_coalesced_out",
    "_xla_reduce_scatter_out",
    "_xla_send",
]

_Tensors = Sequence[torch.Tensor]
_Groups = Sequence[Sequence[int]]
_tokens: dict[str, Any] = {}


def _get_all_reduce_token(device: str = "") -> Any:
    """The token of a device."""
    return _tokens.setdefault(device, object())


def _set_all_reduce_token(device: str, token: Any) -> None:
    """Sets the token of a device; None for a new one."""
    _tokens.pop(device, None)
    if token is not None:
        _tokens[device] = token


def _xla_all_reduce(
    reduce_type: str, input: torch.Tensor, scale: float, groups: _Groups = (), pin_layout: bool = True
) -> torch.Tensor:
    """See `xm.all_reduce` of one tensor."""
    found: Any = collectives.all_reduce(reduce_type, input, scale, groups)
    return found


def _xla_all_reduce_inplace(
    reduce_type: str, tensors: _Tensors, scale: float, groups: _Groups = (), pin_layout: bool = True
) -> None:
    """See `xm.all_reduce` of several, which are written to."""
    collectives.all_reduce(reduce_type, list(tensors), scale, groups)


def _xla_all_gather(
    input: torch.Tensor,
    dim: int,
    shard_count: int,
    groups: _Groups = (),
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> torch.Tensor:
    """See `xm.all_gather`."""
    return _gathered(input, None, dim, shard_count, groups)


def _gathered(given: Any, output: Any, dim: int, shard_count: int, groups: _Groups) -> Any:
    size = collectives.members(groups)[1]
    if shard_count != size:
        raise ValueError(f"shard_count: expected {size}, as many as there are ranks in a group, got {shard_count}")
    return collectives.all_gather(given, dim, groups, output)


def _xla_all_gather_out(
    output: torch.Tensor,
    input: torch.Tensor,
    token: Any,
    dim: int,
    shard_count: int,
    groups: _Groups = (),
    pin_layout: bool = True,
) -> Any:
    """The same into an output; returns the token."""
    _gathered(input, output, dim, shard_count, groups)
    return token


def _xla_all_gather_coalesced(
    tensors: _Tensors, token: Any, dim: int, shard_count: int, groups: _Groups = (), pin_layout: bool = True
) -> list[Any]:
    """The same of several tensors; returns the results and, after them, the token."""
    return [*_gathered(list(tensors), None, dim, shard_count, groups), token]


def _xla_all_gather_coalesced_out(
    outputs: _Tensors,
    inputs: _Tensors,
    token: Any,
    dim: int,
    shard_count: int,
    groups: _Groups = (),
    pin_layout: bool = True,
) -> Any:
    """The same into outputs; returns the token."""
    _gathered(list(inputs), list(outputs), dim, shard_count, groups)
    return token


def _xla_reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: _Groups = (),
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> tuple[torch.Tensor, Any]:
    """See `xm.reduce_scatter`; returns the result and the token."""
    return collectives.reduce_scatter(reduce_type, input, scale, scatter_dim, shard_count, groups), token


def _xla_reduce_scatter_out(
    reduce_type: str,
    output: torch.Tensor,
    input: torch.Tensor,
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: _Groups = (),
    pin_layout: bool = True,
) -> Any:
    """The same into an output; returns the token."""
    collectives.reduce_scatter(reduce_type, input, scale, scatter_dim, shard_count, groups, output)
    return token


def _xla_reduce_scatter_coalesced(
    reduce_type: str,
    inputs: _Tensors,
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: _Groups = (),
    pin_layout: bool = True,
) -> list[Any]:
    """The same of several tensors; returns the results and, after them, the token."""
    found = collectives.reduce_scatter(reduce_type, list(inputs), scale, scatter_dim, shard_count, groups)
    return [*found, token]


def _xla_reduce_scatter_coalesced_out(
    reduce_type: str,
    outputs: _Tensors,
    inputs: _Tensors,
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: _Groups = (),
    pin_layout: bool = True,
) -> Any:
    """The same into outputs; returns the token."""
    collectives.reduce_scatter(reduce_type, list(inputs), scale, scatter_dim, shard_count, groups, list(outputs))
    return token


def _xla_all_to_all(
    input: torch.Tensor,
    token: Any,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: _Groups = (),
    pin_layout: bool = True,
) -> tuple[torch.Tensor, Any]:
    """See `xm.all_to_all`; returns the result and the token."""
    return collectives.all_to_all(input, split_dimension, concat_dimension, split_count, groups), token


def _xla_collective_permute(
    input: torch.Tensor, token: Any, pairs: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, Any]:
    """See `xm.collective_permute`; returns the result and the token."""
    return collectives.collective_permute(input, pairs), token


def _xla_send(input: torch.Tensor, token: Any, channel_id: int) -> Any:
    """See `xm.send`, which raises."""
    return xm.send(input, channel_id), token


def _xla_recv(output: torch.Tensor, token: Any, channel_id: int) -> Any:
    """See `xm.recv`, which raises."""
    return xm.recv(output, channel_id), token
