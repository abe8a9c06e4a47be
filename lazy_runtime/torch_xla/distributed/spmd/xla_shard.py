"""`XLAShard`: the part of a sharded tensor that one device has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


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
