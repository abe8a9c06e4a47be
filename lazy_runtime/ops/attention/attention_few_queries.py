"""Attention of a few queries on the CPU in a kernel of ours (native/few_queries_attention.cpp).

A token that is decoded has one. The keys and values of a cache are read once, where they lie, also for heads of queries
that share them. By what was measured (docs/measurements.md) torch's kernel takes twice to twenty times as long.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ...lowering import aten_bridge
from .. import kernels
from ..kernels import Kernel, Refused, Verdict
from . import attention_aten
from .attention_blocks import Options
from .attention_native import DTYPES, LANES
from .attention_problem import AttentionProblem

_NAME = "lazy_runtime_kernels::few_queries_attention"

#: The most queries of a head: from here on it pays to make products of matrices.
MOST = 8


def accepts(problem: AttentionProblem) -> Verdict:
    """Whether the kernel computes this attention."""
    queries, features = problem.query[-2:]
    return (
        attention_aten.accepts(problem)
        and (problem.dtype in DTYPES or Refused(f"it is for float32 and bfloat16, not {problem.dtype}"))
        and (features % LANES == 0 or Refused(f"{features} features are no multiple of {LANES}"))
        and (0 < queries <= MOST or Refused(f"{queries} queries are not 1 to {MOST}"))
        and (0 not in problem.key or Refused("there are no keys"))
        # a mask of bool is added in the queries' dtype
        and (problem.mask in ("", "bool", *DTYPES) or Refused(f"it takes no mask of {problem.mask}"))
        and kernels.works(_is_built, "few_queries_attention")
    )


def available(platform: str) -> Verdict:
    """Whether the kernel is there."""
    return kernels.on_cpu(platform) and kernels.works(_is_built, "few_queries_attention")


@functools.cache
def _is_built() -> bool:
    return aten_bridge.kernel_works("few_queries_attention", _is_right)


def _is_right(kernel: Any) -> bool:
    query = torch.full((1, 2, 1, LANES), 0.25)
    key = torch.arange(35.0).view(1, 1, 35, 1).expand(1, 1, 35, LANES) / 16
    value = torch.arange(35 * LANES).remainder(7).view(1, 1, 35, LANES).float()
    found, _ = kernel(query, key, value, None, False, 0.25)
    return torch.allclose(found, torch.softmax(query @ key.mT * 0.25, -1) @ value)


def _forward(query: Any, key: Any, value: Any, mask: Any, options: Options) -> tuple[Any, Any]:
    heads = [attention_aten.where_it_lies(x) for x in (query, key, value)]
    arguments = [*heads, attention_aten.added(mask, query), options.is_causal, options.scale]
    wanted = attention_aten.described(query)
    attended, logsumexp = aten_bridge.call(_NAME, arguments, wanted)
    return attended.permuted, logsumexp.permuted


KERNEL = Kernel(
    "few queries",
    accepts,
    _forward,
    available,
    lambda: {"most queries": MOST, "features in multiples of": LANES},
)
