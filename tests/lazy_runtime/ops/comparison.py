"""An operator on xla against the same on torch's CPU tensors: results, and the gradients of every leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

#: Both sides round every element once and add in an order of their own, so they differ by a few units in the last place
#: of the largest term (`close` scales by it). bfloat16 has 8 bits, and gradients see rounded values twice.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}


def fresh(tree: Any, device: str) -> Any:
    """A copy of the tree's tensors on a device; those that want a gradient are leaves."""

    def move(x: Any) -> Any:
        return x.detach().to(device, copy=True).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x

    return tree_map(move, tree)


def close(result: Any, expected: Any, tolerance: float | None = None) -> None:
    """Asserts that two trees of tensors agree in dtype, sizes and values.

    Args:
        tolerance: instead of the one in `TOLERANCE`.
    """
    results, expecteds = tree_leaves(result), tree_leaves(expected)
    assert len(results) == len(expecteds)
    for got, wanted in zip(results, expecteds, strict=True):
        if not isinstance(wanted, torch.Tensor):
            assert got == wanted
            continue
        wanted = wanted.detach()
        inexact = wanted.dtype.is_floating_point or wanted.dtype.is_complex
        finite = wanted[wanted.isfinite()].abs().double() if inexact else wanted.new_empty(0)
        largest = max(1.0, finite.max().item()) if finite.numel() else 1.0
        bound = TOLERANCE.get(wanted.dtype, 0.0) if tolerance is None else tolerance
        torch.testing.assert_close(got.detach().cpu(), wanted, rtol=bound, atol=bound * largest, equal_nan=True)


def check(
    function: Callable,
    *args: Any,
    on: Callable | None = None,
    device: str = "xla",
    tolerance: float | None = None,
    **kwargs: Any,
) -> Any:
    """Calls `function` with CPU tensors, and it (or `on`) with the same on `device`; compares the results and the
    gradients. Returns the result on `device`.
    """
    args, kwargs = fresh(args, "cpu"), fresh(kwargs, "cpu")
    args_there, kwargs_there = fresh(args, device), fresh(kwargs, device)
    expected, result = function(*args, **kwargs), (on or function)(*args_there, **kwargs_there)
    close(result, expected, tolerance)
    leaves = _leaves((args, kwargs))
    if leaves:
        _backward(expected)
        _backward(result)
        for there, here in zip(_leaves((args_there, kwargs_there)), leaves, strict=True):
            close(there.grad, here.grad, tolerance)
    return result


def _leaves(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor) and x.requires_grad]


def _backward(outputs: Any) -> None:
    """Backward from every differentiable output, with gradients that are not all alike."""
    roots = [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    grads = [torch.linspace(-0.5, 1.5, x.numel()).reshape(x.shape).to(x.device, x.dtype) for x in roots]
    torch.autograd.backward(roots, grads)


def rand(*sizes: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    return torch.randn(sizes, dtype=torch.float64).to(dtype).requires_grad_(grad)
