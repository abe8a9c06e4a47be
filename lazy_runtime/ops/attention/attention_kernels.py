"""The kernels of attention and of its gradients, in the order in which they are asked."""

from __future__ import annotations

from ..kernels import Table
from . import attention_aten, attention_blocks, attention_cudnn, attention_few_queries, attention_native

ATTENTION = Table(
    "attention",
    [
        attention_few_queries.KERNEL,
        attention_native.KERNEL,
        attention_aten.KERNEL,
        attention_cudnn.KERNEL,
        attention_blocks.KERNEL,
    ],
)

GRADIENT = Table(
    "attention gradient",
    [attention_aten.GRADIENT, attention_cudnn.GRADIENT, attention_blocks.GRADIENT],
)
