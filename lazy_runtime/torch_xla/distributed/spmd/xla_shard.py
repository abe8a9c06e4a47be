"""`XLAShard`: the part of a sharded tensor that one device has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class XLAShard:
    """What one device has of a tensor.

    Attributes:
        data: on the CPU, as large as that of every other device: zeros follow where the tensor ends before.
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
        """What of the data is the tensor's: a view."""
        return self.data if self.indices is Ellipsis else self.data[self._own]

    @unpadded_data.setter
    def unpadded_data(self, t: torch.Tensor) -> None:
        if t.shape == self.data.shape:
            self.data = t
        else:
            self.data[self._own] = t

    @property
    def _own(self) -> tuple[slice, ...]:
        return tuple(slice(0, part.stop - part.start) for part in self.indices)
