"""Batches that a loader puts on the devices in parts."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.distributed.parallel_loader import MpDeviceLoader


def form(tensor: torch.Tensor) -> str:
    return xs.wrap_as_sharded_tensor(tensor).sharding_spec


def batches_in_parts() -> None:
    mesh = xs.get_1d_mesh("data")
    images, classes = torch.randn(8, 2, 3), torch.arange(8)
    by_rows = xs.ShardingSpec(mesh, ("data", None, None))
    (batch,) = MpDeviceLoader([(images, classes)], "xla", input_sharding=by_rows)
    assert form(batch[0]) == "{devices=[4,1,1]0,1,2,3}"
    assert form(batch[1]) == ""  # another number of dimensions
    assert torch.equal(batch[0].cpu(), images)
    assert torch.equal(batch[1].cpu(), classes)
    each = {"x": by_rows, "y": xs.ShardingSpec(mesh, (0,), minibatch=True), "z": None}
    (named,) = MpDeviceLoader([{"x": images, "y": classes, "z": classes}], "xla", input_sharding=each)
    assert [form(named[key]) for key in "xyz"] == ["{devices=[4,1,1]0,1,2,3}", "{devices=[4]0,1,2,3}", ""]
    with pytest.raises(KeyError, match=r"has the keys \['x', 'y', 'z'\].*got \['x'\]"):
        list(MpDeviceLoader([{"x": images}], "xla", input_sharding=each))
    with pytest.raises(ValueError, match=r"has the keys.*got Tensor"):
        list(MpDeviceLoader([images], "xla", input_sharding=each))
    (last,) = MpDeviceLoader([images[:6]], "xla", input_sharding=by_rows)  # rows that the devices cannot share
    assert form(last) == "{devices=[4,1,1]0,1,2,3}"
    assert torch.equal(last.cpu(), images[:6])
    torch.testing.assert_close((last * 2).sum(0).cpu(), (images[:6] * 2).sum(0))
    with pytest.raises(ValueError, match="no axis 'rows'"):
        xs.ShardingSpec(mesh, ("rows",))
    (sent,) = xm.send_cpu_data_to_device([images], "xla", by_rows)
    assert form(sent) == "{devices=[4,1,1]0,1,2,3}"
    late = images.to("xla")
    assert by_rows.can_apply(late)
    by_rows.apply(late)
    assert form(late) == form(sent)


def test_batches_in_parts(spmd):
    spmd(batches_in_parts)
