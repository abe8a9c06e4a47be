"""`flash_attention` of PyTorch/XLA, by plain operators. The formulas of its gradients are those of Dao et al.,
"FlashAttention" (2022), without the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...distributed.spmd import Mesh, get_global_mesh, mark_sharding_with_gradients
from .pallas import generate_ctx_need_grad

__all__ = [
    "DEFAULT_MASK_VALUE",
    "FlashAttention",
    "fa_custom_backward",
    "fa_custom_forward",
    "flash_attention",
    "flash_attention_xla",
]

#: What is added to logits that are masked out: rows without any other logit stay finite.
DEFAULT_MASK_VALUE = -0.7 * float(torch.finfo(torch.float32).max)

Tensor = torch.Tensor
_Spec = Sequence[Any] | None


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    q_segment_ids: Tensor | None = None,
    kv_segment_ids: Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: Tensor | None = None,
    partition_spec: _Spec = None,
    mesh: Mesh | None = None,
) -> Tensor:
    """softmax((q kᵀ + ab) · sm_scale + mask) v, with gradients of q, k, v and ab.

    Args:
        q: [batch, heads, queries, width], or with one more dimension in front.
        k, v: [batch, heads, keys, width].
        causal: the n-th query sees the first n + 1 keys.
        q_segment_ids, kv_segment_ids: [batch, queries] and [batch, keys]; a query sees the keys of its own segment.
        sm_scale: is not 1 / √width by itself.
        ab: [batch, heads, queries, keys], added to the logits.
        partition_spec: how q, k, v and the result are cut among the devices (`xs.mark_sharding`).
        mesh: for `partition_spec`; by default the global one.

    Returns:
        [batch, heads, queries, width] in the dtype of q.

    Raises:
        ValueError: one kind of segments is given without the other, or `partition_spec` without a mesh.
    """
    arguments = (q, k, v, causal, q_segment_ids, kv_segment_ids, sm_scale, ab, partition_spec, mesh)
    return FlashAttention.apply(*arguments)  # type: ignore[return-value]


def flash_attention_xla(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """`torch.ops.xla.flash_attention`: `flash_attention` of three tensors."""
    return flash_attention(q, k, v, causal)


class FlashAttention(torch.autograd.Function):
    """What `flash_attention` applies. It keeps the maximum and the sum of each row of the softmax for the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        q_segment_ids: Tensor | None,
        kv_segment_ids: Tensor | None,
        sm_scale: float,
        ab: Tensor | None,
        partition_spec: _Spec,
        mesh: Mesh | None,
    ) -> Tensor:
        ids = FlashAttention.prepare_segment_ids(q_segment_ids, kv_segment_ids)
        wanted = generate_ctx_need_grad(q, k, v, ab)
        o, total, m, *_ = fa_custom_forward(q, k, v, causal, *ids[1:], sm_scale, ab, partition_spec, mesh, wanted)
        ctx.arguments = causal, sm_scale, partition_spec, mesh, [*ctx.needs_input_grad[:3], ctx.needs_input_grad[7]]
        ctx.save_for_backward(q, k, v, o, total, m, *ids[1:], ab)
        return o

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, o, total, m, q_ids, kv_ids, ab = ctx.saved_tensors
        causal, sm_scale, partition_spec, mesh, wanted = ctx.arguments
        shapes = list(q.shape), list(k.shape), None if ab is None else list(ab.shape)
        found = fa_custom_backward(
            gradients[0],
            q,
            k,
            v,
            o,
            total,
            m,
            q_ids,
            kv_ids,
            ab,
            causal,
            sm_scale,
            partition_spec,
            mesh,
            *shapes,
            wanted,
        )
        grad_q, grad_k, grad_v, grad_ab = found
        return grad_q, grad_k, grad_v, None, None, None, None, grad_ab, None, None

    @staticmethod
    def prepare_segment_ids(
        q_segment_ids: Tensor | None, kv_segment_ids: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor] | None, Tensor | None, Tensor | None]:
        """Both kinds of segments as a pair, and each alone; None where there are none.

        Raises:
            ValueError: there is one without the other.
        """
        if (q_segment_ids is None) != (kv_segment_ids is None):
            raise ValueError("flash_attention: pass q_segment_ids and kv_segment_ids both, or neither")
        if q_segment_ids is None or kv_segment_ids is None:
            return None, None, None
        return (q_segment_ids, kv_segment_ids), q_segment_ids, kv_segment_ids


