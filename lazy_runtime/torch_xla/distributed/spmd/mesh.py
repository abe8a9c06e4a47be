"""Meshes: the devices of all processes in rows and columns, with a name for each direction."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import op_sharding
from .op_sharding import OpSharding

#: What cuts one dimension of a tensor: an axis of the mesh by number or name, several, or none.
Cut = int | str | Sequence[int | str] | None
PartitionSpec = Sequence[Cut]


class Mesh:
    """Devices as a grid of any number of dimensions.

    Args:
        device_ids: their numbers, 0 to n - 1, row by row.
        mesh_shape: how many there are along each axis.
        axis_names: what the axes are called in partition specs, beside their numbers.

    Attributes:
        device_ids: int64[n].
        mesh_shape, axis_names: as given, as tuples.

    Raises:
        ValueError: the shape has not as many places as there are devices, a device or a name comes twice, or the names
            are not one for each axis.
    """

    def __init__(
        self, device_ids: np.ndarray | Sequence[int], mesh_shape: Sequence[int], axis_names: Sequence[str] | None = None
    ):
        self.device_ids = np.array(device_ids, np.int64).reshape(-1)
        self.mesh_shape = tuple(int(size) for size in mesh_shape)
        self.axis_names: tuple[str, ...] | None = None if axis_names is None else tuple(axis_names)
        self.numbers: list[int] = self.device_ids.tolist()  # the same for Dynamo, to which an array is a tensor
        if len(self.numbers) != np.prod(self.mesh_shape):
            raise ValueError(
                f"a mesh of shape {self.mesh_shape} has {np.prod(self.mesh_shape)} places, and there are "
                f"{len(self.numbers)} devices: {self.numbers}"
            )
        if len(set(self.numbers)) < len(self.numbers):
            raise ValueError(f"a mesh has each device once, got device_ids {self.numbers}")
        if self.axis_names is not None and not (
            len(self.axis_names) == len(self.mesh_shape) == len(set(self.axis_names))
        ):
            raise ValueError(f"axis_names: expected a name for each axis of {self.mesh_shape}, got {self.axis_names}")

    def size(self) -> int:
        """How many devices it has."""
        return len(self.numbers)

    def shape(self) -> OrderedDict[Any, int]:
        """How many devices there are along each axis, by its name, or by its number where it has none."""
        return OrderedDict(zip(self.axis_names or range(len(self.mesh_shape)), self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> np.ndarray:
        """The device numbers in the mesh's shape."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """The number of the axis of this name; None if there is none."""
        names = self.axis_names or ()
        return names.index(name) if name in names else None

    def cuts(self, partition_spec: PartitionSpec) -> list[list[int]]:
        """For each entry of a partition spec, the numbers of the axes that it names.

        Raises:
            ValueError: there is no such axis, or one is named twice.
        """
        found = [[self._axis(axis) for axis in _axes(cut)] for cut in partition_spec]
        used = [axis for along in found for axis in along]
        if len(set(used)) < len(used):
            raise ValueError(f"partition_spec: each axis of the mesh cuts one dimension at most, got {partition_spec}")
        return found

    def _axis(self, axis: Any) -> int:
        if isinstance(axis, str):
            found = self.get_axis_name_idx(axis)
            if found is not None:
                return found
        elif 0 <= axis < len(self.mesh_shape):
            return int(axis)
        known = ", ".join(f"{name!r} ({size})" for name, size in self.shape().items())
        raise ValueError(f"partition_spec: the mesh has no axis {axis!r}; its axes are {known}")

    def get_op_sharding(self, partition_spec: PartitionSpec) -> OpSharding:
        """Which device has which tile of a tensor that is cut so."""
        return op_sharding.of_mesh(self, partition_spec)

    def get_op_sharding_v2(self, partition_spec: PartitionSpec) -> OpSharding:
        """The same: XLA has two ways to write a sharding, which mean one."""
        return op_sharding.of_mesh(self, partition_spec)

    def get_jax_mesh(self) -> Any:
        """The mesh as `jax.sharding.Mesh`, whose axes are called by their numbers where they have no names.

        Raises:
            ValueError: jax has no device of a number.
        """
        import jax

        known = {device.id: device for device in jax.devices()}
        missing = [number for number in self.numbers if number not in known]
        if missing:
            raise ValueError(f"get_jax_mesh: jax has no device {missing[0]}, it has {sorted(known)}")
        names = self.axis_names or tuple(map(str, range(len(self.mesh_shape))))
        devices = np.array([known[number] for number in self.numbers], dtype=object)
        return jax.sharding.Mesh(devices.reshape(self.mesh_shape), names)

    @classmethod
    def from_str(cls, mesh_str: str) -> Mesh | None:
        """The mesh that `str(mesh)` was of; None if it was of none."""
        try:
            found = ast.literal_eval(mesh_str)
            return Mesh(found["device_ids"], found["mesh_shape"], found["axis_names"])
        except (ValueError, SyntaxError, KeyError, TypeError):
            return None

    def __str__(self) -> str:
        return str({"device_ids": self.numbers, "mesh_shape": self.mesh_shape, "axis_names": self.axis_names})

    def __repr__(self) -> str:
        return f"Mesh({self.numbers}, {self.mesh_shape}, {self.axis_names})"


