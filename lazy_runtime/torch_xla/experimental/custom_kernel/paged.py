"""Attention over keys and values that lie in pages, as a server of language models keeps them.

The masks and scales are those of jax's kernels of the same names. All pages of a sequence are read.
"""

from __future__ import annotations

from typing import Any

import torch

from ....functions import jax_function
from .flash import DEFAULT_MASK_VALUE

__all__ = [
    "multi_queries_paged_attention",
    "multi_queries_paged_attention_xla",
    "paged_attention",
    "paged_attention_xla",
    "ragged_paged_attention",
    "ragged_paged_attention_xla",
]

Tensor = torch.Tensor


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lengths: Tensor,
    page_indices: Tensor,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """The attention of one query for each sequence.

    Args:
        q: [sequences, heads, width], scaled by the caller.
        k_pages, v_pages: [key heads, pages, page size, width]; the key heads divide the heads.
        lengths: int32 [sequences], how many keys each sequence has.
        page_indices: int32 [sequences, pages of one], where they lie.
        pages_per_compute_block: of a kernel; it divides the pages of a sequence.
        megacore_mode: of a kernel: "kv_head", "batch" or None.
        attn_logits_soft_cap: `c` in `c tanh(logits / c)`.

    Returns:
        [sequences, heads, width] in the dtype of `q`.

    Raises:
        ValueError: there is no such mode, or the block does not divide the pages.
    """
    if megacore_mode not in ("kv_head", "batch", None):
        raise ValueError(f"megacore_mode: expected 'kv_head', 'batch' or None, got {megacore_mode!r}")
    if page_indices.shape[1] % pages_per_compute_block:
        raise ValueError(
            f"pages_per_compute_block: {pages_per_compute_block} does not divide the {page_indices.shape[1]} pages of "
            "a sequence"
        )
    ones = torch.ones_like(lengths)
    found = multi_queries_paged_attention(
        q.unsqueeze(1),
        k_pages,
        v_pages,
        lengths,
        page_indices,
        ones,
        pages_per_compute_block,
        1,
        False,
        attn_logits_soft_cap,
    )
    return found.squeeze(1)


def multi_queries_paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lengths: Tensor,
    page_indices: Tensor,
    effective_q_lens: Tensor,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int,
    use_kernel: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """The attention of several queries for each sequence, each of which sees the keys up to its own place.

    Args:
        q: [sequences, queries, heads, width], scaled by the caller.
        k_pages, v_pages, lengths, page_indices: see `paged_attention`.
        effective_q_lens: int32 [sequences], how many of the queries count: they are a sequence's last places.
        num_kv_pages_per_compute_block, num_queries_per_compute_block, use_kernel: of a kernel.
        attn_logits_soft_cap: see `paged_attention`.

    Returns:
        [sequences, queries, heads, width] in the dtype of `q`; of queries that do not count, any finite numbers.

    Raises:
        ValueError: `q` has another number of dimensions.
    """
    if q.dim() != 4:
        raise ValueError(f"q: expected [sequences, queries, heads, width], got {list(q.shape)}")
    key = "multi_queries_paged_attention", attn_logits_soft_cap

    def attend(q: Any, k_pages: Any, v_pages: Any, lengths: Any, indices: Any, counts: Any) -> list[Any]:
        import jax
        import jax.numpy as jnp

        def of_one(q: Any, length: Any, indices: Any, count: Any) -> Any:
            keys, values = (_in_order(pages[:, indices]) for pages in (k_pages, v_pages))
            places = (length - count) + jnp.arange(q.shape[0])
            seen = _seen(places, keys.shape[0], length)
            return _attention(q, keys, values, seen, 1.0, attn_logits_soft_cap, DEFAULT_MASK_VALUE)

        return [jax.vmap(of_one)(q, lengths, indices, counts)]

    tensors = [q, k_pages, v_pages, lengths, page_indices, effective_q_lens]
    return jax_function.call(attend, tensors, key, "multi_queries_paged_attention")[0]


