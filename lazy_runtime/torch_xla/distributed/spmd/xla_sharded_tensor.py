"""`XLAShardedTensor`: a sharded tensor that can show its parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ....compat.torch import DisableTorchDispatch, DisableTorchFunctionSubclass, make_wrapper_subclass, tree_map
from .sharding_type import ShardingType, of_text
from .xla_shard import XLAShard


@contextlib.contextmanager
def no_dispatch() -> Iterator[None]:
    """Within, subclasses of tensors are not asked about operators: `__torch_dispatch__` is off."""
    with DisableTorchDispatch():
        yield


class XLAShardedTensor(torch.Tensor):
    """A sharded xla tensor, and how it is sharded. Functions and attributes of torch's, autograd's included, are those
    of the tensor that it holds; what they give are plain tensors.

    Attributes:
        global_tensor: the tensor itself.
        mesh_shape, partition_spec: what it was marked with, None where that is not known.
    """

    global_tensor: torch.Tensor
    mesh_shape: tuple[int, ...] | None
    partition_spec: tuple[Any, ...] | None

    @staticmethod
    def __new__(cls, elem: torch.Tensor, *args: Any, **kwargs: Any) -> XLAShardedTensor:
        made = make_wrapper_subclass(
            cls,
            elem.size(),
            elem.stride(),
            elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=elem.device,
            requires_grad=kwargs.get("requires_grad", elem.requires_grad),
        )
        made.global_tensor = elem
        made.mesh_shape, made.partition_spec = kwargs.get("mesh_shape"), kwargs.get("partition_spec")
        return made

    @property
    def local_shards(self) -> list[XLAShard]:
        """What each device has, in their order, after executing what is pending."""
        from . import shards

        return shards.of(self.global_tensor)

    def load_local_shards_(self, shards: Sequence[XLAShard]) -> None:
        """Writes the data of shards, as `local_shards` gives them, to the devices.

        Raises:
            RuntimeError: the tensor is not in parts, or these are not all of them, or of other sizes.
            NotImplementedError: the parts are not equal, and other processes have some of them.
        """
        from . import shards as each

        if self.sharding_type is ShardingType.REPLICATED:
            raise RuntimeError(
                f"load_local_shards_: the tensor of shape {list(self.shape)} is on each device in full: write to it by "
                "`copy_`"
            )
        each.load(self.global_tensor, shards)

    @property
    def sharding_spec(self) -> str:
        """How it is sharded, as XLA writes it: `{devices=[2,1]0,1}`."""
        from ....tensor import sharding

        return sharding.text(self.global_tensor)

    @property
    def sharding_type(self) -> ShardingType:
        """Whether it is in parts, in copies or both."""
        return of_text(self.sharding_spec) or ShardingType.REPLICATED

    @property
    def placements(self) -> tuple[Any, ...]:
        """What DTensor says of it: for each axis of the mesh, `Shard` or `Replicate`.

        Raises:
            ValueError: it is not known what it was marked with, or that has axes' names.
        """
        from torch.distributed.tensor import Replicate, Shard

        if self.mesh_shape is None or self.partition_spec is None:
            raise ValueError("Placements not available: the tensor was not made by mark_sharding")
        found: list[Any] = [Replicate() for _ in self.mesh_shape]
        for dim, cut in enumerate(self.partition_spec):
            for axis in () if cut is None else cut if isinstance(cut, tuple | list) else (cut,):
                if isinstance(axis, str):
                    raise ValueError(f"Placements not available: {self.partition_spec} names axes of an unknown mesh")
                found[axis] = Shard(dim)
        return tuple(found)

    def invalidate_spec_cache(self) -> None:
        """Forgets what it was marked with, which `placements` are made of."""
        self.mesh_shape = self.partition_spec = None

    def redistribute(self, device_mesh: Any, placements: Sequence[Any], *, async_op: bool = False) -> XLAShardedTensor:
        """A tensor with the same elements, cut as DTensor's placements say. Gradients go through.

        Args:
            device_mesh: a mesh of `distributed.spmd`.
            placements: `Shard` or `Replicate`, one for each axis of the mesh.
            async_op: accepted for DTensor's sake: nothing waits.

        Raises:
            ValueError: there are more or fewer placements, or the tensor cannot be cut so.
            NotImplementedError: one is `Partial`.
            IndexError: there is no such dimension.
        """
        from torch.distributed.tensor import Partial, Shard

        from ....dispatcher import mark_sharding
        from ....platform import xla_devices
        from ....tensor import sharding

        axes, shape = device_mesh.mesh_shape, self.global_tensor.shape
        if len(placements) != len(axes):
            raise ValueError(f"Number of placements ({len(placements)}) must match mesh dimensions ({len(axes)})")
        cuts: list[list[int]] = [[] for _ in shape]
        for axis, placement in enumerate(placements):
            if isinstance(placement, Partial):
                raise NotImplementedError("Partial placement: no tensor here is a sum of its parts; use Shard")
            if isinstance(placement, Shard):
                if placement.dim >= len(cuts):
                    raise IndexError(f"{placement} is out of bounds for a tensor with {len(cuts)} dimensions")
                if shape[placement.dim] % axes[axis]:
                    raise ValueError(f"{placement}: {axes[axis]} devices cannot share {list(shape)} equally there")
                cuts[placement.dim].append(axis)
        made: Any = _Redistribute.apply(self.global_tensor, device_mesh.numbers, list(axes), sharding.encode(cuts))
        mark_sharding.mark(made, sharding.resolve(xla_devices.get(0), device_mesh.numbers, axes, cuts))
        found = XLAShardedTensor(made)
        found.mesh_shape = axes
        found.partition_spec = tuple(
            None if not along else along[0] if len(along) == 1 else tuple(along) for along in cuts
        )
        return found

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"XLAShardedTensor({self.global_tensor})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def held(x: Any) -> Any:
            return x.global_tensor if isinstance(x, XLAShardedTensor) else x

        with DisableTorchFunctionSubclass():
            found = func(*tree_map(held, args), **tree_map(held, kwargs or {}))
        itself = args[0] if args and isinstance(args[0], XLAShardedTensor) else None
        return itself if itself is not None and found is itself.global_tensor else found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} of an XLAShardedTensor: use its global_tensor")  # what it is has no data


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *sharding: Any) -> torch.Tensor:
        return torch.ops.lazy_runtime.shard(tensor, *sharding)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None, None, None
