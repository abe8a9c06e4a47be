"""Operators that may choose, among equal elements or the signs of vectors: what does not depend on the choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _sort(result: Any, x: torch.Tensor, dim: Any = -1, descending: bool = False, stable: bool = False) -> Any:
    return result if stable else (result.values, *_permutation(result.indices, x, dim))


def _argsort(result: Any, x: torch.Tensor, dim: Any = -1, descending: bool = False, stable: bool = False) -> Any:
    return result if stable else _permutation(result, x, dim)


def _permutation(indices: torch.Tensor, x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the indices select, and that each is there once."""
    return x.take_along_dim(indices, dim), indices.sort(dim).values


def _topk(result: Any, x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return result.values, x.take_along_dim(result.indices, dim)


def _kthvalue(result: Any, x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False, **out: Any) -> Any:
    return _mode(result, x, dim, keepdim)


def _mode(result: Any, x: torch.Tensor, dim: int = -1, keepdim: bool = False, **out: Any) -> Any:
    """The values, and what the indices select."""
    if x.dim() == 0:
        return result
    indices = result.indices if keepdim else result.indices.unsqueeze(dim)
    return result.values, x.take_along_dim(indices, dim)


def _svd(result: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The singular values, the vectors but for a factor of size 1 that two of them share, and the product of all. The
    vectors that complete a basis are any: their projection is compared.
    """
    u, s, v = result
    vh = v if hasattr(result, "Vh") else v.mH
    k = s.shape[-1]
    pairs = u[..., :k].abs(), s, vh[..., :k, :].abs()
    return *pairs, (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], u @ u.mH, vh.mH @ vh


def _eigh(result: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The eigenvalues, the vectors but for a factor of size 1 each, and the product of all."""
    values, vectors = result
    return values, vectors.abs(), (vectors * values.unsqueeze(-2)) @ vectors.mH


def _eig(result: Any, x: torch.Tensor) -> Any:
    """The eigenvalues, the vectors but for a factor of size 1 each, and by how much they miss being eigenvectors."""
    values, vectors = result
    return values, vectors.abs(), x.to(vectors.dtype) @ vectors - vectors * values.unsqueeze(-2)


#: Name of an operator → function(result, *args, **kwargs) that gives what to compare of it.
UNORDERED: dict[str, Callable[..., Any]] = {
    "argsort": _argsort,
    "sort": _sort,
    "topk": _topk,
    "kthvalue": _kthvalue,
    "mode": _mode,
    "svd": _svd,
    "linalg.svd": _svd,
    "linalg.eigh": _eigh,
    "linalg.eig": _eig,
}
