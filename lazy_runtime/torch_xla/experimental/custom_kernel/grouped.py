"""Products of which groups of rows have a matrix each (a mixture of experts), by `jax.lax.ragged_dot`."""

from __future__ import annotations

from typing import Any

import torch

from ....functions import jax_function

__all__ = ["GMM", "gmm", "gmm_backward", "gmm_xla", "repeat_with_fixed_output_size", "tgmm"]

Tensor = torch.Tensor
Tiling = tuple[int, int, int]


def gmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    tiling: Tiling = (512, 512, 512),
    group_offset: Tensor | None = None,
    transpose_rhs: bool = False,
) -> Tensor:
    """Multiplies the rows of each group with its matrix: the first `group_sizes[0]` with `rhs[0]`, and so on.

    Args:
        lhs: [m, k].
        rhs: [groups, k, n]; with `transpose_rhs` [groups, n, k].
        group_sizes: int32 [all groups], together at most m.
        tiling: of a kernel, which has no meaning where none runs.
        group_offset: int32 [1], the group that `rhs` begins with; rows of groups that it does not have are 0.
        transpose_rhs: the matrices are transposed.

    Returns:
        [m, n] in the dtype of `lhs`; 0 in rows of no group. It has no gradient: use `GMM.apply`.
    """

    def multiply(lhs: Any, rhs: Any, sizes: Any, *offset: Any) -> list[Any]:
        import jax

        if transpose_rhs:
            rhs = rhs.swapaxes(1, 2)
        if offset:
            rhs, sizes = _from_offset(rhs, sizes, offset[0])
        return [jax.lax.ragged_dot(lhs, rhs, sizes.astype("int32")).astype(lhs.dtype)]

    tensors = [lhs, rhs, group_sizes, *([] if group_offset is None else [group_offset])]
    return jax_function.call(multiply, tensors, ("gmm", transpose_rhs), "gmm")[0]


def gmm_xla(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    tiling: Tiling = (512, 512, 512),
    group_offset: Tensor | None = None,
    transpose_rhs: bool = False,
) -> Tensor:
    """`torch.ops.xla.gmm`: see `gmm`."""
    return gmm(lhs, rhs, group_sizes, tiling, group_offset, transpose_rhs)


def tgmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    tiling: Tiling = (512, 512, 512),
    group_offset: Tensor | None = None,
    num_actual_groups: int | None = None,
) -> Tensor:
    """For each group the product of its columns of `lhs` with its rows of `rhs`: what the gradient of `gmm` is made of.

    Args:
        lhs: [k, m].
        rhs: [m, n].
        group_sizes: int32 [groups], together at most m.
        tiling: see `gmm`.
        group_offset: int32 [1], the first group of the result.
        num_actual_groups: how many the result has; by default all.

    Returns:
        [groups, k, n] in the dtype of `lhs`.
    """
    count = group_sizes.shape[0] if num_actual_groups is None else num_actual_groups

    def multiply(lhs: Any, rhs: Any, sizes: Any, *offset: Any) -> list[Any]:
        import jax
        import jax.numpy as jnp

        groups = sizes.shape[0]

        def of_matrices(matrices: Any) -> Any:
            return jax.lax.ragged_dot(lhs.T, matrices, sizes.astype("int32"))

        zeros = jnp.zeros((groups, lhs.shape[0], rhs.shape[1]), lhs.dtype)
        (found,) = jax.linear_transpose(of_matrices, zeros)(rhs.astype(lhs.dtype))
        first = offset[0].reshape(()) if offset else 0
        return [jax.lax.dynamic_slice_in_dim(found, first, count)]

    tensors = [lhs, rhs, group_sizes, *([] if group_offset is None else [group_offset])]
    return jax_function.call(multiply, tensors, ("tgmm", count), "tgmm")[0]


def gmm_backward(
    grad: Tensor, lhs: Tensor, rhs: Tensor, group_sizes: Tensor, tiling: Tiling = (512, 512, 512)
) -> tuple[Tensor, Tensor]:
    """The gradients of `lhs` [m, k] and `rhs` [groups, k, n] in `gmm`, from that of its result, [m, n]."""
    return (
        gmm(grad, rhs, group_sizes, tiling, transpose_rhs=True),
        tgmm(lhs.t(), grad, group_sizes, tiling),
    )


class GMM(torch.autograd.Function):
    """`gmm` with gradients: `GMM.apply(lhs, rhs, group_sizes, tiling)`."""

    @staticmethod
    def forward(ctx: Any, lhs: Tensor, rhs: Tensor, group_sizes: Tensor, tiling: Tiling = (512, 512, 512)) -> Tensor:
        ctx.save_for_backward(lhs, rhs, group_sizes)
        ctx.tiling = tiling
        return gmm(lhs, rhs, group_sizes, tiling)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # type: ignore[override]
        lhs, rhs, group_sizes = ctx.saved_tensors
        return *gmm_backward(grad_output, lhs, rhs, group_sizes, ctx.tiling), None, None


def _from_offset(rhs: Any, sizes: Any, offset: Any) -> tuple[Any, Any]:
    """The matrices with one of zeros in front, for the rows of all groups before the first of them."""
    import jax
    import jax.numpy as jnp

    first = offset.reshape(())
    before = jnp.where(jnp.arange(sizes.shape[0]) < first, sizes, 0).sum(keepdims=True).astype(sizes.dtype)
    own = jax.lax.dynamic_slice_in_dim(sizes, first, rhs.shape[0])
    return jnp.concatenate([jnp.zeros_like(rhs[:1]), rhs]), jnp.concatenate([before, own])


def repeat_with_fixed_output_size(input: Tensor, repeats: Tensor, total_repeat_length: int) -> Tensor:
    """`torch.repeat_interleave` of a vector, whose length does not depend on data.

    Args:
        input: [n].
        repeats: integers [n].
        total_repeat_length: of the result. Elements beyond are dropped, and missing ones are the last of `input`.

    Raises:
        ValueError: one of the tensors is no vector.
    """
    if input.dim() != 1 or repeats.dim() != 1:
        raise ValueError(f"expected vectors, got shapes {list(input.shape)} and {list(repeats.shape)}")
    ends = repeats.cumsum(0)
    places = torch.searchsorted(ends, torch.arange(total_repeat_length, device=input.device), right=True)
    return input[places.clamp(max=len(input) - 1)]
