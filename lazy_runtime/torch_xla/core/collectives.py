"""PyTorch/XLA's collectives (`xm.all_reduce` and its like), recorded as operators of the pending graph.

Every rank of a job has to come to the same collectives in the same order, with the same shapes, dtypes and groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...common import environment
from ...ops.collective import collectives as operators
from .. import runtime as xr

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"

Groups = Sequence[Sequence[int]] | None


def members(groups: Groups) -> tuple[list[int], int]:
    """Groups as the operators take them: the members of all, and the size of each.

    Raises:
        ValueError: they are of several sizes, or are not all ranks, each in one group.
    """
    world = xr.world_size()
    if not groups:
        return [], world
    flat = [rank for group in groups for rank in group]
    if len({len(group) for group in groups}) > 1:
        raise ValueError(f"groups: expected groups of one size, got {[list(group) for group in groups]}")
    if sorted(flat) != list(range(world)):
        raise ValueError(f"groups: expected each of {world} ranks in one group, got {[list(g) for g in groups]}")
    return flat, len(groups[0])


def _reduction(name: str, *dtypes: torch.dtype) -> str:
    """Names a reduction of these dtypes.

    Raises:
        ValueError: there is no such reduction.
        TypeError: there is none of these dtypes.
    """
    kinds = (REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX)
    if name not in kinds:
        raise ValueError(f"reduce_type: expected one of {', '.join(kinds)}, got {name!r}")
    operators.require_reduction(name, *dtypes)
    return name


def _dim(tensor: torch.Tensor, dim: int, name: str = "dim") -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(f"{name}: {dim} is no dimension of a tensor of {tensor.dim()}")
    return dim % tensor.dim()


def _divides(tensor: torch.Tensor, dim: int, size: int, name: str) -> None:
    if tensor.shape[dim] % size:
        raise ValueError(
            f"{name}: dimension {dim} of {list(tensor.shape)} has {tensor.shape[dim]} elements, which {size} ranks "
            "cannot share equally"
        )


def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | list[torch.Tensor],
    scale: float = 1.0,
    groups: Groups = None,
    cctx: Any = None,
    pin_layout: bool = True,
) -> torch.Tensor | list[torch.Tensor]:
    """The sum, product, least, greatest, ... over the ranks, times `scale`.

    Args:
        reduce_type: `REDUCE_SUM` and its like.
        inputs: one tensor, for which a new one is returned, or a list, whose tensors are written to.
        groups: reduce within each of these groups of ranks; by default one of all.
        cctx, pin_layout: accepted for PyTorch/XLA's sake.

    Raises:
        TypeError: there is no such reduction of a tensor's dtype.
        ValueError: there is no such reduction, or the groups are not all ranks, each in one.
    """
    single = isinstance(inputs, torch.Tensor)
    tensors: list[torch.Tensor] = [inputs] if single else list(inputs)  # type: ignore[list-item]
    kind, (flat, size) = _reduction(reduce_type, *(x.dtype for x in tensors)), members(groups)
    with torch.no_grad():
        if size == 1:
            reduced = [tensor * scale if scale != 1.0 else tensor.clone() for tensor in tensors]
        else:
            reduced = torch.ops.lazy_runtime.all_reduce(tensors, kind, float(scale), flat, size) if tensors else []
        if single:
            return reduced[0]
        for tensor, result in zip(tensors, reduced, strict=True):
            tensor.copy_(result)
    return inputs


def all_gather(
    value: torch.Tensor | list[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """The ranks' tensors side by side along a dimension; of a list, that of each of its tensors.

    Args:
        output: what the result is written to, and which is returned then.
        channel_id, use_global_device_ids, pin_layout: accepted for PyTorch/XLA's sake.
    """
    if not isinstance(value, torch.Tensor):
        outputs = [None] * len(value) if output is None else output
        return [all_gather(each, dim, groups, out) for each, out in zip(value, outputs, strict=True)]
    (flat, size), dim = members(groups), _dim(value, dim)
    with torch.no_grad():
        if size == 1:
            return _into(output, value.clone())
        return _into(output, torch.ops.lazy_runtime.all_gather(value, dim, flat, size))


def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor | list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Each rank's part of the reduction over all, times `scale`: rank n has the n-th of `shard_count` equal parts along
    `scatter_dim`.

    Raises:
        ValueError: `shard_count` is not how many ranks a group has, or does not divide the dimension.
    """
    if not isinstance(input, torch.Tensor):
        outputs = [None] * len(input) if output is None else output
        return [
            reduce_scatter(reduce_type, each, scale, scatter_dim, shard_count, groups, out)
            for each, out in zip(input, outputs, strict=True)
        ]
    kind, (flat, size), dim = (
        _reduction(reduce_type, input.dtype),
        members(groups),
        _dim(input, scatter_dim, "scatter_dim"),
    )
    if shard_count != size:
        raise ValueError(f"shard_count: expected {size}, as many as there are ranks in a group, got {shard_count}")
    _divides(input, dim, size, "scatter_dim")
    with torch.no_grad():
        if size == 1:
            return _into(output, input * scale)
        return _into(output, torch.ops.lazy_runtime.reduce_scatter(input, kind, float(scale), dim, flat, size))


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Cuts the tensor along one dimension into `split_count` parts, sends the n-th to rank n, and puts what has come
    side by side along another one.

    Raises:
        ValueError: `split_count` is not how many ranks a group has, or does not divide the dimension.
    """
    flat, size = members(groups)
    split, concat = _dim(value, split_dimension, "split_dimension"), _dim(value, concat_dimension, "concat_dimension")
    if split_count != size:
        raise ValueError(f"split_count: expected {size}, as many as there are ranks in a group, got {split_count}")
    _divides(value, split, size, "split_dimension")
    with torch.no_grad():
        return value.clone() if size == 1 else torch.ops.lazy_runtime.all_to_all(value, split, concat, flat, size)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """What another rank has: of each pair (source, target), the target gets the source's tensor; who is no target gets
    zeros.

    Raises:
        ValueError: a rank is the source or the target of two pairs, or there is none of that number.
    """
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for name, ranks in (("source", sources), ("target", targets)):
        if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(xr.world_size())):
            raise ValueError(f"pairs: expected each {name} once, of {xr.world_size()} ranks, got {list(pairs)}")
    with torch.no_grad():
        if xr.world_size() == 1:
            return value.clone() if pairs else torch.zeros_like(value)
        return torch.ops.lazy_runtime.collective_permute(value, sources, targets)


def collective_broadcast(
    tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Writes rank `root_ordinal`'s values to the tensors of all; with groups, those of the `root_ordinal`-th member of
    each.

    Raises:
        ValueError: a group has no such member.
    """
    flat, size = members(groups)
    if not 0 <= root_ordinal < size:
        raise ValueError(f"root_ordinal: expected one of {size}, got {root_ordinal}")
    if size == 1 or not tensors:
        return
    with torch.no_grad():
        sent = torch.ops.lazy_runtime.collective_broadcast(tensors, root_ordinal, flat, size)
        for tensor, value in zip(tensors, sent, strict=True):
            tensor.copy_(value)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives every rank the first one's parameters and buffers, and executes that."""
    from ...execution import mark_step

    collective_broadcast([each.detach() for each in (*model.parameters(), *model.buffers())])
    mark_step.mark_step()


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True) -> None:
    """Replaces the gradients of an optimizer's parameters by their means over all ranks.

    Up to `ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB` megabytes of them are reduced at once; by default all.
    """
    count = xr.world_size()
    if count == 1:
        return
    for bucket in _buckets(_fetch_gradients(optimizer)):
        all_reduce(REDUCE_SUM, bucket, scale=1.0 / count, groups=groups)


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients of an optimizer's parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _buckets(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    room = environment.value("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB") << 20
    bucket: list[torch.Tensor] = []
    held = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if bucket and room and held + size > room:
            yield bucket
            bucket, held = [], 0
        bucket.append(tensor)
        held += size
    if bucket:
        yield bucket


def _into(output: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    return value if output is None else output.copy_(value)


#: What a compiled function may call: each records one operator.
TRACED = (all_reduce, all_gather, reduce_scatter, all_to_all, collective_permute, collective_broadcast)
