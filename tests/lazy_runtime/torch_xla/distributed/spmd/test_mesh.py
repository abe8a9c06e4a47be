"""Meshes of any shape and order, also beside each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lazy_runtime.ir import grid
from lazy_runtime.torch_xla.distributed import spmd as xs


def test_what_a_mesh_says_of_itself():
    mesh = xs.Mesh(np.arange(6), (2, 3), ("rows", "columns"))
    assert mesh.size() == 6
    assert dict(mesh.shape()) == {"rows": 2, "columns": 3}
    assert mesh.get_logical_mesh().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (mesh.get_axis_name_idx("columns"), mesh.get_axis_name_idx("depth")) == (1, None)
    assert dict(xs.Mesh([1, 0], (2,)).shape()) == {0: 2}
    assert mesh.cuts((("columns", 0), None)) == [[1, 0], []]
    hybrid = xs.HybridMesh(ici_mesh_shape=(2, 2), axis_names=("a", "b"))
    assert hybrid.get_logical_mesh().tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: xs.Mesh(range(4), (2, 3)), r"shape \(2, 3\) has 6 places, and there are 4 devices"),
        (lambda: xs.Mesh([0, 1, 1, 2], (4,)), "each device once"),
        (lambda: xs.Mesh(range(4), (2, 2), ("a",)), r"a name for each axis of \(2, 2\)"),
        (lambda: xs.Mesh(range(4), (2, 2), ("a", "a")), r"a name for each axis of \(2, 2\)"),
        (
            lambda: xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1)),
            "a place for each of 1 process along 2 axes",
        ),
    ],
)
def test_what_is_no_mesh(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("shape", "positions", "expected"),
    [
        ((4,), np.arange(4).reshape(2, 2), [("d0",), ("d1",)]),
        ((4,), np.arange(4), [("d0", "d1")]),
        ((8,), np.arange(8).reshape(2, 4).T, [("d1", "d2"), ("d0",)]),
        ((8,), np.arange(8).reshape(2, 2, 2).transpose(1, 0, 2).reshape(4, 2), [("d1", "d0"), ("d2",)]),
        ((12,), np.arange(12).reshape(4, 1, 3), [("d0", "d1"), (), ("d2",)]),
        ((2, 3), np.arange(6).reshape(3, 2), None),
        ((4,), np.array([0, 1, 3, 2]), None),
        ((4,), np.array([[1, 0], [3, 2]]), None),
    ],
)
def test_axes_of_the_grid(shape, positions, expected):
    made = grid.of([object() for _ in range(positions.size)], shape)
    assert grid.axes(made, positions) == expected


def test_the_first_mesh_may_have_any_order(forked_process):
    forked_process(
        """
        import pytest, torch
        from lazy_runtime.torch_xla import _XLAC, runtime as xr
        from lazy_runtime.torch_xla.distributed import spmd as xs

        xr.use_spmd()
        plain = torch.arange(36.0).reshape(6, 6)
        early = plain.to("xla") + 1
        early.tolist()
        ring = xs.Mesh([0, 1, 2, 5, 4, 3], (3, 2), ("x", "y"))
        x = xs.mark_sharding(plain.to("xla"), ring, ("x", "y"))
        assert x.sharding_spec == "{devices=[3,2]0,1,2,5,4,3}"
        for shard in x.local_shards:
            assert torch.equal(shard.data, plain[tuple(shard.indices)])
        assert [shard.indices[0].start for shard in x.local_shards] == [0, 0, 2, 4, 4, 2]  # those of devices 0, 1, ...
        assert torch.equal((x @ early).cpu(), plain @ (plain + 1))
        turned = xs.Mesh([0, 2, 4, 1, 5, 3], (2, 3))  # the same, its axes exchanged
        xs.clear_sharding(x)
        assert xs.mark_sharding(x, turned, (1, 0)).sharding_spec == "{devices=[3,2]0,1,2,5,4,3}"
        with pytest.raises(ValueError, match="cannot be used beside"):
            xs.mark_sharding(early, xs.Mesh(range(6), (6,)), (0, None))
        """,
        CPU_NUM_DEVICES="6",
    )


def test_the_global_mesh():
    assert xs.get_global_mesh() is None
    mesh = xs.Mesh([0], (1,))
    xs.set_global_mesh(mesh)
    try:
        assert xs.get_global_mesh() is mesh
    finally:
        xs.set_global_mesh(None)


def one_dimension() -> tuple[object, ...]:
    mesh = xs.get_1d_mesh("data")
    assert torch.device("xla:0").index == 0
    return mesh.mesh_shape, mesh.axis_names, xs.get_1d_mesh().axis_names


def test_all_devices_in_a_row(spmd):
    assert spmd(one_dimension) == ((4,), ("data",), None)
