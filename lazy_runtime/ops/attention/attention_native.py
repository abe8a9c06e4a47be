"""Attention on the CPU in a kernel of ours (native/attention.cpp), where oneDNN has its products for this processor: by
what was measured (docs/performance.md) bfloat16 takes half the time of torch's kernel, float32 nine tenths.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ...lowering import aten_bridge
from .. import kernels
from ..kernels import Kernel, Refused, Verdict
from ..linalg import bfloat16_upcast
from . import attention_aten
from .attention_blocks import Options
from .attention_problem import AttentionProblem

_NAME = "lazy_runtime_kernels::attention"

#: Features of a head come in so many together, a vector of the processor's.
LANES = 16

#: Those of queries, by name.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


#: From so many queries on it pays to pack keys that are more than the queries: with 1,024 keys one query takes three
#: times as long as in torch's kernel, 64 take less.
LEAST_QUERIES = 64


def accepts(problem: AttentionProblem) -> Verdict:
    """Whether the kernel computes this attention, and is worth packing its keys."""
    dtype, mask = _computed(problem.platform, problem.dtype), problem.mask
    queries, features, keys = *problem.query[-2:], problem.key[-2]
    least = min(keys, LEAST_QUERIES)
    return (
        attention_aten.accepts(problem)
        and (dtype in DTYPES or Refused(f"it is for float32 and bfloat16, not {problem.dtype}"))
        and (features % LANES == 0 or Refused(f"{features} features are no multiple of {LANES}"))
        and (queries >= least or Refused(f"{queries} queries of {keys} keys are fewer than {least}"))
        # a mask of bool is added in the queries' dtype
        and (mask in ("", "bool", *DTYPES) or Refused(f"it takes no mask of {mask}"))
        and kernels.works(functools.partial(_works, dtype), "attention")
    )


def _computed(platform: str, dtype: str) -> str:
    """The dtype that the kernel gets for queries of this one."""
    return "float32" if bfloat16_upcast.accepts(platform, dtype) else dtype


def available(platform: str) -> Verdict:
    """Whether the kernel is there, for one of its dtypes at least."""
    return kernels.on_cpu(platform) and kernels.works(lambda: any(map(_works, DTYPES)), "attention")


@functools.cache
def _works(name: str) -> bool:
    return aten_bridge.kernel_works("attention", functools.partial(_is_right, DTYPES[name]))


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


def _forward(query: Any, key: Any, value: Any, mask: Any, options: Options) -> tuple[Any, Any]:
    heads, mask = attention_aten.operands(query, key, value, mask)
    return attention_aten.call(_NAME, [*heads, mask, options.is_causal, options.scale], query)


KERNEL = Kernel(
    "native",
    accepts,
    _forward,
    available,
    lambda: {"features in multiples of": LANES, "least queries, where keys are more": LEAST_QUERIES},
)