def fa_custom_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    q_segment_ids: Tensor | None,
    kv_segment_ids: Tensor | None,
    sm_scale: float,
    ab: Tensor | None,
    partition_spec: _Spec,
    mesh: Mesh | None,
    ctx_grad: Sequence[bool],
) -> tuple[Any, ...]:
    """The forward pass of `flash_attention`.

    Args:
        ctx_grad: which of q, k, v and ab want a gradient; without one of the first three there is no `l` and no `m`.

    Returns:
        - the result, and float32 [batch, heads, queries]: the sum `l` of each row's exponentials and its maximum `m`
        - q, k, v and ab as they are on all devices together
    """
    q, k, v = (_cut(x, partition_spec, mesh) for x in (q, k, v))
    logits = _logits(q, k, causal, q_segment_ids, kv_segment_ids, sm_scale, ab)
    m = logits.amax(-1)
    weights = torch.exp(logits - m.unsqueeze(-1))
    total = weights.sum(-1)
    o = torch.matmul((weights / total.unsqueeze(-1)).to(v.dtype), v).to(q.dtype)
    o = _cut(o, partition_spec, mesh)
    if not any(ctx_grad):
        return o, None, None, q, k, v, ab
    return o, total, m, q, k, v, ab


def fa_custom_backward(
    grad_output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    l: Tensor,  # noqa: E741  PyTorch/XLA's name
    m: Tensor,
    q_segment_ids: Tensor | None,
    kv_segment_ids: Tensor | None,
    ab: Tensor | None,
    causal: bool,
    sm_scale: float,
    partition_spec: _Spec,
    mesh: Mesh | None,
    q_full_shape: Sequence[int],
    kv_full_shape: Sequence[int],
    ab_full_shape: Sequence[int] | None,
    ctx_grad: Sequence[bool],
) -> tuple[Any, Any, Any, Any]:
    """The backward pass of `flash_attention`: the gradients of q, k, v and ab, None for those that nobody wants.

    Args:
        grad_output, q, k, v, o, l, m: what `fa_custom_forward` took and gave, and its result's gradient.
        q_full_shape, kv_full_shape, ab_full_shape: of the tensors on all devices together, which these are.
    """
    logits = _logits(q, k, causal, q_segment_ids, kv_segment_ids, sm_scale, ab)
    weights = torch.exp(logits - m.unsqueeze(-1)) / l.unsqueeze(-1)
    wide = grad_output.float()
    grad_weights = torch.matmul(wide, v.float().transpose(-2, -1))
    delta = (wide * o.float()).sum(-1, keepdim=True)
    grad_logits = weights * (grad_weights - delta) * sm_scale
    grad_q = torch.matmul(grad_logits, k.float()).to(q.dtype).reshape(q_full_shape) if ctx_grad[0] else None
    turned = grad_logits.transpose(-2, -1)
    grad_k = torch.matmul(turned, q.float()).to(k.dtype).reshape(kv_full_shape) if ctx_grad[1] else None
    grad_v = torch.matmul(weights.transpose(-2, -1), wide).to(v.dtype).reshape(kv_full_shape) if ctx_grad[2] else None
    grad_ab = None
    if ab is not None and ab_full_shape is not None and ctx_grad[3]:
        grad_ab = grad_logits.sum_to_size(ab_full_shape).to(ab.dtype)
    gradients = [None if x is None else _cut(x, partition_spec, mesh) for x in (grad_q, grad_k, grad_v)]
    return gradients[0], gradients[1], gradients[2], grad_ab


def _logits(
    q: Tensor,
    k: Tensor,
    causal: bool,
    q_segment_ids: Tensor | None,
    kv_segment_ids: Tensor | None,
    sm_scale: float,
    ab: Tensor | None,
) -> Tensor:
    """float32 [batch, heads, queries, keys]."""
    logits = torch.matmul(q.float(), k.float().transpose(-2, -1))
    if ab is not None:
        logits = logits + ab
    if sm_scale != 1.0:
        logits = logits * sm_scale
    mask = None
    if q_segment_ids is not None and kv_segment_ids is not None:
        mask = (q_segment_ids.unsqueeze(-1) == kv_segment_ids.unsqueeze(-2)).unsqueeze(-3)
    if causal:
        rows = torch.arange(q.shape[-2], device=q.device).unsqueeze(-1)
        seen = torch.arange(k.shape[-2], device=q.device) <= rows
        mask = seen if mask is None else mask & seen
    return logits if mask is None else logits + torch.where(mask, 0.0, DEFAULT_MASK_VALUE)


def _cut(x: Tensor, partition_spec: _Spec, mesh: Mesh | None) -> Tensor:
    if partition_spec is None:
        return x
    mesh = get_global_mesh() if mesh is None else mesh
    if mesh is None:
        raise ValueError(
            "flash_attention: partition_spec needs a mesh: pass mesh=..., or call xs.set_global_mesh(mesh)"
        )
    return mark_sharding_with_gradients(x, mesh, partition_spec)
