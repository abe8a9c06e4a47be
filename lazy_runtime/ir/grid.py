"""The grid: the one mesh over which all shardings of SPMD programs are written, whatever meshes the user has.

XLA gives the results' shardings as numbers, and jax can write them down again only over a mesh of the program's; over
one of two it fails. So each axis of a user's mesh is one or more axes of the grid, whose sizes are prime numbers: the
meshes 4 and 2×2 are both made of the axes 2 and 2. Equal shardings are equal keys then, however they were said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..compat.jaxlib import device_assignment_of


def of(devices: Sequence[Any], shape: Sequence[int]) -> Mesh:
    """The grid of jax devices that stand in a mesh of this shape, row by row."""
    sizes = [prime for size in shape for prime in _primes(size)] or [1]
    return Mesh(np.array(devices, dtype=object).reshape(sizes), tuple(f"d{number}" for number in range(len(sizes))))


def _primes(number: int) -> list[int]:
    found = []
    prime = 2
    while number > 1:
        while number % prime == 0:
            found.append(prime)
            number //= prime
        prime += 1
    return found


def axes(grid: Mesh, positions: np.ndarray) -> list[tuple[str, ...]] | None:
    """For each axis of a mesh, the grid's axes that it consists of, the slowest first; None if it consists of none.

    Args:
        positions: the mesh, as numbers of the grid's devices, row by row.
    """
    strides = _strides(grid.devices.shape)
    by_stride = {stride: number for number, stride in enumerate(strides) if grid.devices.shape[number] > 1}
    found: list[list[int]] = []
    for axis, size in enumerate(positions.shape):
        along = np.moveaxis(positions, axis, 0).reshape(size, -1)[:, 0]
        parts: list[int] = []
        step = 1
        while step < size:
            number = by_stride.get(int(along[step] - along[0]))
            if number is None:
                return None
            parts.insert(0, number)
            step *= grid.devices.shape[number]
        if step != size:
            return None
        found.append(parts)
    if not np.array_equal(_positions(grid.devices.shape, found), positions):
        return None
    return [tuple(grid.axis_names[number] for number in parts) for parts in found]


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[number + 1 :]) for number in range(len(shape))]


def _positions(shape: Sequence[int], mesh: Sequence[Sequence[int]]) -> np.ndarray:
    """The mesh whose axes consist of these axes of the grid."""
    strides = _strides(shape)
    found = np.zeros((), np.int64)
    for parts in mesh:
        steps = np.zeros(1, np.int64)
        for number in parts:
            steps = np.add.outer(steps, np.arange(shape[number]) * strides[number]).reshape(-1)
        found = np.add.outer(found, steps)
    return found


def sharding(grid: Mesh, parts: Sequence[tuple[str, ...]]) -> NamedSharding:
    """The sharding that cuts each dimension along these axes of the grid; its one form."""
    spec: list[Any] = [names[0] if len(names) == 1 else names or None for names in parts]
    while spec and spec[-1] is None:
        spec.pop()
    return NamedSharding(grid, PartitionSpec(*spec))


def normal(grid: Mesh, found: jax.sharding.Sharding) -> jax.sharding.Sharding | None:
    """The one form of a sharding over the grid's devices; None for one over others, or in another order."""
    if isinstance(found, NamedSharding) and found.mesh == grid:
        return sharding(grid, [names(entry) for entry in found.spec])
    if tuple(device_assignment_of(found)) != tuple(grid.devices.flat):
        return None
    return sharding(grid, []) if found.is_fully_replicated else found


def names(entry: Any) -> tuple[str, ...]:
    """The axes in an entry of a `PartitionSpec`."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
