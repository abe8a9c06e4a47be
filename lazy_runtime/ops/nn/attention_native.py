"""Attention on the CPU in a kernel of ours (native/attention.cpp), where oneDNN has its products for this processor: by
what was measured (docs/performance.md) bfloat16 takes half the time of torch's kernel, float32 nine tenths.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import torch

from ...lowering import aten_bridge

NAME = "lazy_runtime_kernels::attention"

#: Features of a head come in so many together, a vector of the processor's.
LANES = 16

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


#: From so many queries on it pays to pack keys that are more than the queries: with 1,024 keys one query takes three
#: times as long as in torch's kernel, 64 take less.
LEAST_QUERIES = 64


def takes(query: Any, keys: int, mask: Any) -> bool:
    """Whether the kernel computes this attention, of heads of the same features on the CPU and without dropout.

    Args:
        query, mask: arrays, the mask as it is added to the scores.
        keys: of a head.
    """
    name = str(jnp.dtype(query.dtype))
    *_, queries, features = query.shape
    if name not in _DTYPES or features % LANES != 0 or queries < min(keys, LEAST_QUERIES):
        return False
    return (mask is None or str(mask.dtype) in _DTYPES) and _works(name)


@functools.cache
def _works(name: str) -> bool:
    return aten_bridge.kernel_works("attention", functools.partial(_is_right, _DTYPES[name]))


def _is_right(dtype: torch.dtype, kernel: Any) -> bool:
    """Whether a small attention is computed: products that are not made for the processor may take something for what
    it is not.
    """
    # of the scores 0, 1/64, ... each weight is rounded; the values are small integers
    query = torch.full((1, 1, 3, LANES), 0.25)
    key = torch.arange(35.0).view(1, 1, 35, 1).expand(1, 1, 35, LANES) / 16
    value = torch.arange(35 * LANES).remainder(7).view(1, 1, 35, LANES).float()
    found, _ = kernel(*(x.to(dtype) for x in (query, key, value)), None, False, 0.25)
    wanted = torch.softmax(query @ key.mT * 0.25, -1) @ value
    return torch.allclose(found.float(), wanted, rtol=0.02, atol=0.02)
