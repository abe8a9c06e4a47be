"""`torch.linalg.lstsq`, the number of whose residuals depends on data."""

from __future__ import annotations

from typing import Any

import torch

from ..ops import registry
from ..ops.linalg.linalg_solve import WITH_VALUES
from ..tensor.xla_tensor import XLATensor
from . import dispatch

aten = torch.ops.aten


@dispatch.handler("aten::linalg_lstsq")
def _lstsq(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Two drivers give residuals only where every matrix has full rank: then their ranks are read."""
    operator = registry.table[func]
    solution, residuals, rank, singular = dispatch.record(operator, args, kwargs)
    if kwargs.get("driver") in WITH_VALUES and residuals.numel() and isinstance(args[0], XLATensor):
        columns = args[0].shape[-1]
        if not aten.equal.default(rank, aten.full_like.default(rank, columns)):
            residuals = aten.new_empty.default(residuals, [0])
    return solution, residuals, rank, singular
