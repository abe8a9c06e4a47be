"""Shardings apart from meshes, and what is written of meshes."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.distributed.spmd import debugging
from lazy_runtime.torch_xla.distributed.spmd.xla_sharded_tensor import no_dispatch


def mesh() -> xs.Mesh:
    return xs.Mesh(range(4), (2, 2), ("data", "model"))


def test_text():
    assert xs.Mesh.from_str(str(mesh())).__dict__.keys() == mesh().__dict__.keys()
    assert repr(xs.Mesh.from_str(str(mesh()))) == repr(mesh())
    assert xs.Mesh.from_str("nonsense(") is None
    for spec, expected in (
        (("data", None), "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"),
        (("model", "data"), "{devices=[2,2]0,2,1,3}"),
        ((("data", "model"), None), "{devices=[4,1]0,1,2,3}"),
        ((None, None), "{replicated}"),
    ):
        found = mesh().get_op_sharding(spec)
        assert str(found) == expected
        assert found == mesh().get_op_sharding_v2(spec) == debugging.of_text(expected)
        assert hash(found) == hash(debugging.of_text(expected))
    with pytest.raises(ValueError, match="expected REPLICATED, TILED or PARTIAL, got MANUAL"):
        _XLAC.OpSharding([], [], [], xs.ShardingType.MANUAL)
    with pytest.raises(ValueError, match="expected a sharding such as"):
        debugging.of_text("{maximal}")


def tensors():
    x = torch.randn(8, 4, device="xla")
    assert debugging.construct_v1_sharding_str(x) == ""
    assert _XLAC._get_xla_op_sharding(x) is None
    assert _XLAC._get_xla_sharding_type(x) is None
    kinds = xs.ShardingType
    for spec, kind in (
        (("data", None), kinds.PARTIAL),
        (("model", "data"), kinds.TILED),
        ((("model", "data"), None), kinds.TILED),
        ((None, None), kinds.REPLICATED),
    ):
        x = torch.randn(8, 4, device="xla")
        _XLAC._xla_mark_sharding(x, mesh().get_op_sharding(spec))
        y = torch.randn(8, 4, device="xla")
        xs.mark_sharding(y, mesh(), spec)
        assert debugging.construct_v1_sharding_str(x) == debugging.construct_v1_sharding_str(y)
        assert _XLAC._get_xla_op_sharding(x) == mesh().get_op_sharding(spec)
        assert _XLAC._get_xla_sharding_type(x) == _XLAC._get_xla_sharding_type(y) == kind.value
        assert _XLAC._get_xla_sharding_specs([x, y]) == [str(mesh().get_op_sharding(spec))] * 2
    assert _XLAC._xla_get_auto_sharding() is False
    devices = mesh().get_jax_mesh()
    assert (devices.shape, devices.axis_names) == ({"data": 2, "model": 2}, ("data", "model"))
    assert [each.id for each in devices.devices.flat] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="jax has no device 7"):
        xs.Mesh([7], (1,)).get_jax_mesh()


def annotations():
    plain = torch.randn(8, 4)
    x = plain.to("xla")
    xs.mark_sharding(x, mesh(), ("data", None))
    y = x * 2  # pending
    found = xs.annotate_custom_sharding(y, mesh(), (None, "model"))
    assert found.partition_spec == (None, "model")
    z = y + 0
    torch.testing.assert_close(z.cpu(), plain * 2)
    assert _XLAC._get_xla_sharding_spec(z) == "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}"
    _XLAC._xla_annotate_custom_sharding(x, mesh().get_op_sharding(("model", None)))
    torch.testing.assert_close((x + 1).cpu(), plain + 1)


def from_parts():
    parts = [torch.full((2, 3), float(n)) for n in range(4)]
    found = _XLAC._global_tensor_from_cpu_shards(parts, mesh().get_op_sharding((("data", "model"), None)))
    torch.testing.assert_close(found.cpu(), torch.cat(parts))
    assert _XLAC._get_xla_sharding_spec(found) == "{devices=[4,1]0,1,2,3}"
    copies = _XLAC.OpSharding([], [], [], xs.ShardingType.REPLICATED)
    found = _XLAC._global_tensor_from_cpu_shards(parts[:1] * 4, copies, (2, 3))
    torch.testing.assert_close(found.cpu(), parts[0])
    with pytest.raises(RuntimeError, match=r"make a tensor of shape \[2, 3\], not \[4, 3\]"):
        _XLAC._global_tensor_from_cpu_shards(parts, copies, (4, 3))
    with pytest.raises(RuntimeError, match="a part for each of 4 devices, got 2"):
        _XLAC._global_tensor_from_cpu_shards(parts[:2], copies)


def batches():
    spec = xs.ShardingSpec(mesh(), ("data", None))
    found = spec.xla_spec(torch.ones(4, 2))
    assert (str(found.sharding), found.minibatch) == ("{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", False)
    assert spec.xla_spec(torch.ones(4)) is None
    with no_dispatch():
        assert torch.ones(2).sum().item() == 2


@pytest.mark.parametrize("function", [tensors, annotations, from_parts, batches])
def test_shardings(spmd, function):
    spmd(function)
