"""Operators that may choose among equal elements: what does not depend on the choice."""

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


#: Name of an operator → function(result, *args, **kwargs) that gives what to compare of it.
UNORDERED: dict[str, Callable[..., Any]] = {"argsort": _argsort, "sort": _sort, "topk": _topk}
