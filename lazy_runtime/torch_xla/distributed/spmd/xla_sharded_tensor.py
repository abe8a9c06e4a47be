"""`XLAShardedTensor`: a sharded tensor that can show its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....compat.torch import DisableTorchFunctionSubclass, make_wrapper_subclass, tree_map
from .sharding_type import ShardingType, of_text
from .xla_shard import XLAShard


class XLAShardedTensor(torch.Tensor):
    """A sharded xla tensor, and how it is sharded. Functions and attributes of torch's, autograd's included, are those
    of the tensor that it holds; what they give are plain tensors.

    Attributes:
        global_tensor: the tensor itself.
    """

    global_tensor: torch.Tensor

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
        from ....tensor import sharding

        return sharding.text(self.global_tensor)

    @property
    def sharding_type(self) -> ShardingType:
        """Whether it is in parts, in copies or both."""
        return of_text(self.sharding_spec) or ShardingType.REPLICATED

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
