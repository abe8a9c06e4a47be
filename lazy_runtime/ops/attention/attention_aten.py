"""Attention on the CPU in torch's own kernel (flash attention), which never holds the scores.

By what was measured (docs/measurements.md) it takes less than half the time of products and softmax in XLA.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ...lowering.layout import HeadsLast, Permuted, Strided
from .. import kernels
from ..kernels import Kernel, Refused, Verdict
from ..linalg import bfloat16_upcast
from . import shared_heads
from .attention_blocks import Options
from .attention_problem import AttentionProblem, has_batches_of_heads, has_no_dropout

_NAME = "aten::_scaled_dot_product_flash_attention_for_cpu"


def accepts(problem: AttentionProblem) -> Verdict:
    """Whether the kernel computes this attention, forward and backward."""
    return (
        (problem.platform == "cpu" or Refused(f"it is for the CPU, not for {problem.platform}"))
        and has_no_dropout(problem)
        and has_batches_of_heads(problem)
        and (problem.query[-1] == problem.value[-1] or Refused("values have other features than queries"))
        and kernels.on_cpu(problem.platform)
    )


def accepts_gradient(problem: AttentionProblem) -> Verdict:
    """Whether the kernel computes the gradients of this attention."""
    return accepts(problem) and (not problem.wants_mask or Refused("it has no gradient of the mask"))


def _forward(query: Any, key: Any, value: Any, mask: Any, options: Options) -> tuple[Any, Any]:
    heads, mask = operands(query, key, value, mask)
    return call(_NAME, [*heads, 0.0, options.is_causal, mask, options.scale], query)


def operands(query: Any, key: Any, value: Any, mask: Any) -> tuple[list[HeadsLast | Strided], Any]:
    """Queries, keys and values of as many heads, and the mask that is added to the scores, as the kernels take them."""
    key, value = shared_heads.repeated(key, query), shared_heads.repeated(value, query)
    return [*map(_lying, (query, key, value))], added(mask, query)


def call(name: str, arguments: list[Any], query: Any) -> tuple[Any, Any]:
    """Calls a kernel of torch's or ours.

    Returns:
        Attention, and the logarithms of the sums of exponentials, as `attention_blocks.forward` gives them; `Permuted`.
    """
    attended, logsumexp = bfloat16_upcast.call("cpu", name, arguments, described(query))
    return attended.permuted, logsumexp.permuted


def described(query: Any) -> list[HeadsLast]:
    """What attention and the logarithms of the sums of exponentials look like, as the kernels write them."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    attended = _described(query)
    return [attended, HeadsLast(jax.ShapeDtypeStruct(attended.physical.shape[:-1], wide))]


def _backward(
    grad: Any, query: Any, key: Any, value: Any, mask: Any, attended: Any, logsumexp: Any, options: Options,
    wants_mask: bool,
) -> tuple[Any, Any, Any, None]:  # fmt: skip
    sizes = key.shape
    key, value = shared_heads.repeated(key, query), shared_heads.repeated(value, query)
    heads = query, key, value
    arguments = [
        *map(_lying, (grad, *heads, attended, logsumexp)), 0.0, options.is_causal, added(mask, query), options.scale
    ]  # fmt: skip
    grads = bfloat16_upcast.call("cpu", f"{_NAME}_backward", arguments, [*map(_described, heads)])
    grad_query, grad_key, grad_value = (each.permuted for each in grads)
    return grad_query, shared_heads.summed(grad_key, sizes), shared_heads.summed(grad_value, sizes), None


def _lying(x: Any) -> HeadsLast | Strided:
    """A value as the kernel takes it: where it lies, if it need not be changed first, and has all of a head's features
    side by side.
    """
    strided = x.strided if isinstance(x, Permuted) and not bfloat16_upcast.is_wanted("cpu", x.dtype) else None
    return strided if strided is not None and strided.strides[-1] == 1 else HeadsLast.of(x)


def where_it_lies(x: Any) -> Any:
    """A value as a kernel takes it that reads any order of batches, heads and rows."""
    return _lying(x) if isinstance(x, Permuted) else x


def _described(like: Any) -> HeadsLast:
    batch, heads, rows, features = like.shape
    return HeadsLast(jax.ShapeDtypeStruct((batch, rows, heads, features), like.dtype))


def added(mask: Any, query: Any) -> Any:
    """The mask as the kernel adds it to the scores."""
    if mask is None:
        return None
    if mask.dtype == bool:
        mask = jnp.where(mask, 0, -jnp.inf).astype(query.dtype)
    return mask.reshape((1,) * (query.ndim - mask.ndim) + mask.shape)


KERNEL = Kernel("ATen", accepts, _forward, kernels.on_cpu)
GRADIENT = Kernel("ATen", accepts_gradient, _backward, kernels.on_cpu)
