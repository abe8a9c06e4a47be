"""`scaled_dot_product_attention` on xla, and in what `backend="openxla"` compiles: one operator (`ops/attention`)
where there is a kernel for it or the scores are many, else as torch composes it of other operators.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..compat.torch import (
    DispatchKey,
    forward_level_of,
    get_flash_sdp_enabled,
    get_mem_efficient_sdp_enabled,
    kernel_call_of,
    peek_interpreter_stack,
)
from ..ops.attention import attention_aten, attention_blocks
from ..ops.attention.attention_problem import AttentionProblem
from ..platform import xla_devices

aten = torch.ops.aten
_COMPOSITE = DispatchKey.CompositeImplicitAutograd


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`aten::scaled_dot_product_attention` for xla tensors."""
    if not _is_one_operator(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        return kernel_call_of(aten.scaled_dot_product_attention.default)(
            _COMPOSITE, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)


def traced(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The same where Dynamo has traced a call of torch's function, on tensors of any device: what comes by way of the
    dispatcher is taken apart before anybody sees it on a CPU (dropout, a mask with a gradient), or in inference mode.
    """
    if not _is_one_operator(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        # torch would choose one of its kernels for CUDA, of which nothing is known here
        with sdpa_kernel(SDPBackend.MATH) if query.is_cuda else contextlib.nullcontext():
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
    if torch.is_autocast_enabled(query.device.type):  # which knows torch's function, and has been passed by
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value))
        if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float64):
            attn_mask = attn_mask.to(dtype)
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)


def _is_one_operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Whether there is a kernel or the scores are many, in a form that the operator has. What has no meaning is left
    for torch to refuse.
    """
    lead, rank = query.shape[:-2], query.ndim
    if rank < 2 or key.ndim != rank or value.ndim != rank or not query.dtype.is_floating_point:
        return False
    queries, keys, features = query.shape[-2], key.shape[-2], query.shape[-1]
    if _are_few(query, keys) and not _has_kernel(query, key, value, mask, dropout_p, is_causal):
        return False
    fits = (
        query.dtype == key.dtype == value.dtype
        and query.device == key.device == value.device
        and key.shape[:-1] == value.shape[:-1]
        and key.shape[-1] == features
        and 0 not in (*lead, queries, keys, features)
        and 0 <= dropout_p <= 1
    )
    if fits and enable_gqa and rank > 2:
        fits = key.shape[:-3] == lead[:-1] and lead[-1] % key.shape[-3] == 0
    elif fits:
        fits = key.shape[:-2] == lead
    return fits and _fits(mask, query, keys, is_causal) and not _transformed() and _allowed()


def _are_few(query: torch.Tensor, keys: int) -> bool:
    """Whether the scores are so few that all may exist at once. Sizes that are not known yet may become large."""
    sizes = (*query.shape, keys)
    return all(type(size) is int for size in sizes) and attention_blocks.is_whole(
        query.shape, keys, query.dtype.itemsize
    )


def _has_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
) -> bool:
    """Whether torch's kernel for the CPU gives the output and all gradients."""
    if (mask is not None and mask.requires_grad) or not get_flash_sdp_enabled():
        return False
    platform = query.device.type
    if platform == "xla":
        device = xla_devices.get(query.device)
        platform = device.platform if device.grid is None else "sharded"
    problem = AttentionProblem.of(platform, query, key, value, mask, is_causal, dropout_p)
    return bool(attention_aten.accepts(problem))


def _fits(mask: torch.Tensor | None, query: torch.Tensor, keys: int, is_causal: bool) -> bool:
    if mask is None:
        return True
    scores = (*query.shape[:-1], keys)
    if is_causal or not 2 <= mask.ndim <= len(scores) or mask.device != query.device:
        return False
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return False
    return all(size in (1, whole) for size, whole in zip(reversed(mask.shape), reversed(scores), strict=False))


def _transformed() -> bool:
    """Whether torch.func or forward-mode derivatives are at work, which the operator does not know."""
    return peek_interpreter_stack() is not None or forward_level_of(torch.autograd.forward_ad) >= 0


def _allowed() -> bool:
    """Whether `torch.nn.attention.sdpa_kernel` leaves a choice beside the composition of other operators."""
    return get_flash_sdp_enabled() or get_mem_efficient_sdp_enabled()


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    # a tensor, so that the backward pass has the same
    seed = torch.randint(2**63 - 1, (), device=query.device, dtype=torch.int64) if dropout_p else None
    return torch.ops.lazy_runtime.attention(query, key, value, mask, seed, dropout_p, is_causal, scale)[0]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.dropout_p, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: torch.Tensor | None, grad_logsumexp: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 8
    query, key, value, mask, seed, attended, logsumexp = ctx.saved_tensors
    wants_mask = ctx.needs_input_grad[3]
    if torch.is_grad_enabled():
        if seed is not None or not _are_few(query, key.shape[-2]):
            raise NotImplementedError(
                "second derivatives of scaled_dot_product_attention with so many scores: call it within "
                "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), which holds all of them in memory"
            )
        return *_differentiable_gradients(ctx, grad, query, key, value, mask), None, None, None, None
    *grads, grad_mask = torch.ops.lazy_runtime.attention_backward(
        grad, query, key, value, mask, seed, attended, logsumexp, ctx.dropout_p, ctx.is_causal, ctx.scale, wants_mask
    )
    return *grads, grad_mask if wants_mask else None, None, None, None, None


def _differentiable_gradients(
    ctx: Any, grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> list[torch.Tensor | None]:
    """The gradients of the queries, keys, values and mask by way of other operators, which have second ones."""
    # tensors of their own: keys that are made of the queries give these no part of their gradient
    inputs = [x if x is None else x.view_as(x) for x in (query, key, value, mask)]
    query, key, value, mask = inputs  # type: ignore[assignment]
    attended = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, mask, 0.0, ctx.is_causal, scale=ctx.scale, enable_gqa=_shares_heads(query, key)
    )[0]
    wanted = [x for x, needed in zip(inputs, ctx.needs_input_grad, strict=False) if x is not None and needed]
    found = iter(torch.autograd.grad(attended, wanted, grad, create_graph=True))
    return [next(found) if needed else None for needed in ctx.needs_input_grad[:4]]


def _shares_heads(query: torch.Tensor, key: torch.Tensor) -> bool:
    return query.ndim > 2 and query.shape[-3] != key.shape[-3]


def register(library: torch.library.Library) -> None:
    """Registers these with torch's dispatcher."""
    library.impl("scaled_dot_product_attention", scaled_dot_product_attention, "AutogradXLA")
    # inference mode skips autograd's keys
    library.impl("scaled_dot_product_attention", scaled_dot_product_attention, "Functionalize")
    torch.library.register_autograd("lazy_runtime::attention", _gradients, setup_context=_save)