def ragged_paged_attention(
    q: Tensor,
    kv_pages: Tensor,
    kv_lens: Tensor,
    page_indices: Tensor,
    cu_q_lens: Tensor,
    num_seqs: Tensor,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    use_kernel: bool = True,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> Tensor:
    """The attention of the new tokens of several sequences, which lie one after the other, and each of which sees the
    keys of its sequence up to its own place.

    Args:
        q: [tokens, heads, width].
        kv_pages: [pages, page size, 2 · key heads, width], keys and values of a head side by side.
        kv_lens: int32 [sequences], how many keys each sequence has, its new tokens among them.
        page_indices: int32 [sequences, pages of one].
        cu_q_lens: int32 [sequences + 1], where in `q` the tokens of each sequence begin.
        num_seqs: int32 [1], how many of the sequences count.
        sm_scale: of the logits.
        sliding_window: how many keys a token sees at most, its own the last of them.
        soft_cap: `c` in `c tanh(logits / c)`.
        mask_value: what is added to masked logits; `DEFAULT_MASK_VALUE` by default.
        k_scale, v_scale: what keys and values that are stored in a narrow dtype are multiplied with.
        use_kernel, num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes: of a kernel.

    Returns:
        [tokens, heads, width] in the dtype of `q`; 0 for tokens of no sequence.
    """
    mask = DEFAULT_MASK_VALUE if mask_value is None else mask_value
    options = (sm_scale, sliding_window, soft_cap, mask, k_scale, v_scale)

    def attend(q: Any, kv_pages: Any, kv_lens: Any, indices: Any, starts: Any, count: Any) -> list[Any]:
        import jax
        import jax.numpy as jnp

        tokens = jnp.arange(q.shape[0])

        def of_one(result: Any, of_sequence: Any) -> Any:
            number, length, pages, start, end = of_sequence
            own = kv_pages[pages].reshape(-1, *kv_pages.shape[2:])
            keys, values = own[:, 0::2], own[:, 1::2]
            keys = keys if k_scale is None else (keys.astype(jnp.float32) * k_scale).astype(q.dtype)
            values = values if v_scale is None else (values.astype(jnp.float32) * v_scale).astype(q.dtype)
            places = (length - (end - start)) + tokens - start
            seen = _seen(places, keys.shape[0], length)
            if sliding_window is not None:
                seen &= jnp.arange(keys.shape[0]) > places[:, None] - sliding_window
            found = _attention(q, keys, values, seen, sm_scale, soft_cap, mask)
            is_own = (tokens >= start) & (tokens < end) & (number < count.reshape(()))
            return jnp.where(is_own[:, None, None], found, result), None

        sequences = jnp.arange(kv_lens.shape[0]), kv_lens, indices, starts[:-1], starts[1:]
        return [jax.lax.scan(of_one, jnp.zeros_like(q), sequences)[0]]

    tensors = [q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs]
    return jax_function.call(attend, tensors, ("ragged_paged_attention", *options), "ragged_paged_attention")[0]


def _in_order(pages: Any) -> Any:
    """Keys of a sequence, [heads, pages, page size, width] as [keys, heads, width]."""
    return pages.reshape(pages.shape[0], -1, pages.shape[-1]).swapaxes(0, 1)


def _seen(places: Any, keys: int, length: Any) -> Any:
    """Which keys each query sees: those up to its place, of those that there are."""
    import jax.numpy as jnp

    numbers = jnp.arange(keys)
    return (numbers <= places[:, None]) & (numbers < length)


def _attention(q: Any, keys: Any, values: Any, seen: Any, scale: float, cap: float | None, mask: float) -> Any:
    """Of [queries, heads, width] over [keys, key heads, width], where `seen` [queries, keys] says so."""
    import jax
    import jax.numpy as jnp

    groups = q.shape[1] // keys.shape[1]
    keys, values = (jnp.repeat(x, groups, axis=1) for x in (keys, values))
    logits = jnp.einsum("qhd,khd->hqk", q, keys, preferred_element_type=jnp.float32) * scale
    if cap is not None:
        logits = cap * jnp.tanh(logits / cap)
    weights = jax.nn.softmax(jnp.where(seen, logits, logits + mask), axis=-1).astype(values.dtype)
    return jnp.einsum("hqk,khd->qhd", weights, values).astype(q.dtype)


paged_attention_xla = paged_attention
multi_queries_paged_attention_xla = multi_queries_paged_attention


def ragged_paged_attention_xla(
    q: Tensor,
    kv_pages: Tensor,
    kv_lens: Tensor,
    page_indices: Tensor,
    cu_q_lens: Tensor,
    num_seqs: Tensor,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    use_kernel: bool = True,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> Tensor:
    """`torch.ops.xla.ragged_paged_attention`: see `ragged_paged_attention`."""
    return ragged_paged_attention(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        mask_value=mask_value,
        k_scale=k_scale,
        v_scale=v_scale,
    )
