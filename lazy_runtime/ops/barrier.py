"""What the compiler must not move work across: `lazy_runtime::optimization_barrier(Tensor[] tensors) -> Tensor[]`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import torch

from .registry import op

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define("optimization_barrier(Tensor[] tensors) -> Tensor[]")


def _same(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in tensors]


_library.impl("optimization_barrier", _same, "Meta")


@op("lazy_runtime::optimization_barrier")
def optimization_barrier(tensors):
    return jax.lax.optimization_barrier(tensors)
