"""Torch's functional collectives (`torch.distributed._functional_collectives`) as ours: compiled functions and DTensor
are made of them.

They name their group, and groups are made and destroyed under the same names. So they are recorded as operators on the
ranks that a group has. Every result is there when it is read, so there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from ..compat.distributed import functional_collectives as functional_collectives  # defines some of the operators
from ..compat.distributed import resolve_process_group
from ..ops import registry
from ..ops.collective import collectives
from ..processes import process_job
from ..recording import dispatch
from . import subclasses

_dist: Any = torch.distributed
_ops: Any = torch.ops.lazy_runtime


def _members(group: Any) -> tuple[list[int], int]:
    """A group as our operators take it."""
    ranks = _ranks(group)
    return process_job.members(ranks), len(ranks)


def _ranks(group: Any) -> list[int]:
    if isinstance(group, str):
        group = resolve_process_group(group)
    return _dist.get_process_group_ranks(group)


def _handler(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function with the arguments of the operator of that name."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatch.handler(name)(lambda func, args, kwargs: function(*args, **kwargs))
        target = registry.overload(name)
        if target is not None:
            subclasses.send_back(target)
        return function

    return register


@registry.op("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd", infer=torch.empty_like)
def wait_tensor(x):
    return x


subclasses.send_back(torch.ops._c10d_functional.wait_tensor.default)


@_handler("_c10d_functional::all_reduce")
def _all_reduce(tensor: torch.Tensor, kind: str, group: Any) -> torch.Tensor:
    return _all_reduce_coalesced([tensor], kind, group)[0]


@_handler("_c10d_functional::all_reduce_coalesced")
def _all_reduce_coalesced(tensors: list[torch.Tensor], kind: str, group: Any) -> list[torch.Tensor]:
    members, size = _members(group)
    return _ops.all_reduce(tensors, *collectives.reduction_of_torch(kind.upper(), size, tensors), members, size)


@_handler("_c10d_functional::all_gather_into_tensor")
def _all_gather_into_tensor(tensor: torch.Tensor, size: int, group: Any) -> torch.Tensor:
    return _ops.all_gather(tensor if tensor.dim() else tensor.unsqueeze(0), 0, *_members(group))


@_handler("_c10d_functional::all_gather_into_tensor_coalesced")
def _all_gather_into_tensor_coalesced(tensors: list[torch.Tensor], size: int, group: Any) -> list[torch.Tensor]:
    return [_all_gather_into_tensor(tensor, size, group) for tensor in tensors]


@_handler("_c10d_functional::reduce_scatter_tensor")
def _reduce_scatter_tensor(tensor: torch.Tensor, kind: str, size: int, group: Any) -> torch.Tensor:
    members, size = _members(group)
    reduction = collectives.reduction_of_torch(kind.upper(), size, [tensor])
    return _ops.reduce_scatter(tensor, *reduction, 0, members, size)


@_handler("_c10d_functional::reduce_scatter_tensor_coalesced")
def _reduce_scatter_tensor_coalesced(
    tensors: list[torch.Tensor], kind: str, size: int, group: Any
) -> list[torch.Tensor]:
    return [_reduce_scatter_tensor(tensor, kind, size, group) for tensor in tensors]


@_handler("_c10d_functional::all_to_all_single")
def _all_to_all_single(
    tensor: torch.Tensor, output_sizes: list[int], input_sizes: list[int], group: Any
) -> torch.Tensor:
    ranks = _ranks(group)
    place = ranks.index(process_job.place().rank)
    # equal sizes here do not mean that the others, who have to do the same, have equal ones too
    return _ops.all_to_all_parts(tensor, output_sizes, input_sizes, process_job.members(ranks), place)


@_handler("_c10d_functional::broadcast")
def _broadcast(tensor: torch.Tensor, source: int, group: Any) -> torch.Tensor:
    return _ops.collective_broadcast([tensor], source, *_members(group))[0]


@_handler("_dtensor::shard_dim_alltoall")
def _shard_dim_alltoall(tensor: torch.Tensor, gather_dim: int, shard_dim: int, group: Any) -> torch.Tensor:
    return _ops.all_to_all(tensor, shard_dim, gather_dim, *_members(group))
