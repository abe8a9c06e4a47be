"""`XLAShardedTensor`: a sharded tensor that can show its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from .xla_sharding import ShardingType


@dataclass
class XLAShard:
    """What one device has of a tensor.

    Attributes:
        data: on the CPU.
        indices: which part it is, a slice for each dimension; `Ellipsis` for the whole tensor.
        shard_device: whose it is: `CPU:0`.
        replica_id: the number of this copy of the part.
    """

    data: torch.Tensor
    indices: Any
    shard_device: str
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The data; all parts are equal, so none has more than its own."""
        return self.data

    @unpadded_data.setter
    def unpadded_data(self, t: torch.Tensor) -> None:
        self.data = t


class XLAShardedTensor(torch.Tensor):
    """A sharded xla tensor, and how it is sharded. Functions and attributes of torch's, autograd's included, are those
    of the tensor that it holds; what they give are plain tensors.

    Attributes:
        global_tensor: the tensor itself.
    """

    global_tensor: torch.Tensor

    @staticmethod
    def __new__(cls, elem: torch.Tensor, *args: Any, **kwargs: Any) -> XLAShardedTensor:
        made = torch.Tensor._make_wrapper_subclass(
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
        return made

    @property
    def local_shards(self) -> list[XLAShard]:
        """What each device has, in their order, after executing what is pending."""
        from . import shards

        return shards.of(self.global_tensor)

    def load_local_shards_(self, shards: Sequence[XLAShard]) -> None:
        """Writes the data of shards, as `local_shards` gives them, to the devices.

        Raises:
            ValueError: they are not all of the tensor's, or of other sizes.
        """
        from . import shards as each

        each.load(self.global_tensor, shards)

    @property
    def sharding_spec(self) -> str:
        """How it is sharded, as XLA writes it: `{devices=[2,1]0,1}`."""
        from ... import sharding

        return sharding.text(self.global_tensor)

    @property
    def sharding_type(self) -> ShardingType:
        """Whether it is in parts, in copies or both."""
        from ..._XLAC import _get_xla_sharding_type
        from .xla_sharding import ShardingType

        found = _get_xla_sharding_type(self.global_tensor)
        return ShardingType.REPLICATED if found is None else ShardingType(found)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"XLAShardedTensor({self.global_tensor})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def held(x: Any) -> Any:
            return x.global_tensor if isinstance(x, XLAShardedTensor) else x

        with torch._C.DisableTorchFunctionSubclass():
            found = func(*tree_map(held, args), **tree_map(held, kwargs or {}))
        itself = args[0] if args and isinstance(args[0], XLAShardedTensor) else None
        return itself if itself is not None and found is itself.global_tensor else found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} of an XLAShardedTensor: use its global_tensor")  # what it is has no data
