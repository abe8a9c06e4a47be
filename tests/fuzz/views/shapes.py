"""What the fuzzer asks of shapes, and of where tensors lie in memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from .language import positions


def is_expanded(x: torch.Tensor) -> bool:
    return any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True))


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    try:
        return tuple(torch.broadcast_shapes(shape, to)) == tuple(to)
    except RuntimeError:
        return False


def shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage()._cdata == y.untyped_storage()._cdata


def has_views(x: torch.Tensor) -> bool:
    """Whether other tensors show its memory, which here `x` holds and the storage that is asked for."""
    return torch._C._storage_Use_Count(x.untyped_storage()._cdata) > 2


def places(x: torch.Tensor) -> list[int]:
    """The bytes of the storage that the elements cover, in order."""
    size = x.dtype.itemsize
    return [place * size + byte for place in positions(x).reshape(-1).tolist() for byte in range(size)]


def _factors(count: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [(count,)]
    found += [(a, b) for a in range(1, count + 1) for b in range(1, count + 1) if a * b == count]
    found += [(a, b, c) for a, b, c in itertools.product(range(1, 4), repeat=3) if a * b * c == count]
    return found


#: Shapes by their number of elements.
FACTORS = {count: _factors(count) for count in range(1, 19)} | {0: [(0,), (0, 2), (2, 0), (1, 0, 3)]}
FACTORS[1].append(())
