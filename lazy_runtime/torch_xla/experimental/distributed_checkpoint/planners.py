"""Planners of `torch.distributed.checkpoint` for tensors over several devices (SPMD), of one process or of several: on
the disk are their parts as they lie, each once, and a part that is loaded is put together of those that it overlaps.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from ...distributed.spmd import XLAShardedTensor, unwrap_sharded_tensor


class SPMDSavePlanner(DefaultSavePlanner):
    """Writes each part of an xla tensor once, however many devices have a copy of it, and what is not on xla, or not
    over several devices, as torch's `DefaultSavePlanner` does. That one's arguments are its own.

    The tensors of the state dict may be `XLAShardedTensor`, or those that these hold. Any planner can load the result.
    """

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        self.state_dict = _in_parts(self.state_dict)

    def lookup_object(self, index: MetadataIndex) -> Any:
        """What is to be written: a part's data, on the CPU."""
        found = self.state_dict.get(index.fqn)
        return found.read(index) if isinstance(found, _Parts) else super().lookup_object(index)


class SPMDLoadPlanner(DefaultLoadPlanner):
    """Loads into the tensors of a state dict, in place, whatever parts they and the saved ones are in. Each device gets
    its part alone. The arguments are those of torch's `DefaultLoadPlanner`.

    Raises:
        RuntimeError, ValueError: the checkpoint lacks a tensor, or has it in another shape.
    """

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self.state_dict = _in_parts(self.state_dict)

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        self._missing = Counter(item.dest_index.fqn for item in new_plan.items)
        return super().finish_plan(new_plan)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Where a part's data is collected."""
        found = self.state_dict.get(index.fqn)
        return found.buffer(index) if isinstance(found, _Parts) else super().lookup_tensor(index)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Notes that a region has been read. The last one of a tensor is when it is written."""
        name = read_item.dest_index.fqn
        self._missing[name] -= 1
        found = self.state_dict[name]
        if isinstance(found, _Parts) and not self._missing[name]:
            found.write()


def has_parts(value: Any) -> bool:
    """Whether these planners take it in parts: an xla tensor, where one device stands for several."""
    from ....platform import xla_devices

    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter, XLAShardedTensor)
    return (
        is_plain
        and value.device.type == "xla"
        and value.layout is torch.strided
        and xla_devices.get(value.device).grid is not None
    )


def _in_parts(state_dict: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _Parts(unwrap_sharded_tensor(value)) if has_parts(value) else value for name, value in state_dict.items()
    }


class _Parts:
    """A tensor as torch's planners take one that is in parts: by the methods with underscores."""

    def __init__(self, tensor: torch.Tensor):
        from ...distributed.spmd import shards

        self._tensor = tensor
        self._parts = shards.parts(tensor)
        self._buffers: dict[tuple[int, ...], torch.Tensor] = {}

    def size(self) -> torch.Size:
        return self._tensor.size()

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(torch.Size(offsets), torch.Size(part.data.shape))
            for offsets, part in self._parts.items()
        ]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties(self._tensor.dtype)
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.size()),
            )
            for chunk, part in zip(self.__create_chunk_list__(), self._parts.values(), strict=True)
            if part.replica_id == 0
        ]

    def read(self, index: MetadataIndex) -> torch.Tensor:
        """The data of a part, on the CPU."""
        from ...distributed.spmd import shards

        return shards.download(self._parts[index.offset or ()], self._tensor.dtype)

    def buffer(self, index: MetadataIndex) -> torch.Tensor:
        """Memory for the data of a part, the same at each call."""
        offsets = index.offset or ()
        if offsets not in self._buffers:
            shape = self._parts[offsets].data.shape
            self._buffers[offsets] = torch.empty(shape, dtype=self._tensor.dtype, device="cpu")
        return self._buffers[offsets]

    def write(self) -> None:
        """Gives the tensor what the buffers have."""
        from ...distributed.spmd import shards

        shards.write(self._tensor, self._buffers)
        self._buffers, self._parts = {}, {}
