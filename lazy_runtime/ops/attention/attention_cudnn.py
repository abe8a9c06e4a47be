"""Attention on NVIDIA GPUs in cuDNN's fused kernel, as far as jax's documentation says that it takes the arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ...lowering.layout import logical
from ..kernels import Kernel, Refused, Verdict
from .attention_blocks import Options, is_whole
from .attention_problem import AttentionProblem, has_batches_of_heads, has_no_dropout

#: Features of a head that the kernel takes at most, and what they are a multiple of.
MOST_FEATURES, LANES = 128, 8


def accepts(problem: AttentionProblem) -> Verdict:
    """Whether the kernel computes this attention, and its gradients. Few scores are left to XLA, which fuses them with
    what is around.
    """
    return available(problem.platform) and _fits(problem)


def available(platform: str) -> Verdict:
    """Whether the platform is an NVIDIA GPU."""
    return platform == "gpu" or Refused(f"it is for NVIDIA GPUs, not for {platform}")


def _fits(problem: AttentionProblem) -> Verdict:
    query, key, value = problem.query, problem.key, problem.value
    features, queries, keys = query[-1], query[-2], key[-2]
    return (
        (problem.dtype in ("float16", "bfloat16") or Refused(f"it is for float16 and bfloat16, not {problem.dtype}"))
        and has_batches_of_heads(problem)
        and ((features == key[-1] and key == value) or Refused("queries, keys and values have not the same features"))
        and (
            (features <= MOST_FEATURES and features % LANES == 0)
            or Refused(f"{features} features are no multiple of {LANES} up to {MOST_FEATURES}")
        )
        and (not problem.mask or Refused("it takes no mask"))
        and has_no_dropout(problem)
        and (queries == keys or not problem.is_causal or Refused("causal attention needs as many keys as queries"))
        and (not is_whole(query, keys) or Refused("the scores are few"))
        and (_is_cuda(problem.platform) or Refused("the GPU is none of NVIDIA's"))
    )


def _is_cuda(platform: str) -> bool:
    return "cuda" in jax.devices(platform)[0].client.platform_version.lower()


def _forward(query: Any, key: Any, value: Any, mask: Any, options: Options) -> tuple[Any, Any]:
    """As `attention_blocks.forward`. The keys may have fewer heads here."""
    query, key, value = logical([query, key, value])

    def heads_last(x: Any) -> Any:
        return jnp.swapaxes(x, 1, 2)

    attended, logsumexp = jax.nn.dot_product_attention(
        heads_last(query), heads_last(key), heads_last(value), scale=options.scale, is_causal=options.is_causal,
        implementation="cudnn", return_residual=True,
    )  # fmt: skip
    return heads_last(attended), heads_last(logsumexp).astype(jnp.float32)


def _backward(
    grad: Any, query: Any, key: Any, value: Any, mask: Any, attended: Any, logsumexp: Any, options: Options,
    wants_mask: bool,
) -> tuple[Any, Any, Any, None]:  # fmt: skip
    """Gradients of the queries, the keys and the values. jax has the kernel's backward form only behind its forward
    one, which is run again: it is the lesser part.
    """
    grad, query, key, value, _, _ = logical([grad, query, key, value, attended, logsumexp])

    def again(query: Any, key: Any, value: Any) -> Any:
        heads_last = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
        found = jax.nn.dot_product_attention(
            *heads_last, scale=options.scale, is_causal=options.is_causal, implementation="cudnn"
        )
        return jnp.swapaxes(found, 1, 2)

    return *jax.vjp(again, query, key, value)[1](grad), None


KERNEL = Kernel(
    "cuDNN", accepts, _forward, available, lambda: {"most features": MOST_FEATURES, "features in multiples of": LANES}
)
GRADIENT = KERNEL._replace(lower=_backward)