def _axes(cut: Any) -> Sequence[Any]:
    if cut is None:
        return ()
    return cut if isinstance(cut, list | tuple) else (cut,)


class HybridMesh(Mesh):
    """A mesh for hosts with a fast network within and a slower one among them. Along each axis there are as many
    devices as both shapes have together, those of one process side by side.

    Args:
        ici_mesh_shape: the mesh of each process's devices.
        dcn_mesh_shape: the mesh of the processes, which the slower network connects; by default there is one.
        axis_names: see `Mesh`.

    Raises:
        ValueError: the shapes have not as many axes, or `dcn_mesh_shape` not as many places as there are processes.
    """

    def __init__(
        self,
        *,
        ici_mesh_shape: Sequence[int],
        dcn_mesh_shape: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
    ):
        self.ici_mesh_shape = tuple(ici_mesh_shape)
        self.dcn_mesh_shape = (1,) * len(self.ici_mesh_shape) if dcn_mesh_shape is None else tuple(dcn_mesh_shape)
        from ... import runtime as xr

        axes, count = len(self.ici_mesh_shape), xr.process_count()
        if len(self.dcn_mesh_shape) != axes or np.prod(self.dcn_mesh_shape) != count:
            raise ValueError(
                f"dcn_mesh_shape: expected a place for each of {count} process{'es' * (count > 1)} along {axes} axes, "
                f"as {(count, *[1] * (axes - 1))}, got {self.dcn_mesh_shape}"
            )
        both = np.arange(np.prod(self.ici_mesh_shape) * count).reshape(self.dcn_mesh_shape + self.ici_mesh_shape)
        shape = [outer * inner for outer, inner in zip(self.dcn_mesh_shape, self.ici_mesh_shape, strict=True)]
        pairs = [axis for pair in zip(range(axes), range(axes, 2 * axes), strict=True) for axis in pair]
        super().__init__(both.transpose(pairs), shape, axis_names)


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """All devices in a row.

    Args:
        axis_name: what the only axis is called.
    """
    from ... import runtime as xr

    count = xr.global_runtime_device_count()
    return Mesh(np.arange(count), (count,), None if axis_name is None else (axis_name,))


_global_mesh: Mesh | None = None


def set_global_mesh(mesh: Mesh | None) -> None:
    """Sets the mesh that is used where none is given."""
    global _global_mesh
    _global_mesh = mesh


def get_global_mesh() -> Mesh | None:
    """The mesh that was set with `set_global_mesh`."""
    return _global_mesh
