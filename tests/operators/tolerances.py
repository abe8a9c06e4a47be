"""How near is near enough, and what cannot be compared by value.

The bounds are for |result - expected| <= atol + rtol * |expected|.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch


class Bounds(NamedTuple):
    rtol: float
    atol: float


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
EXACT = Bounds(0.0, 0.0)

#: (pattern of entries, factor on the default bounds, reason)
FAMILIES: list[tuple[str, float, str]] = []

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


def bounds(entry: str, dtype: torch.dtype) -> Bounds:
    """The bounds for an entry's floating point results of a dtype; exact for all others."""
    found = DEFAULT.get(dtype)
    if found is None:
        return EXACT
    for pattern, factor, _ in FAMILIES:
        if re.fullmatch(pattern, entry):
            return Bounds(found.rtol * factor, found.atol * factor)
    return found
