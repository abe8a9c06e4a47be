"""Rounds otherwise, as another correct implementation of the operators would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_BITS = {torch.float64: torch.int64, torch.float32: torch.int32}

#: Operators that round nothing: they move values, choose among them, or give whole numbers.
_EXACT = frozenset(
    [
        *("_to_copy", "abs", "adaptive_max_pool2d", "adaptive_max_pool3d", "amax", "amin", "aminmax", "arange"),
        *("argmax", "argmin", "bernoulli", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "clone"),
        *("constant_pad_nd", "copysign", "cummax", "cummin", "diag_embed", "embedding", "empty", "empty_like"),
        *("eye", "fill", "flip", "floor", "full", "full_like", "gather", "index", "index_copy", "index_fill"),
        *("index_put", "index_select", "isnan", "kthvalue", "lift_fresh", "linspace", "masked_fill"),
        *("masked_scatter", "max", "max_pool2d_with_indices", "max_pool3d_with_indices", "maximum", "median"),
        *("min", "minimum", "neg", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "rand", "randn"),
        *("reflection_pad1d", "reflection_pad2d", "relu", "repeat", "replication_pad1d", "replication_pad2d"),
        *("roll", "round", "scatter", "select_scatter", "sgn", "sign", "slice_scatter", "sort", "stack"),
        *("take", "threshold", "topk", "tril", "triu", "trunc", "where", "zeros", "zeros_like"),
    ]
)


#: What subtracts a mean: an implementation that multiplies before it subtracts leaves rounding where another has zeros.
#: They give the inverse of the deviation as their third result.
_CENTERING = frozenset(["native_batch_norm", "_native_batch_norm_legit", "native_group_norm", "native_layer_norm"])

#: ... and what adds squares of such differences: equal numbers have a deviation of 0, or of rounding.
_DEVIATIONS = frozenset(["std", "std_mean"])


class Rounding(TorchDispatchMode):
    """Moves what each operator computes by -1, 0 or 1 units in the last place, backward and in the optimizer as well.

    Args:
        seed: of how they are moved.
        keeps_ties: whether equal results of one operator are moved alike. Those of equal operands are equal in any
            implementation; those of other operands need not be.
        gives_zeros: whether a difference of equal numbers is 0, not what rounding left of it.
    """

    def __init__(self, seed: int, keeps_ties: bool, gives_zeros: bool = False):
        super().__init__()
        self._seed = seed
        self._keeps_ties = keeps_ties
        self._gives_zeros = gives_zeros

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if name in _CENTERING and found[0].dtype in _BITS and found[0].numel() and found[2].numel():
            self._seed += 1
            _blur(found[0], args[0].detach().abs().amax() * found[2].amax(), self._seed, self._gives_zeros)
        if name in _DEVIATIONS and not self._gives_zeros:
            deviation = found[0] if isinstance(found, tuple) else found
            if deviation.dtype in _BITS and args[0].numel():
                self._seed += 1
                _blur_deviation(deviation, args[0].detach().abs().amax(), self._seed)
        if name not in _EXACT and all(each.alias_info is None for each in func._schema.returns):
            for x in found if isinstance(found, (tuple, list)) else (found,):
                if isinstance(x, torch.Tensor) and x.dtype in _BITS:
                    self._seed += 1
                    _move(x, self._seed, self._keeps_ties)
        return found


def _blur(x: torch.Tensor, scale: torch.Tensor, seed: int, gives_zeros: bool) -> None:
    """Rounds as numbers of a scale are rounded, to 0 too, or adds such rounding. Equal elements stay equal."""
    x = x.detach()
    unit = scale * torch.finfo(x.dtype).eps
    if gives_zeros:
        x.copy_(torch.where(unit > 0, (x / unit).round() * unit, x))
    else:
        x.add_(_steps(x.view(_BITS[x.dtype]).long() ^ seed) * unit)


def _blur_deviation(x: torch.Tensor, scale: torch.Tensor, seed: int) -> None:
    """Adds what rounding of numbers of a scale leaves, which is never negative."""
    x = x.detach()
    x.add_(_steps(x.view(_BITS[x.dtype]).long() ^ seed).abs() * scale * torch.finfo(x.dtype).eps)


def _move(x: torch.Tensor, seed: int, keeps_ties: bool) -> None:
    bits = x.detach().view(_BITS[x.dtype])
    mixed = bits.long() ^ seed
    if not keeps_ties:
        mixed = mixed + torch.arange(x.numel(), dtype=torch.int64).reshape(x.shape) * 7919
    bits.add_((_steps(mixed) * (x.isfinite() & (x != 0))).to(bits.dtype))


def _steps(mixed: torch.Tensor) -> torch.Tensor:
    """-1, 0 or 1 for each number."""
    mixed = mixed * 0x9E3779B1  # a multiplicative hash: neighbours are far apart
    return (mixed >> 17).remainder(3) - 1
