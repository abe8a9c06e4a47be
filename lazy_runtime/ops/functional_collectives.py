"""Torch's functional collectives (`torch.distributed._functional_collectives`), which compiled functions, DTensor and
FSDP are made of. Every result is there when it is read, so there is nothing to wait for."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
import torch.distributed._functional_collectives  # defines some of the operators

from . import collectives
from .registry import op

_dist: Any = torch.distributed

#: torch's names of the reductions
_KINDS = {"sum": "sum", "avg": "sum", "product": "mul", "min": "min", "max": "max", "band": "and", "bor": "or"}
_KINDS |= {"bxor": "xor"}


def _size(group: Any) -> int:
    """How many ranks a group has: all of the job's (`distributed/xla_backend.py`)."""
    if isinstance(group, str):
        group = _dist.distributed_c10d._resolve_process_group(group)
    return group.size()


def _reduction(name: str, group: Any) -> tuple[str, float, list[int], int]:
    size = _size(group)
    return _KINDS[name.lower()], 1.0 / size if name.lower() == "avg" else 1.0, [], size


def _empty(x: torch.Tensor, *, times: int = 1, over: int = 1) -> torch.Tensor:
    return torch.empty([x.shape[0] * times // over, *x.shape[1:]], dtype=x.dtype, device=x.device)


@op("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd", infer=torch.empty_like)
def wait_tensor(x):
    return x


@op("_c10d_functional::all_reduce", collective=True, infer=lambda x, kind, group: torch.empty_like(x))
def all_reduce(x, kind, group):
    return collectives.all_reduce([x], *_reduction(kind, group))[0]


@op(
    "_c10d_functional::all_reduce_coalesced",
    collective=True,
    infer=lambda tensors, kind, group: [torch.empty_like(x) for x in tensors],
)
def all_reduce_coalesced(tensors, kind, group):
    return collectives.all_reduce(tensors, *_reduction(kind, group))


@op(
    "_c10d_functional::all_gather_into_tensor",
    collective=True,
    infer=lambda x, size, group: _empty(x, times=size),
)
def all_gather_into_tensor(x, size, group):
    return collectives.all_gather(x, 0, [], _size(group))


@op(
    "_c10d_functional::all_gather_into_tensor_coalesced",
    collective=True,
    infer=lambda tensors, size, group: [_empty(x, times=size) for x in tensors],
)
def all_gather_into_tensor_coalesced(tensors, size, group):
    return [all_gather_into_tensor(x, size, group) for x in tensors]


@op(
    "_c10d_functional::reduce_scatter_tensor",
    collective=True,
    infer=lambda x, kind, size, group: _empty(x, over=size),
)
def reduce_scatter_tensor(x, kind, size, group):
    kind, scale, members, size = _reduction(kind, group)
    return collectives.reduce_scatter(x, kind, scale, 0, members, size)


@op(
    "_c10d_functional::reduce_scatter_tensor_coalesced",
    collective=True,
    infer=lambda tensors, kind, size, group: [_empty(x, over=size) for x in tensors],
)
def reduce_scatter_tensor_coalesced(tensors, kind, size, group):
    return [reduce_scatter_tensor(x, kind, size, group) for x in tensors]


def _infer_all_to_all(x: torch.Tensor, output_sizes: list[int], input_sizes: list[int], group: Any) -> torch.Tensor:
    if len({*output_sizes, *input_sizes}) > 1:
        raise NotImplementedError(
            f"all_to_all_single with parts of several sizes on xla: {output_sizes} from {input_sizes}"
        )
    return torch.empty_like(x)


@op("_c10d_functional::all_to_all_single", collective=True, infer=_infer_all_to_all)
def all_to_all_single(x, output_sizes, input_sizes, group):
    return collectives.all_to_all(x, 0, 0, [], _size(group))


@op("_c10d_functional::broadcast", collective=True, infer=lambda x, source, group: torch.empty_like(x))
def broadcast(x, source, group):
    return collectives.collective_broadcast([x], source, [], _size(group))[0]
