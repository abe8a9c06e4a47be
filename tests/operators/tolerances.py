"""How near is near enough, and what cannot be compared by value.

The bounds are for |result - expected| <= atol + rtol * |expected|. Where the CPU's result fails them, an element that
keeps them against the same call in 64 bits is as good: the CPU's own rounding was the larger (`compare.Comparison`).
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import torch


class Bounds(NamedTuple):
    rtol: float
    atol: float

    def times(self, factor: float) -> Bounds:
        return Bounds(self.rtol * factor, self.atol * factor)


#: XLA sums, and evaluates transcendental functions, in another order and with other polynomials than ATen's vector
#: code: some units in the last place, times the length of the samples' sums (at most a few hundred terms).
DEFAULT = {
    torch.float64: Bounds(1e-9, 1e-9),
    torch.complex128: Bounds(1e-9, 1e-9),
    torch.float32: Bounds(2e-5, 2e-5),
    torch.complex64: Bounds(2e-5, 2e-5),
    # the CPU rounds after each of several steps where one XLA program rounds once: two units in the last place
    torch.float16: Bounds(2e-3, 2e-3),
    torch.bfloat16: Bounds(1.6e-2, 1e-2),
}


class Family(NamedTuple):
    """Entries with bounds of their own.

    Attributes:
        entries: a regular expression over the whole name.
        reason: why the default does not do.
        factor: on the default bounds.
        scaled: the absolute bound is the relative one of the result's largest element, if that is more.
        units: by how much integers may differ.
    """

    entries: str
    reason: str
    factor: float = 1.0
    scaled: bool = False
    units: int = 0


FAMILIES = [
    Family(
        "addbmm|addmm.*|addmv|addr|baddbmm|bmm|mm|mv|matmul|__rmatmul__|cross|linalg_cross|dot|vdot|inner|einsum"
        "|tensordot|linalg_multi_dot|linalg_vecdot|nn_functional_(linear|bilinear|conv.*|scaled_dot_product_attention)",
        "sums of products that cancel: what rounding leaves goes with the terms, not with their sum",
        scaled=True,
    ),
    Family(
        "matrix_exp|linalg_lstsq.*",
        "the algorithms' errors have bounds in terms of the whole matrix: they go with its largest element",
        scaled=True,
    ),
    Family(
        "linalg_householder_product",
        "as above; its gradients undo one reflection after the other, and the CPU's own are off by 4e-5 of the largest",
        factor=6,
        scaled=True,
    ),
    Family(
        "nn_functional_interpolate_(bilinear|bicubic)|nn_functional_upsample_bilinear|_upsample_bilinear2d_aa",
        "of uint8: torch's kernels have weights in fixed point, and differ by one between memory formats themselves",
        units=1,
    ),
    Family(
        "grid_sampler_2d|grid_sampler_3d|nn_functional_grid_sample",
        "gradients of a grid are sums of products that cancel, times the image's size",
        scaled=True,
    ),
    Family("nn_functional_ctc_loss", "sums over paths of up to 50 steps, as logarithms around -100", factor=4),
    Family("Muon", "orthogonalizes its updates in bfloat16, whose roundings are 4e-3 of steps of 1e-2 each", factor=50),
]

#: Entries whose elements are what happened to be in memory.
UNDEFINED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    }
)


@functools.cache
def family(entry: str) -> Family:
    """The family of an entry."""
    return next((found for found in FAMILIES if re.fullmatch(found.entries, entry)), Family("", ""))


def bounds(entry: str, direction: str, expected: torch.Tensor) -> Bounds:
    """The bounds for a result of an entry."""
    of = family(entry)
    found = DEFAULT.get(expected.dtype)
    if found is None:
        return Bounds(0.0, of.units)
    found = found.times(of.factor)
    # A gradient is a sum over the uses of an input, in the input's dtype: what rounding leaves goes with the largest.
    # So it does in sums of integers at the ends of their types, which cancel.
    if (of.scaled or direction in ("backward", "limits")) and expected.numel():
        largest = expected.abs().nan_to_num(0.0, 0.0, 0.0).max().item()
        found = Bounds(found.rtol, max(found.atol, found.rtol * largest))
    return found
